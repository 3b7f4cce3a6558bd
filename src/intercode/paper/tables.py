"""The tables of 2023, computed from the recorded files.

The release has them as ``results/ENV/MODEL/ic_ENV_STRATEGY_…_N_turns[_fs_N].json``; for Bash there
is one file for each file system. The success rate is that of the paper: an episode succeeded if
some turn reached the full reward, and the rate is over the episodes that are there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intercode.errors import RecordError
from intercode.evaluate.statistics import rate
from intercode.paper.results import RecordedEpisode, RecordedRun, load_results
from intercode.report.tables import Table

_NAME = re.compile(r"ic_(?P<env>[a-z]+)_(?P<rest>.*?)[-_](?P<turns>\d+)_turns(?:_fs_(?P<fs>\d))?")
_STRATEGIES = {"multiturn": "try again", "react": "ReAct", "plan_solve": "Plan & Solve"}
_SINGLE = "single turn"
_ORDER = [_SINGLE, *_STRATEGIES.values()]
_LEVELS = ("easy", "medium", "hard", "extra")
FULL = {"bash": 200, "sql": 1034}
"""Episodes of a complete run; in the other environments not every task was recorded."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A success rate of a table."""

    env: str
    model: str
    strategy: str
    group: str
    """A hardness, a file system, or ``all``."""
    successes: int
    episodes: int
    low: float
    """Lower end of the 95 % interval (Wilson)."""
    high: float

    @property
    def value(self) -> float:
        """The success rate, in [0, 1]."""
        return self.successes / self.episodes

    def to_dict(self) -> dict[str, Any]:
        """Return the rate as plain JSON types."""
        return {**asdict(self), "success_rate": self.value}


@dataclass(frozen=True, slots=True)
class _File:
    env: str
    model: str
    strategy: str
    turns: int
    system: str
    run: RecordedRun


def rates(folder: Path) -> list[Rate]:
    """Compute the success rates of every recorded file in a folder and below.

    Raises:
        RecordError: There is none, or one cannot be read.
    """
    files = [file for path in sorted(folder.rglob("*.json")) if (file := _file(path))]
    if not files:
        raise RecordError(
            f"no recorded runs in {folder}: expected files like results/bash/gpt-4/"
            "ic_bash_multiturn_gpt-4_10_turns_fs_1.json"
        )
    found: list[Rate] = []
    for env, model in dict.fromkeys((file.env, file.model) for file in files):
        mine = [file for file in files if (file.env, file.model) == (env, model)]
        for strategy in _ORDER:
            found += _rates(env, model, strategy, mine)
    return found


def tables(found: Sequence[Rate]) -> list[Table]:
    """Make a table for each environment: models and strategies down, groups across."""
    made = []
    for env in dict.fromkeys(one.env for one in found):
        mine = [one for one in found if one.env == env]
        groups = list(dict.fromkeys(one.group for one in mine))
        groups.sort(key=lambda group: (group == "all", *_place(group)))
        rows = []
        for model, strategy in dict.fromkeys((one.model, one.strategy) for one in mine):
            row = {o.group: o for o in mine if (o.model, o.strategy) == (model, strategy)}
            whole = row["all"]
            rates = [row[group].value if group in row else None for group in groups]
            rows.append((f"{model}, {strategy}", *rates, (whole.low, whole.high), _of(env, whole)))
        made.append(
            Table(
                f"{env}: success rate",
                (
                    ("", "text"),
                    *((group, "rate") for group in groups),
                    ("95 % interval", "interval"),
                    ("solved", "text"),
                ),
                tuple(rows),
            )
        )
    return made


def _of(env: str, whole: Rate) -> str:
    text = f"{whole.successes} of {whole.episodes}"
    full = FULL.get(env, whole.episodes)
    return text if whole.episodes == full else f"{text} (the rest of {full} is not there)"


def _place(group: str) -> tuple[int, str]:
    return (_LEVELS.index(group) if group in _LEVELS else 0, group)


def _file(path: Path) -> _File | None:
    """Read a file, if its name is that of a results file."""
    match = _NAME.search(path.name)
    if match is None:
        return None
    rest = match["rest"]
    strategy = next((name for key, name in _STRATEGIES.items() if rest.startswith(key)), None)
    if strategy is None:
        return None
    turns, system = int(match["turns"]), match["fs"] or ""
    return _File(
        match["env"],
        path.parent.name,
        strategy,
        turns,
        system and f"fs_{system}",
        load_results(path),
    )


def _rates(env: str, model: str, strategy: str, files: Sequence[_File]) -> list[Rate]:
    chosen, first = _chosen(env, strategy, files)
    if not chosen:
        return []
    groups: dict[str, list[bool]] = {"all": []}
    for file in chosen:
        for episode in file.run.episodes:
            success = _solved_at_once(episode) if first else episode.success
            groups["all"].append(success)
            if name := episode.hardness or file.system:
                groups.setdefault(name, []).append(success)
    return [_rate(env, model, strategy, name, results) for name, results in groups.items()]


def _chosen(env: str, strategy: str, files: Sequence[_File]) -> tuple[list[_File], bool]:
    """Return the files of a strategy, and whether only their first turn counts.

    A single turn has a file of its own, or is the first turn of several. For the other
    environments the paper has no single turn.
    """
    tries = [file for file in files if file.strategy == _STRATEGIES["multiturn"]]
    if strategy != _SINGLE:
        return _longest(file for file in files if file.strategy == strategy), False
    if env not in FULL:
        return [], False
    single = [file for file in tries if file.turns == 1]
    return (single, False) if single else (_longest(tries), True)


def _longest(files: Iterable[_File]) -> list[_File]:
    """Return the files of several turns; of different numbers of turns, those of the most."""
    several = [file for file in files if file.turns > 1]
    return [file for file in several if file.turns == max(other.turns for other in several)]


def _solved_at_once(episode: RecordedEpisode) -> bool:
    return bool(episode.turns) and episode.turns[0].reward == 1


def _rate(env: str, model: str, strategy: str, group: str, results: Iterable[bool]) -> Rate:
    every = list(results)
    found = rate(every)
    return Rate(env, model, strategy, group, sum(every), len(every), found.low, found.high)
