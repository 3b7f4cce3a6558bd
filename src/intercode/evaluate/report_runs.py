"""Runs as a report sees them, alone and two at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.episode import Episode
from intercode.evaluate.comparison import (
    McNemar,
    bootstrap,
    detectable,
    difference,
    mcnemar,
    paired_tasks,
)
from intercode.evaluate.coverage import Coverage, covered
from intercode.evaluate.judged import judge_of, with_judge
from intercode.evaluate.statistics import Estimate
from intercode.records import Outcome, latest, read_manifest


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what was run, and what came of it."""

    folder: Path
    manifest: dict[str, Any]
    outcomes: list[Outcome]
    label: str
    """Who acted: told apart from the other runs of a report."""

    @property
    def where(self) -> str:
        """In which environment, on which tasks."""
        env = str(self.manifest.get("env", {}).get("env", ""))
        dataset = str(self.manifest.get("dataset", {}).get("name", ""))
        return env if dataset in ("", env) else f"{env} · {dataset}"

    @property
    def shown_gold(self) -> bool:
        """Whether its agent was shown all of its tasks, gold among it."""
        return bool(self.manifest.get("needs_gold"))

    @property
    def judge(self) -> str | None:
        """The model whose word some of its successes may be."""
        return judge_of(self.manifest, self.outcomes)

    @property
    def coverage(self) -> Coverage:
        """Of how much of its dataset it tells."""
        return covered(self.manifest, self.outcomes)


def read_runs(
    folders: Sequence[Path], on_episode: Callable[[int, Episode], None] = lambda run, episode: None
) -> list[Run]:
    """Read runs. Episodes are not kept, so that memory stays small.

    Args:
        folders: Theirs.
        on_episode: Is shown each episode, with the number of its run.

    Raises:
        RecordError: One cannot be read.
    """
    manifests = [read_manifest(folder) for folder in folders]
    runs = []
    for number, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):

        def outcome(episode: Episode, number: int = number) -> Outcome:
            on_episode(number, episode)
            return Outcome.of(episode)

        outcomes = list(latest(folder, outcome).values())
        judge = judge_of(manifest, outcomes)
        runs.append(Run(folder, manifest, outcomes, _agent(manifest, judge)))
    return _told_apart(runs)


def _agent(manifest: dict[str, Any], judge: str | None) -> str:
    agent = manifest.get("agent", {})
    name, model = str(agent.get("name")), agent.get("language_model", {}).get("model")
    return with_judge(f"{name} ({model})" if model else name, judge)


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """Runs of one agent in one environment are called by their folders, too."""
    names = [(run.label, run.where) for run in runs]
    return [
        run
        if names.count((run.label, run.where)) == 1
        else Run(run.folder, run.manifest, run.outcomes, f"{run.label} [{run.folder}]")
        for run in runs
    ]


def baselines(runs: Sequence[Run]) -> list[tuple[Run, list[Run]]]:
    """Runs that can be held against others: each the first on its tasks, and those after it.

    Those are of the same environment and share a task with it.
    """
    found: list[tuple[Run, set[str], list[Run]]] = []
    for run in runs:
        tasks = {outcome.task_id for outcome in run.outcomes}
        for first, its, others in found:
            if _environment(first) == _environment(run) and not its.isdisjoint(tasks):
                others.append(run)
                break
        else:
            found.append((run, tasks, []))
    return [(first, others) for first, _, others in found]


def _environment(run: Run) -> object:
    return run.manifest.get("env", {}).get("env")


@dataclass(frozen=True, slots=True)
class Paired:
    """Two runs on the same tasks. Of several attempts at a task the mean counts."""

    tasks: int
    """That both have a score for."""
    first: float
    """The first one's success rate on them."""
    second: float
    difference: Estimate
    """Second minus first, with the paired t interval."""
    drawn: Estimate | None
    """The same with the interval of the bootstrap over places; None: there is but one place."""
    test: McNemar | None
    """None where there are several attempts at a task."""
    differing: float
    """The share of the tasks on which they differ."""
    detectable: float | None
    """The smallest difference that so many tasks are likely to show."""
    needed: int | None
    """Tasks that the difference that was seen is likely to show on; None: there is none."""


def compare(first: Sequence[Outcome], second: Sequence[Outcome]) -> Paired | None:
    """Hold a run against another one; None if they have no task in common."""
    one, other = _by_task(first), _by_task(second)
    common = [task for task in one if task in other]
    if not common:
        return None
    before = [_rate(one[task]) for task in common]
    after = [_rate(other[task]) for task in common]
    places = [one[task][0].place for task in common]
    changes = [b - a for a, b in zip(before, after, strict=True)]
    seen = difference(before, after)
    # At least the difference itself, which rounding might put above it.
    differing = max(math.fsum(map(abs, changes)) / len(common), abs(seen.value))
    single = all(len(tries[task]) == 1 for tries in (one, other) for task in common)
    return Paired(
        tasks=len(common),
        first=math.fsum(before) / len(common),
        second=math.fsum(after) / len(common),
        difference=seen,
        drawn=bootstrap(changes, places) if len(set(places)) > 1 else None,
        test=mcnemar([a == 1 for a in before], [b == 1 for b in after]) if single else None,
        differing=differing,
        detectable=detectable(len(common), differing),
        needed=paired_tasks(seen.value, differing) if abs(seen.value) > 1e-12 else None,
    )


def _by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.failed:
            found.setdefault(outcome.task_id, []).append(outcome)
    return found


def _rate(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.success for outcome in outcomes) / len(outcomes)
