"""Runs as reports see them: alone, with a judge, and two at a time.

The successes that are a judge's word are not those of the same run without a judge. So their rate
has another name wherever it stands: ``success (judged by MODEL)`` for people, keys that begin with
``judged_`` for programs.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import pstdev
from typing import Any

from intercode.episode import Episode
from intercode.evaluate.comparison import (
    ALPHA,
    McNemar,
    bootstrap,
    detectable,
    detectable_mean,
    difference,
    mcnemar,
    mean_tasks,
    paired_tasks,
)
from intercode.evaluate.statistics import FEW_CLUSTERS, Estimate
from intercode.evaluate.summary import Statistics, summarize, total
from intercode.records import Outcome, latest, read_manifest
from intercode.redaction import Redactor
from intercode_sandbox.units import format_count

_JUDGED = ("success", "clustered", "mean_reward", "reward")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its record and its outcomes."""

    folder: Path
    manifest: dict[str, Any]
    outcomes: list[Outcome]
    label: str
    """The agent's name, distinct from those of a report's other runs."""
    name: str = ""
    """The folder's name, or all of its path where another run's is the same."""

    @property
    def env(self) -> str:
        """The environment's name."""
        return str(self.manifest.get("env", {}).get("env", ""))

    @property
    def model(self) -> str:
        """The agent's language model; empty without one."""
        model = self.manifest.get("agent", {}).get("language_model", {}).get("model")
        return str(model or "")

    @property
    def where(self) -> str:
        """The environment, and the benchmark's or the dataset's name where that differs."""
        name = benchmark(self.manifest) or str(self.manifest.get("dataset", {}).get("name", ""))
        return self.env if name in ("", self.env) else f"{self.env} · {name}"

    @property
    def unfinished(self) -> str:
        """A line that says how much of the run there is, and how it continues; empty if all."""
        coverage = self.coverage
        if not coverage.missing:
            return ""
        there = coverage.planned - coverage.missing
        line = f"unfinished: {there} of {format_count(coverage.planned, 'episode')}"
        sessions = self.manifest.get("sessions") or [{}]
        if "options" not in sessions[-1]:  # made in Python
            return line
        return f"{line}; if it is not running: intercode resume {shlex.quote(str(self.folder))}"

    @property
    def shown_gold(self) -> bool:
        """Whether the agent was shown its tasks whole, including gold."""
        return bool(self.manifest.get("needs_gold"))

    @property
    def judge(self) -> str | None:
        """The model that may have judged some successes; None without a judge."""
        return judge_of(self.manifest, self.outcomes)

    @property
    def coverage(self) -> Coverage:
        """The share of the dataset that the run covers."""
        return covered(self.manifest, self.outcomes)


def benchmark(manifest: Mapping[str, Any]) -> str:
    """Return the name of the benchmark that was run, if that is a folder; else empty."""
    sessions = manifest.get("sessions") or [{}]
    return str(sessions[-1].get("options", {}).get("benchmark", ""))


def read_runs(
    folders: Sequence[Path], on_episode: Callable[[int, Episode], None] = lambda run, episode: None
) -> list[Run]:
    """Read runs. Episodes are not kept, so that memory stays small.

    Args:
        folders: The folders of the runs.
        on_episode: Called with the number of the run and each episode.

    Raises:
        RecordError: A run cannot be read.
    """
    redactor = Redactor()  # a record may be of an older version
    manifests = [redactor.facts(read_manifest(folder)) for folder in folders]
    runs = []
    for number, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):

        def outcome(episode: Episode, number: int = number) -> Outcome:
            episode = redactor.episode(episode)
            on_episode(number, episode)
            return Outcome.of(episode)

        outcomes = list(latest(folder, outcome).values())
        runs.append(run_of(folder, manifest, outcomes))
    return told_apart(runs)


def run_of(folder: Path, manifest: dict[str, Any], outcomes: list[Outcome]) -> Run:
    """Return a run with its label, which other runs may have, too: see `told_apart`."""
    return Run(folder, manifest, outcomes, _agent(manifest, judge_of(manifest, outcomes)))


def _agent(manifest: dict[str, Any], judge: str | None) -> str:
    agent = manifest.get("agent", {})
    name, model = str(agent.get("name")), agent.get("language_model", {}).get("model")
    skills = "".join(f" with {skill}" for skill in agent.get("skills", {}))
    return with_judge(f"{name} ({model}){skills}" if model else f"{name}{skills}", judge)


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """Add the folders to the labels of runs of the same agent in the same environment.

    Give each run its name, too.
    """
    labels = Counter((run.label, run.where) for run in runs)
    names = Counter(run.folder.name for run in runs)
    return [
        replace(
            run,
            label=f"{run.label} [{run.folder}]" if labels[run.label, run.where] > 1 else run.label,
            name=run.folder.name if names[run.folder.name] == 1 else str(run.folder),
        )
        for run in runs
    ]


def baselines(runs: Sequence[Run]) -> list[tuple[Run, list[Run]]]:
    """Pair each baseline with the runs to compare with it.

    A baseline is the first run on its tasks; the others come later, are of the same environment,
    and share a task with it.
    """
    found: list[tuple[Run, set[str], list[Run]]] = []
    for run in runs:
        tasks = {outcome.task_id for outcome in run.outcomes}
        for first, its, others in found:
            if first.env == run.env and not its.isdisjoint(tasks):
                others.append(run)
                break
        else:
            found.append((run, tasks, []))
    return [(first, others) for first, _, others in found]


@dataclass(frozen=True, slots=True)
class Spent:
    """The consumption of two runs, for one task. Of several attempts the mean counts."""

    tasks: int
    """The number of tasks of which both are known, episodes with an error left out."""
    first: float
    second: float
    difference: Estimate
    """Second minus first, with the paired t interval."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The comparison of two runs on the same tasks. Of several attempts the mean counts."""

    tasks: int
    """The number of tasks that both have a score for."""
    first: float
    """The first run's success rate on them."""
    second: float
    difference: Estimate
    """Second minus first, with the paired t interval."""
    drawn: Estimate | None
    """The difference with an interval over places: the bootstrap's, or of few places the t
    interval; None with only one place."""
    test: McNemar | None
    """None where there are several attempts at a task."""
    differing: float
    """The share of the tasks on which they differ."""
    detectable: float | None
    """The smallest difference that so many tasks are likely to show."""
    needed: int | None
    """Tasks that the difference that was seen is likely to show on; None: there is none."""
    tokens: Spent | None = None
    """Tokens in and out; None: of no task they are known in both."""
    cost: Spent | None = None
    """US dollars."""
    turns: Spent | None = None
    better_first: tuple[str, ...] = ()
    """The tasks of which the first solves more attempts."""
    better_second: tuple[str, ...] = ()

    def shows(self, p: float | None = None) -> bool:
        """Tell whether the runs differ: by McNemar's test, else by the difference's interval.

        Args:
            p: That test's p value if it was corrected for several comparisons.
        """
        if self.test is not None:
            return (self.test.p if p is None else p) < ALPHA
        return self.difference.low > 0 or self.difference.high < 0


def compare(
    first: Sequence[Outcome], second: Sequence[Outcome], comparisons: int = 1
) -> Paired | None:
    """Compare two runs; None if they have no task in common.

    Args:
        first: The outcomes of the one.
        second: Those of the other.
        comparisons: The number of comparisons that are made, for which the level is corrected.
    """
    one, other = _by_task(first), _by_task(second)
    common = [task for task in one if task in other]
    if not common:
        return None
    before = [_rate(one[task]) for task in common]
    after = [_rate(other[task]) for task in common]
    places = [one[task][0].place for task in common]
    changes = [b - a for a, b in zip(before, after, strict=True)]
    seen = difference(before, after, most=1.0)
    # At least the difference itself, which rounding might put above it.
    differing = max(math.fsum(map(abs, changes)) / len(common), abs(seen.value))
    single = all(len(tries[task]) == 1 for tries in (one, other) for task in common)
    alpha, is_seen = ALPHA / max(1, comparisons), abs(seen.value) > 1e-12
    if single:
        smallest = detectable(len(common), differing, alpha=alpha)
        needed = paired_tasks(seen.value, differing, alpha=alpha) if is_seen else None
    else:  # the interval decides
        spread = pstdev(changes) * math.sqrt(len(common) / max(1, len(common) - 1))
        smallest = detectable_mean(len(common), spread, alpha=alpha) if spread else None
        smallest = None if smallest is None or smallest > 1 else smallest
        needed = mean_tasks(seen.value, spread, alpha=alpha) if is_seen else None
    return Paired(
        tasks=len(common),
        first=math.fsum(before) / len(common),
        second=math.fsum(after) / len(common),
        difference=seen,
        drawn=_over_places(before, after, places),
        test=mcnemar([a == 1 for a in before], [b == 1 for b in after]) if single else None,
        differing=differing,
        detectable=smallest,
        needed=needed,
        tokens=_spent(one, other, lambda outcome: total((outcome.tokens_in, outcome.tokens_out))),
        cost=_spent(one, other, lambda outcome: outcome.cost),
        turns=_spent(one, other, lambda outcome: outcome.turns),
        better_first=tuple(task for task, more in zip(common, changes, strict=True) if more < 0),
        better_second=tuple(task for task, more in zip(common, changes, strict=True) if more > 0),
    )


def _over_places(
    before: Sequence[float], after: Sequence[float], places: Sequence[str]
) -> Estimate | None:
    """Return the difference with an interval over places: of few, the bootstrap's is too narrow."""
    if (count := len(set(places))) < 2:
        return None
    if count < FEW_CLUSTERS:
        return difference(before, after, places, most=1.0)
    return bootstrap([b - a for a, b in zip(before, after, strict=True)], places)


def _spent(
    one: Mapping[str, Sequence[Outcome]],
    other: Mapping[str, Sequence[Outcome]],
    take: Callable[[Outcome], float | None],
) -> Spent | None:
    before, after = ({task: _mean(map(take, run[task])) for task in run} for run in (one, other))
    pairs = [
        (known, now)
        for task, known in before.items()
        if known is not None and (now := after.get(task)) is not None
    ]
    if not pairs:
        return None
    first, second = zip(*pairs, strict=True)
    return Spent(
        tasks=len(pairs),
        first=math.fsum(first) / len(pairs),
        second=math.fsum(second) / len(pairs),
        difference=difference(first, second),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _by_task(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.failed:
            found.setdefault(outcome.task_id, []).append(outcome)
    return found


def _rate(outcomes: Sequence[Outcome]) -> float:
    """Return the mean over attempts at a task; all forks of one, together, count once."""
    return summarize(outcomes).success_rate or 0.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of a dataset that a run covers."""

    tasks: int
    """The number of tasks in the dataset."""
    epochs: int
    planned: int
    """Episodes that were asked for."""
    scored: int
    errored: int
    missing: int
    """Episodes that were asked for and did not take place (yet)."""
    excluded: int
    """Tasks that were left out by name."""
    coverage: float | None
    """Scored episodes, of those that the whole dataset makes."""


def covered(manifest: Mapping[str, Any], outcomes: Sequence[Outcome]) -> Coverage:
    """Compute the share of its dataset that a run covers, by its ``run.json``."""
    tasks = int(manifest.get("dataset", {}).get("tasks", 0))
    excluded = manifest.get("excluded", {})
    settings = [session.get("settings", {}) for session in manifest.get("sessions", [])]
    epochs = max([int(s.get("epochs", 1)) for s in settings], default=1)
    asked = [
        _asked(setting, tasks, excluded) * int(setting.get("epochs", 1)) for setting in settings
    ]
    errored = sum(outcome.failed for outcome in outcomes)
    planned = max([*asked, len(outcomes)])
    return Coverage(
        tasks=tasks,
        epochs=epochs,
        planned=planned,
        scored=len(outcomes) - errored,
        errored=errored,
        missing=planned - len(outcomes),
        excluded=len(excluded),
        coverage=(len(outcomes) - errored) / (tasks * epochs) if tasks else None,
    )


def _asked(settings: Mapping[str, Any], tasks: int, excluded: Mapping[str, str]) -> int:
    """Count the tasks that a session was to run."""
    chosen = settings.get("tasks")
    count = len(set(chosen) - set(excluded)) if chosen else tasks - len(excluded)
    return min(count, settings.get("limit") or count)


@dataclass(frozen=True, slots=True)
class Judging:
    """Counts of a judge's work in some episodes."""

    model: str
    asked: int
    """Episodes that it was asked about."""
    same: int
    """Episodes that are a success by its word."""
    split: int
    """Episodes in which its votes, or the two orders of one, disagreed."""
    steered: int
    """Episodes in which it would have called a decoy the same, so that it was not believed."""
    malformed: int
    """Malformed replies."""
    success_by_execution: float | None
    """The rate without its word; None: no episode has a score."""
    tokens_in: int | None
    """Of all episodes, those with errors too; None: not recorded."""
    tokens_out: int | None
    cost: float | None
    """US dollars, likewise."""


def judge_of(manifest: Mapping[str, Any], outcomes: Iterable[Outcome] = ()) -> str | None:
    """Return the model that judged a run, by its record or else by its episodes."""
    recorded = manifest.get("env", {}).get("judge", {}).get("model")
    found = (outcome.judged.model for outcome in outcomes if outcome.judged is not None)
    return str(recorded) if recorded else next(found, None)


def rate_name(judge: str | None) -> str:
    """Return the name of a run's rate of success."""
    return "success" if judge is None else f"success (judged by {judge})"


def with_judge(label: str, judge: str | None) -> str:
    """Return the name of an agent or a run that has such a rate."""
    return label if judge is None else f"{label}, judged by {judge}"


def judging(judge: str | None, outcomes: Sequence[Outcome]) -> Judging | None:
    """Count a judge's work in a run; None without a judge."""
    if judge is None:
        return None
    judged = [outcome.judged for outcome in outcomes if outcome.judged is not None]
    scored = [outcome for outcome in outcomes if not outcome.failed]
    alone = sum(o.success and not (o.judged is not None and o.judged.same) for o in scored)
    return Judging(
        model=judge,
        asked=sum(one.asked for one in judged),
        same=sum(one.same for one in judged),
        split=sum(one.split for one in judged),
        steered=sum(one.steered for one in judged),
        malformed=sum(one.malformed for one in judged),
        success_by_execution=alone / len(scored) if scored else None,
        tokens_in=total(one.tokens_in for one in judged),
        tokens_out=total(one.tokens_out for one in judged),
        cost=total(one.cost for one in judged),
    )


def as_data(statistics: Statistics, judge: str | None) -> dict[str, Any]:
    """Return statistics as plain data; those that depend on a judge have names of their own."""
    return {
        f"judged_{name}" if judge is not None and name.startswith(_JUDGED) else name: value
        for name, value in asdict(statistics).items()
    }
