"""The tables of the paper of 2023: success rates, computed from the recorded files.

The release has the files ``results/ENV/FOLDER/FILE``. The name of a file identifies the experiment:
``ic_ENV_STRATEGY_MODEL_N_turns_fs_N_handicap``. The parts after ``ENV`` may be missing, except that
a name without ``STRATEGY`` needs ``N_turns``. If the name does not contain the model, the folder's
name is the model. Bash has one file for each file system. The success rate is that of the paper. An
episode is a success if any turn reached the full reward, and only recorded episodes count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from intercode.errors import RecordError
from intercode.evaluate.statistics import rate
from intercode.records import open_record
from intercode.report.tables import ReportTable
from intercode_paper.results_files import RecordedEpisode, RecordedRun, load_results
from intercode_sandbox.units import format_count

_NAME = re.compile(
    r"ic_(?P<env>[a-z]+)_(?P<what>.+?)(?:[-_](?P<turns>\d+)_turns?)?"
    r"(?:_fs_\d+)?"
)
_SYSTEM = re.compile(r"fs_\d+")
_HANDICAP = "_handicap"
_SINGLE, _TRIES = "single turn", "try again"
_STRATEGIES = {
    "multiturn": _TRIES,
    "react": "ReAct",
    "plan_solve_refine": "Plan & Solve, refined",
    "plan_solve": "Plan & Solve",
}
"""Start of a file's name after ``ic_ENV_`` → strategy. Longer texts come first, because the first
match counts."""
_ORDER = [_SINGLE, _TRIES, "ReAct", "Plan & Solve", "Plan & Solve, refined"]
_LEVELS = ("easy", "medium", "hard", "extra")
EPISODE_COUNTS = {"bash": 200, "sql": 1034}
"""Environment of the paper's table → number of episodes of a complete run. No recorded run of
another environment is complete."""


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """A success rate: one cell of a table."""

    env: str
    model: str
    strategy: str
    """The name of the experiment, such as ``try again, handicap``."""
    group: str
    """The group of episodes: a difficulty, a file system, or ``all``."""
    successes: int
    episodes: int
    low: float
    """The lower end of the 95 % confidence interval (Wilson)."""
    high: float

    @property
    def value(self) -> float:
        """The success rate, in [0, 1]."""
        return self.successes / self.episodes

    def to_dict(self) -> dict[str, Any]:
        """Return the rate as plain JSON types."""
        return {**asdict(self), "success_rate": self.value}


@dataclass(frozen=True, slots=True)
class SkippedResultsFile:
    """A file that no table includes, and the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """The experiment, from a file's name. Episodes of different experiments are never pooled."""

    env: str
    model: str
    strategy: str
    handicap: bool
    """Whether the prompt contained the schema of the databases (``handicap``)."""
    turns: int
    """The limit of turns; 0 if the name does not contain the limit."""

    def label(self, experiments: Iterable[Experiment]) -> str:
        """Return the name of the experiment for a table.

        The name contains the limit of turns only if another experiment differs in nothing else.
        """
        text = f"{self.strategy}, handicap" if self.handicap else self.strategy
        is_ambiguous = any(
            experiment != self and replace(experiment, turns=self.turns) == self
            for experiment in experiments
        )
        return f"{text}, {format_count(self.turns, 'turn')}" if is_ambiguous else text


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """A results file, and the experiment that the file's name denotes."""

    experiment: Experiment
    system: str
    """The file system of a Bash run, such as ``fs_1``; empty in other environments."""
    run: RecordedRun

    @property
    def keys(self) -> set[tuple[str, str]]:
        """The file system and the task id of each episode in the file."""
        return {(self.system, episode.task_id) for episode in self.run.episodes}


@dataclass(frozen=True, slots=True)
class RecordedExperiment:
    """An experiment, and the files with the experiment's episodes."""

    experiment: Experiment
    """The experiment; `Experiment.strategy` is the label of the experiment's row in a table."""
    files: Sequence[ResultsFile]
    is_first_turn: bool
    """Whether only the first turn of each episode belongs to the experiment."""

    def is_success(self, episode: RecordedEpisode) -> bool:
        """Return whether an episode succeeded, as recorded."""
        if self.is_first_turn:
            return bool(episode.turns) and episode.turns[0].reward == 1
        return episode.success


def rates(
    folder: Path, skip: Callable[[SkippedResultsFile], None] = lambda file: None
) -> list[SuccessRate]:
    """Compute the success rates of all recorded files in a folder and its subfolders.

    Args:
        folder: A checkout of the release, or a part of it.
        skip: A function to call with each omitted file; see `list_experiments`.

    Raises:
        RecordError: No file can be read as a recorded run.
    """
    return [
        group_rate
        for recorded_experiment in list_experiments(folder, skip)
        for group_rate in _group_rates(recorded_experiment)
    ]


def list_experiments(
    folder: Path, skip: Callable[[SkippedResultsFile], None] = lambda file: None
) -> list[RecordedExperiment]:
    """List the recorded experiments of all files in a folder and its subfolders.

    Args:
        folder: A checkout of the release, or a part of it.
        skip: A function to call with each omitted file. Such a file cannot be read, repeats
            episodes of another file, or has a name that denotes no experiment. The last reason
            counts only below a folder ``results``.

    Raises:
        RecordError: No file can be read as a recorded run.
    """
    skipped_files: list[SkippedResultsFile] = []
    files = _read_files(folder, skipped_files.append)
    skipped_files.sort(key=lambda skipped_file: skipped_file.path)
    if not files:
        reasons = "".join(
            f"\n  {skipped_file.path}: {skipped_file.reason}" for skipped_file in skipped_files
        )
        raise RecordError(
            f"no recorded run in {folder} can be read:{reasons}"
            if reasons
            else f"no recorded runs in {folder}: expected files like results/bash/gpt-4/"
            "ic_bash_multiturn_gpt-4_10_turns_fs_1.json"
        )
    for skipped_file in skipped_files:
        skip(skipped_file)
    experiments: list[RecordedExperiment] = []
    for env, model in dict.fromkeys(
        (results_file.experiment.env, results_file.experiment.model) for results_file in files
    ):
        model_files = [
            results_file
            for results_file in files
            if (results_file.experiment.env, results_file.experiment.model) == (env, model)
        ]
        for experiment, experiment_files, is_first_turn in _model_experiments(env, model_files):
            label = experiment.label(file.experiment for file in model_files)
            labelled_experiment = replace(experiment, strategy=label)
            experiments.append(
                RecordedExperiment(labelled_experiment, experiment_files, is_first_turn)
            )
    return experiments


def tables(all_rates: Sequence[SuccessRate]) -> list[ReportTable]:
    """Return a table for each environment, with a row per model and strategy.

    Each group of episodes has a column.
    """
    result_tables = []
    for env in dict.fromkeys(group_rate.env for group_rate in all_rates):
        env_rates = [group_rate for group_rate in all_rates if group_rate.env == env]
        groups = list(dict.fromkeys(group_rate.group for group_rate in env_rates))
        groups.sort(key=lambda group: (group == "all", *_group_order(group)))
        rows = []
        for model, strategy in dict.fromkeys(
            (group_rate.model, group_rate.strategy) for group_rate in env_rates
        ):
            row = {
                candidate.group: candidate
                for candidate in env_rates
                if (candidate.model, candidate.strategy) == (model, strategy)
            }
            total_rate = row["all"]
            rates = [row[group].value if group in row else None for group in groups]
            rows.append(
                (
                    f"{model}, {strategy}",
                    *rates,
                    (total_rate.low, total_rate.high),
                    _solved_count(env, total_rate),
                )
            )
        result_tables.append(
            ReportTable(
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
    return result_tables


def _solved_count(env: str, total_rate: SuccessRate) -> str:
    text = f"{total_rate.successes} of {total_rate.episodes}"
    complete_count = EPISODE_COUNTS.get(env, total_rate.episodes)
    return (
        text
        if total_rate.episodes == complete_count
        else f"{text} (the rest of {complete_count} is not there)"
    )


def _group_order(group: str) -> tuple[int, str]:
    return (_LEVELS.index(group) if group in _LEVELS else 0, group)


# Files


def _read_files(folder: Path, skip: Callable[[SkippedResultsFile], None]) -> list[ResultsFile]:
    """Read all results files.

    Of files with the same experiment and a common episode, only the first is used. Files in the
    folder of their model come first.
    """
    candidates = [(path, _parse_experiment(path)) for path in sorted(folder.rglob("*.json"))]
    candidates.sort(
        key=lambda entry: entry[1] is not None and entry[0].parent.name != entry[1].model
    )
    files: list[ResultsFile] = []
    for path, experiment in candidates:
        if experiment is None:
            if "results" in path.absolute().parts:
                skip(SkippedResultsFile(path, "its name is not that of a recorded run (ic_ENV_…)"))
            continue
        try:
            file = _load_file(path, experiment)
        except RecordError as error:
            skip(SkippedResultsFile(path, str(error).removeprefix(f"{path}: ")))
            continue
        duplicates = (
            entry for entry in files if entry.experiment == experiment and entry.keys & file.keys
        )
        if (duplicate := next(duplicates, None)) is None:
            files.append(file)
        else:
            skip(
                SkippedResultsFile(
                    path, f"its episodes are of the same experiment as {duplicate.run.path}"
                )
            )
    return sorted(files, key=lambda file: file.run.path)


def _parse_experiment(path: Path) -> Experiment | None:
    """Return the experiment that a file's name denotes; None if the name denotes none."""
    match = _NAME.fullmatch(path.stem.replace(_HANDICAP, ""))
    # A name with unknown words after ``N_turns``, such as ``_old``, denotes no experiment.
    if match is None or "_turns" in match["what"]:
        return None
    description, turn_limit = match["what"], int(match["turns"] or 0)
    strategy_key = next(
        (
            strategy_key
            for strategy_key in _STRATEGIES
            if f"{description}_".startswith(f"{strategy_key}_")
        ),
        None,
    )
    if strategy_key is None and not turn_limit:
        return None
    strategy = _STRATEGIES[strategy_key or "multiturn"]
    return Experiment(
        env=match["env"],
        model=(description[len(strategy_key) + 1 :] if strategy_key else description)
        or path.parent.name,
        strategy=_SINGLE if strategy == _TRIES and turn_limit == 1 else strategy,
        handicap=_HANDICAP in path.stem,
        turns=turn_limit,
    )


def _load_file(path: Path, experiment: Experiment) -> ResultsFile:
    try:
        # `open_record` refuses a symbolic link, which could expose a file outside the folder.
        open_record(path).close()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    recorded_run = load_results(path)
    # For refined Plan & Solve on Bash, only the recorded path of the data file has the file system.
    file_system_match = _SYSTEM.search(path.stem) or _SYSTEM.search(
        recorded_run.episodes[0].dataset
    )
    return ResultsFile(experiment, file_system_match[0] if file_system_match else "", recorded_run)


# Rates


def _model_experiments(
    env: str, files: Sequence[ResultsFile]
) -> list[tuple[Experiment, list[ResultsFile], bool]]:
    """Return a model's experiments with their files, and whether only the first turn counts.

    The experiment with a single turn has its own files. If these are missing, its results are the
    first turns of "try again", of the experiment with the most turns. A condition is that all first
    turns have a reward. Environments that are not in the paper's table get no such row.
    """
    experiment_rows = [
        (experiment, [file for file in files if file.experiment == experiment], False)
        for experiment in dict.fromkeys(file.experiment for file in files)
    ]
    retry_rows = [
        row for row in experiment_rows if row[0].strategy == _TRIES and not row[0].handicap
    ]
    has_single_turn_file = any(
        experiment.strategy == _SINGLE and not experiment.handicap
        for experiment, _, _ in experiment_rows
    )
    if env in EPISODE_COUNTS and retry_rows and not has_single_turn_file:
        experiment, experiment_files, _ = max(retry_rows, key=lambda row: row[0].turns)
        first_turns = [
            episode.turns[0]
            for file in experiment_files
            for episode in file.run.episodes
            if episode.turns
        ]
        if all(turn.reward is not None for turn in first_turns):
            experiment_rows.append(
                (replace(experiment, strategy=_SINGLE, turns=1), experiment_files, True)
            )
    return sorted(
        experiment_rows,
        key=lambda row: (_ORDER.index(row[0].strategy), row[0].handicap, row[0].turns),
    )


def _group_rates(recorded_experiment: RecordedExperiment) -> list[SuccessRate]:
    flags_by_group: dict[str, list[bool]] = {"all": []}
    for file in recorded_experiment.files:
        for episode in file.run.episodes:
            success = recorded_experiment.is_success(episode)
            flags_by_group["all"].append(success)
            if group := episode.hardness or file.system:
                flags_by_group.setdefault(group, []).append(success)
    return [
        _make_rate(recorded_experiment.experiment, group, success_flags)
        for group, success_flags in flags_by_group.items()
    ]


def _make_rate(experiment: Experiment, group: str, successes: Sequence[bool]) -> SuccessRate:
    estimate = rate(successes)
    return SuccessRate(
        experiment.env,
        experiment.model,
        experiment.strategy,
        group,
        sum(successes),
        len(successes),
        estimate.low,
        estimate.high,
    )
