"""Recorded runs as data for reports: single runs, comparisons of two runs, and work of judges.

A judge is a language model that may decide that an episode is solved. The success rate of a run
with a judge is not comparable with a rate without a judge. Such a rate is therefore marked. Texts
about one run name the rate ``success (judged by MODEL)``, and JSON has keys with the prefix
``judged_``. In outputs about several runs, the run's label names the judge.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import pstdev
from typing import TYPE_CHECKING, Any

from intercode.episode import Episode
from intercode.evaluate.comparison import (
    ALPHA,
    McNemarTest,
    bootstrap,
    detectable_mean,
    detectable_rate_difference,
    difference,
    mcnemar,
    mean_tasks,
    paired_tasks,
)
from intercode.evaluate.statistics import FEW_CLUSTERS, IntervalEstimate
from intercode.evaluate.summary import Statistics, summarize, total
from intercode.records import Outcome, last_attempts, read_latest, read_manifest
from intercode.redaction import SecretRedactor
from intercode.registry import NOTEBOOK
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from pandas import DataFrame

_JUDGED = ("success", "clustered", "mean_reward", "reward")


@dataclass(frozen=True, slots=True, repr=False)
class RecordedRun:
    """A recorded run: its ``run.json``, and the summaries of its episodes."""

    folder: Path
    manifest: dict[str, Any]
    outcomes: list[Outcome]
    label: str
    """The agent's name, with additions that distinguish the run from other runs in a report."""
    name: str = ""
    """The folder's name, or the folder's path if another run's folder has the same name."""

    @property
    def env(self) -> str:
        """The environment's name."""
        return str(self.manifest.get("env", {}).get("env", ""))

    @property
    def model(self) -> str:
        """The agent's language model; empty if the agent is not a language model."""
        model = self.manifest.get("agent", {}).get("language_model", {}).get("model")
        return str(model or "")

    @property
    def env_label(self) -> str:
        """The environment's name, and the name of the benchmark or dataset if that is different."""
        name = benchmark(self.manifest) or str(self.manifest.get("dataset", {}).get("name", ""))
        return " · ".join(dict.fromkeys(filter(None, (self.env, name))))

    @property
    def unfinished_note(self) -> str:
        """A line with the number of finished episodes, and the command that resumes the run.

        The line is empty if the run is complete. The command is absent if no command can resume the
        run.
        """
        coverage = self.coverage
        if not coverage.missing:
            return ""
        finished_count = coverage.planned - coverage.missing
        line = f"unfinished: {finished_count} of {format_count(coverage.planned, 'episode')}"
        sessions = self.manifest.get("sessions") or [{}]
        # If the record has no options, the run was started from Python code. No command can resume
        # such a run.
        if "options" not in sessions[-1]:
            return line
        return f"{line}; if it is not running: intercode resume {shlex.quote(str(self.folder))}"

    @property
    def shown_gold(self) -> bool:
        """Whether the agent received gold together with the tasks, as the oracle does."""
        return bool(self.manifest.get("needs_gold"))

    @property
    def judge(self) -> str | None:
        """The name of the judge's model, which may have decided successes; None: no judge."""
        return find_judge(self.manifest, self.outcomes)

    @property
    def coverage(self) -> DatasetCoverage:
        """The share of the dataset that the run covers."""
        return compute_coverage(self.manifest, self.outcomes)

    def to_pandas(self) -> DataFrame:
        """Return a pandas data frame with a row for each episode.

        The columns are ``run`` (the run's name), ``model``, and those of
        `intercode.report.export.EPISODE_COLUMNS`.

        Raises:
            UsageError: pandas is not installed.
            RecordError: The run cannot be read.
        """
        redactor = SecretRedactor()
        frame = NOTEBOOK.get("data frame")(map(redactor.episode, last_attempts(self.folder)))
        for position, (name, text) in enumerate({"run": self.name, "model": self.model}.items()):
            frame.insert(position, name, text)
        return frame.astype({"run": "string", "model": "string"})

    def __repr__(self) -> str:
        return f"RecordedRun({str(self.folder)!r}, {format_count(len(self.outcomes), 'episode')})"

    def _repr_html_(self) -> str:
        """Return the view of the run in a notebook."""
        html: str = NOTEBOOK.get("run")(self)
        return html


def benchmark(manifest: Mapping[str, Any]) -> str:
    """Return the name of the benchmark folder of a run; empty if its tasks came from no folder."""
    sessions = manifest.get("sessions") or [{}]
    return str(sessions[-1].get("options", {}).get("benchmark", ""))


def read_runs(
    folders: Sequence[Path], on_episode: Callable[[int, Episode], None] = lambda run, episode: None
) -> list[RecordedRun]:
    """Read runs. Only summaries of episodes stay in memory.

    Args:
        folders: The folders of the runs.
        on_episode: A function that receives the number of the run, counted from 0, and the episode.
            The function is called for each recorded episode.

    Raises:
        RecordError: A run cannot be read.
    """
    redactor = SecretRedactor()  # an older version of InterCode may have recorded secrets
    manifests = [redactor.facts(read_manifest(folder)) for folder in folders]
    runs = []
    for run_number, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):

        def outcome(episode: Episode, run_index: int = run_number) -> Outcome:
            episode = redactor.episode(episode)
            on_episode(run_index, episode)
            return Outcome.from_episode(episode)

        outcomes = list(read_latest(folder, outcome).values())
        runs.append(make_run(folder, manifest, outcomes))
    return distinguish_runs(runs)


def make_run(folder: Path, manifest: dict[str, Any], outcomes: list[Outcome]) -> RecordedRun:
    """Return a run with a label, which other runs may have, too: see `distinguish_runs`."""
    return RecordedRun(folder, manifest, outcomes, _agent(manifest, find_judge(manifest, outcomes)))


def _agent(manifest: dict[str, Any], judge: str | None) -> str:
    agent = manifest.get("agent", {})
    name, model = str(agent.get("name")), agent.get("language_model", {}).get("model")
    skills = "".join(f" with {skill}" for skill in agent.get("skills", {}))
    return add_judge(f"{name} ({model}){skills}" if model else f"{name}{skills}", judge)


def distinguish_runs(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return runs with distinct names, and with labels that are distinct within an environment.

    If several runs have the same label in the same environment, their folders are added to the
    labels. The name of a run is set to the name of its folder, or to the folder's path if that name
    is not unique.
    """
    labels = Counter((run.label, run.env_label) for run in runs)
    names = Counter(run.folder.name for run in runs)
    return [
        replace(
            run,
            label=f"{run.label} [{run.folder}]"
            if labels[run.label, run.env_label] > 1
            else run.label,
            name=run.folder.name if names[run.folder.name] == 1 else str(run.folder),
        )
        for run in runs
    ]


def baselines(runs: Sequence[RecordedRun]) -> list[tuple[RecordedRun, list[RecordedRun]]]:
    """Return each baseline, with the runs that are compared with it.

    A run is a baseline if it has no task in common with an earlier baseline of the same
    environment. Otherwise the run is compared with that earlier baseline.
    """
    groups: list[tuple[RecordedRun, set[str], list[RecordedRun]]] = []
    for run in runs:
        tasks = {outcome.task_id for outcome in run.outcomes}
        for baseline, baseline_tasks, later_runs in groups:
            if baseline.env == run.env and not baseline_tasks.isdisjoint(tasks):
                later_runs.append(run)
                break
        else:
            groups.append((run, tasks, []))
    return [(baseline, later_runs) for baseline, _, later_runs in groups]


@dataclass(frozen=True, slots=True)
class PairedConsumption:
    """The means per task of an amount, such as tokens, in two runs.

    If a task has several attempts, the mean of their amounts counts.
    """

    tasks: int
    """The number of tasks whose amount is known in both runs. Episodes that ended in an error do
    not count."""
    first: float
    """The mean amount per task in the first run."""
    second: float
    """The mean amount per task in the second run."""
    difference: IntervalEstimate
    """The mean of the second run minus the mean of the first, with the paired t interval."""


@dataclass(frozen=True, slots=True, repr=False)
class PairedRunComparison:
    """The comparison of two runs on the tasks that both runs have.

    If a task has several attempts, the mean of their successes counts.
    """

    tasks: int
    """The number of tasks with a score in both runs."""
    first: float
    """The success rate of the first run on these tasks."""
    second: float
    """The success rate of the second run on these tasks."""
    difference: IntervalEstimate
    """The rate of the second run minus the rate of the first, with the paired t interval."""
    drawn: IntervalEstimate | None
    """The difference with an interval that treats images or databases as clusters. The
    interval is a bootstrap interval, or a t interval if the clusters are few. None: the tasks have
    a single image or database."""
    test: McNemarTest | None
    """The result of McNemar's test; None if a task has several attempts."""
    differing: float
    """The share of the tasks on which the runs differ. If a task has several attempts, the
    difference of its success rates counts."""
    detectable: float | None
    """The smallest difference of the success rates that this number of tasks is likely to show as
    significant. None: no difference is likely to be shown."""
    needed: int | None
    """The number of tasks that is likely to show the observed difference as significant. None: no
    difference was observed."""
    tokens: PairedConsumption | None = None
    """The sums of input and output tokens; None: no task has known values in both runs."""
    cost: PairedConsumption | None = None
    """The costs of the models in US dollars; None: no task has known values in both runs."""
    turns: PairedConsumption | None = None
    """The numbers of turns."""
    better_first: tuple[str, ...] = ()
    """The tasks of which the first run solves more attempts."""
    better_second: tuple[str, ...] = ()
    """The tasks of which the second run solves more attempts."""

    def __repr__(self) -> str:
        points = f"{100 * self.difference.value:+.1f} points"
        return f"PairedRunComparison({format_count(self.tasks, 'task')}, {points})"

    def _repr_html_(self) -> str:
        """Return the view of the comparison in a notebook."""
        html: str = NOTEBOOK.get("comparison")(self)
        return html

    def is_significant(self, p_value: float | None = None) -> bool:
        """Return whether the difference of the success rates is significant.

        McNemar's test decides. If a task has several attempts, the test does not exist, and the
        interval of the difference decides: it must not contain 0.

        Args:
            p_value: The p value of the test after a correction for several comparisons; None: the
                uncorrected p value counts.
        """
        if self.test is not None:
            return (self.test.p if p_value is None else p_value) < ALPHA
        return self.difference.low > 0 or self.difference.high < 0


def compare(
    first_outcomes: Sequence[Outcome], second_outcomes: Sequence[Outcome], comparisons: int = 1
) -> PairedRunComparison | None:
    """Compare two runs; None if no task has a score in both runs.

    Args:
        first_outcomes: The first run's outcomes.
        second_outcomes: The second run's outcomes.
        comparisons: The number of runs that are compared with the first run. For `detectable` and
            `needed`, the significance level is divided by this number (Bonferroni's correction).
    """
    first_by_task, second_by_task = _by_task(first_outcomes), _by_task(second_outcomes)
    common_tasks = [task for task in first_by_task if task in second_by_task]
    if not common_tasks:
        return None
    first_rates = [_rate(first_by_task[task]) for task in common_tasks]
    second_rates = [_rate(second_by_task[task]) for task in common_tasks]
    clusters = [first_by_task[task][0].place for task in common_tasks]
    changes = [
        second_rate - first_rate
        for first_rate, second_rate in zip(first_rates, second_rates, strict=True)
    ]
    observed_difference = difference(first_rates, second_rates, max_difference=1.0)
    # Mathematically, the share is at least the difference. The maximum keeps this true in spite of
    # rounding errors.
    differing_share = max(
        math.fsum(map(abs, changes)) / len(common_tasks), abs(observed_difference.value)
    )
    is_single = all(
        len(attempts[task]) == 1
        for attempts in (first_by_task, second_by_task)
        for task in common_tasks
    )
    alpha, is_seen = ALPHA / max(1, comparisons), abs(observed_difference.value) > 1e-12
    if is_single:
        detectable_difference = detectable_rate_difference(
            len(common_tasks), differing_share, alpha=alpha
        )
        needed_tasks = (
            paired_tasks(observed_difference.value, differing_share, alpha=alpha)
            if is_seen
            else None
        )
    else:  # a task has several attempts, so the interval of the difference decides
        spread = pstdev(changes) * math.sqrt(len(common_tasks) / max(1, len(common_tasks) - 1))
        detectable_difference = (
            detectable_mean(len(common_tasks), spread, alpha=alpha) if spread else None
        )
        detectable_difference = (
            None
            if detectable_difference is None or detectable_difference > 1
            else detectable_difference
        )
        needed_tasks = (
            mean_tasks(observed_difference.value, spread, alpha=alpha) if is_seen else None
        )
    return PairedRunComparison(
        tasks=len(common_tasks),
        first=math.fsum(first_rates) / len(common_tasks),
        second=math.fsum(second_rates) / len(common_tasks),
        difference=observed_difference,
        drawn=_clustered_difference(first_rates, second_rates, clusters),
        test=mcnemar(
            [first_rate == 1 for first_rate in first_rates],
            [second_rate == 1 for second_rate in second_rates],
        )
        if is_single
        else None,
        differing=differing_share,
        detectable=detectable_difference,
        needed=needed_tasks,
        tokens=_compare_consumption(
            first_by_task,
            second_by_task,
            lambda outcome: total((outcome.tokens_in, outcome.tokens_out)),
        ),
        cost=_compare_consumption(first_by_task, second_by_task, lambda outcome: outcome.cost),
        turns=_compare_consumption(first_by_task, second_by_task, lambda outcome: outcome.turns),
        better_first=tuple(
            task for task, change in zip(common_tasks, changes, strict=True) if change < 0
        ),
        better_second=tuple(
            task for task, change in zip(common_tasks, changes, strict=True) if change > 0
        ),
    )


def _clustered_difference(
    first_rates: Sequence[float], second_rates: Sequence[float], clusters: Sequence[str]
) -> IntervalEstimate | None:
    """Return the difference of the rates, with an interval over images or databases as clusters.

    If the clusters are few, the interval is a t interval, because the bootstrap interval would be
    too narrow. The result is None for a single cluster.

    Args:
        first_rates: The success rate of the first run for each task.
        second_rates: The success rate of the second run for each task.
        clusters: The image or database of each task.
    """
    if (count := len(set(clusters))) < 2:
        return None
    if count < FEW_CLUSTERS:
        return difference(first_rates, second_rates, clusters, max_difference=1.0)
    return bootstrap(
        [
            second_rate - first_rate
            for first_rate, second_rate in zip(first_rates, second_rates, strict=True)
        ],
        clusters,
    )


def _compare_consumption(
    first_by_task: Mapping[str, Sequence[Outcome]],
    second_by_task: Mapping[str, Sequence[Outcome]],
    get_amount: Callable[[Outcome], float | None],
) -> PairedConsumption | None:
    first_means, second_means = (
        {task: _mean(map(get_amount, run[task])) for task in run}
        for run in (first_by_task, second_by_task)
    )
    pairs = [
        (first_value, second_value)
        for task, first_value in first_means.items()
        if first_value is not None and (second_value := second_means.get(task)) is not None
    ]
    if not pairs:
        return None
    first_values, second_values = zip(*pairs, strict=True)
    return PairedConsumption(
        tasks=len(pairs),
        first=math.fsum(first_values) / len(pairs),
        second=math.fsum(second_values) / len(pairs),
        difference=difference(first_values, second_values),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    finite_values = [value for value in values if value is not None]
    return math.fsum(finite_values) / len(finite_values) if finite_values else None


def _by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    outcomes_by_task: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.failed:
            outcomes_by_task.setdefault(outcome.task_id, []).append(outcome)
    return outcomes_by_task


def _rate(outcomes: Sequence[Outcome]) -> float:
    """Return the success rate over attempts at a task. An attempt's forks count as one attempt."""
    return summarize(outcomes).success_rate or 0.0


@dataclass(frozen=True, slots=True)
class DatasetCoverage:
    """The share of a dataset that a run covers."""

    tasks: int
    """The number of tasks in the dataset."""
    epochs: int
    planned: int
    """The number of requested episodes."""
    scored: int
    """The number of episodes with a score."""
    errored: int
    """The number of episodes that ended in an error."""
    missing: int
    """The number of requested episodes without a record."""
    excluded: int
    """The number of tasks that the run excluded, each for a recorded reason."""
    coverage: float | None
    """The scored episodes as a share of the episodes that all tasks of the dataset would give.
    None: the number of tasks in the dataset is not known."""


def compute_coverage(manifest: Mapping[str, Any], outcomes: Sequence[Outcome]) -> DatasetCoverage:
    """Compute the share of the dataset that a run covers.

    Args:
        manifest: The ``run.json`` of the run.
        outcomes: The summaries of its episodes.
    """
    tasks = int(manifest.get("dataset", {}).get("tasks", 0))
    excluded_tasks = manifest.get("excluded", {})
    settings = [session.get("settings", {}) for session in manifest.get("sessions", [])]
    epochs = max([int(s.get("epochs", 1)) for s in settings], default=1)
    episode_counts = [
        _count_tasks(setting, tasks, excluded_tasks) * int(setting.get("epochs", 1))
        for setting in settings
    ]
    error_count = sum(outcome.failed for outcome in outcomes)
    planned_count = max([*episode_counts, len(outcomes)])
    return DatasetCoverage(
        tasks=tasks,
        epochs=epochs,
        planned=planned_count,
        scored=len(outcomes) - error_count,
        errored=error_count,
        missing=planned_count - len(outcomes),
        excluded=len(excluded_tasks),
        coverage=(len(outcomes) - error_count) / (tasks * epochs) if tasks else None,
    )


def _count_tasks(settings: Mapping[str, Any], tasks: int, excluded_tasks: Mapping[str, str]) -> int:
    """Return the number of tasks that a session requested."""
    task_ids = settings.get("tasks")
    count = len(set(task_ids) - set(excluded_tasks)) if task_ids else tasks - len(excluded_tasks)
    return min(count, settings.get("limit") or count)


@dataclass(frozen=True, slots=True)
class JudgeCounts:
    """Numbers about a judge's work in the episodes of a run."""

    model: str
    asked: int
    """The number of episodes in which the judge compared outputs."""
    same: int
    """The number of episodes that are solved by the judge's verdict."""
    split: int
    """The number of episodes in which votes of the judge, or both orders of a vote, disagreed."""
    steered: int
    """The number of episodes in which the judge accepted a decoy, so its verdict was rejected."""
    malformed: int
    """The number of replies without a verdict."""
    success_by_execution: float | None
    """The success rate without successes by the judge's verdict; None: no episode has a score."""
    tokens_in: int | None
    """The judge's input tokens in all episodes, including errors; None: not recorded."""
    tokens_out: int | None
    """The judge's output tokens in all episodes, including errors; None: not recorded."""
    cost: float | None
    """The judge's cost in US dollars in all episodes, including errors; None: not recorded."""


def find_judge(manifest: Mapping[str, Any], outcomes: Iterable[Outcome] = ()) -> str | None:
    """Return the name of the model that judged a run, from its ``run.json`` or else its episodes.

    The result is None if the run had no judge.
    """
    recorded_model = manifest.get("env", {}).get("judge", {}).get("model")
    judge_models = (outcome.judged.model for outcome in outcomes if outcome.judged is not None)
    return str(recorded_model) if recorded_model else next(judge_models, None)


def rate_name(judge: str | None) -> str:
    """Return the name of a run's success rate.

    Args:
        judge: The judge's model; None: no judge.
    """
    return "success" if judge is None else f"success (judged by {judge})"


def add_judge(label: str, judge: str | None) -> str:
    """Return the label of an agent or a run, with the judge's model if the run had a judge."""
    return label if judge is None else f"{label}, judged by {judge}"


def count_judgements(judge: str | None, outcomes: Sequence[Outcome]) -> JudgeCounts | None:
    """Return numbers about a judge's work in the episodes of a run; None if `judge` is None."""
    if judge is None:
        return None
    judgements = [outcome.judged for outcome in outcomes if outcome.judged is not None]
    scored_outcomes = [outcome for outcome in outcomes if not outcome.failed]
    execution_successes = sum(
        o.success and not (o.judged is not None and o.judged.same) for o in scored_outcomes
    )
    return JudgeCounts(
        model=judge,
        asked=sum(judgement.asked for judgement in judgements),
        same=sum(judgement.same for judgement in judgements),
        split=sum(judgement.split for judgement in judgements),
        steered=sum(judgement.steered for judgement in judgements),
        malformed=sum(judgement.malformed for judgement in judgements),
        success_by_execution=execution_successes / len(scored_outcomes)
        if scored_outcomes
        else None,
        tokens_in=total(judgement.tokens_in for judgement in judgements),
        tokens_out=total(judgement.tokens_out for judgement in judgements),
        cost=total(judgement.cost for judgement in judgements),
    )


def as_data(statistics: Statistics, judge: str | None) -> dict[str, Any]:
    """Return statistics as plain data.

    If a judge may have decided successes, keys about success and reward begin with ``judged_``.
    """
    return {
        f"judged_{name}" if judge is not None and name.startswith(_JUDGED) else name: value
        for name, value in asdict(statistics).items()
    }
