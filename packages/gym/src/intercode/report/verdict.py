"""The first lines of a report: facts about the runs, and verdicts on which agent is better.

`BaselineComparison` compares runs with a baseline. `verdicts`, `facts` and `warnings` describe runs
and comparisons in sentences. The sentences are the same in the terminal, in Markdown and on the
HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from intercode.evaluate.comparison import holm
from intercode.evaluate.manifest_diff import ManifestDifference, differences, find_version_drift
from intercode.evaluate.statistics import IntervalEstimate
from intercode.evaluate.summary import summarize
from intercode.registry import NOTEBOOK
from intercode.report.runs import PairedRunComparison, RecordedRun, baselines, compare, rate_name
from intercode.report.tables import (
    Link,
    ReportTable,
    format_value,
    interval,
    known_interval,
    pair_tables,
)
from intercode.spec import recorded_options
from intercode_sandbox.units import format_count, format_names

_COMPARED_ON_PURPOSE = ("agent", "seed")
_MAX_AGENTS = 3
"""The maximum number of agents that a title names."""


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on a run or a pair of runs: who is better, by how much, and how certainly."""

    headline: str
    detail: str
    kind: Literal["rate", "better", "worse", "open"]
    """``rate``: the verdict describes a single run. ``better`` or ``worse``: the second run is
    significantly better or worse than the first. ``open``: no difference is detected."""
    links: tuple[tuple[str, Link], ...] = ()
    """Texts for links in the viewer, each with a selection of episodes or tasks."""
    pair: tuple[str, str] | None = None
    """The names of the baseline and of the run that is compared with it; None: a single run."""
    difference: tuple[float, ...] = ()
    """The success rate of the run minus that of its baseline, then both ends of the interval, if
    they are known."""
    p_value: float | None = None
    """The p value of McNemar's test, corrected for several comparisons; None: no test."""


class BaselineComparison:
    """The comparison of runs with a baseline.

    Args:
        baseline: The baseline: see `intercode.report.runs.baselines`.
        later_runs: The runs to compare with it.
    """

    def __init__(self, baseline: RecordedRun, later_runs: Sequence[RecordedRun]) -> None:
        self.first = baseline
        self.differences_by_folder: dict[str, list[ManifestDifference]] = {
            str(run.folder): differences(baseline.manifest, run.manifest, _COMPARED_ON_PURPOSE)
            for run in later_runs
        }
        self.version_differences: dict[str, list[ManifestDifference]] = {
            folder: []
            if self._is_rescoring(run)
            else find_version_drift(self.differences_by_folder[folder])
            for run in later_runs
            if (folder := str(run.folder))
        }
        """Folder of a run → versions of rules or datasets that differ from the baseline's. A run
        with such differences is not compared. If one of the two runs rescores the other, the list
        is empty."""
        comparable_runs = [
            run for run in later_runs if not self.version_differences[str(run.folder)]
        ]
        self.pairs = [
            (run, comparison)
            for run in comparable_runs
            if (comparison := compare(baseline.outcomes, run.outcomes, len(comparable_runs)))
        ]

    def _is_rescoring(self, run: RecordedRun) -> bool:
        """Return whether a run is the rescored baseline, or the baseline is the rescored run.

        Such runs have different grading rules on purpose, so they are compared in spite of them.
        """
        run_pairs = ((self.first, run), (run, self.first))
        return any(
            (origin := (rescored_run.manifest.get("rescored") or {}).get("run")) is not None
            and Path(origin) == origin_run.folder.absolute()
            for rescored_run, origin_run in run_pairs
        )

    def _repr_html_(self) -> str:
        """Return the view of the comparison in a notebook."""
        html: str = NOTEBOOK.get("baseline")(self)
        return html

    def tables(self) -> list[ReportTable]:
        """Return the tables that compare the runs task by task."""
        return pair_tables(self.first, self.pairs)

    def verdicts(self) -> Iterator[RunVerdict]:
        """Yield a verdict on each run that is compared with the baseline.

        If several runs are compared, their p values are corrected by Holm's method.
        """
        corrected_values = iter(
            holm([comparison.test.p for _, comparison in self.pairs if comparison.test])
        )
        test_count = sum(comparison.test is not None for _, comparison in self.pairs)
        for run, comparison in self.pairs:
            p_value = next(corrected_values) if comparison.test else None
            yield _pair_verdict(self.first, run, comparison, p_value, test_count)


def compare_with_baselines(runs: Sequence[RecordedRun]) -> list[BaselineComparison]:
    """Compare each run with its baseline: see `intercode.report.runs.baselines`."""
    return [
        BaselineComparison(baseline, later_runs)
        for baseline, later_runs in baselines(runs)
        if later_runs
    ]


def verdicts(
    runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison]
) -> list[RunVerdict]:
    """Return the verdicts of a report: on each compared pair of runs, then on each other run."""
    paired_ids = {
        id(run)
        for comparison in comparisons
        for run in (comparison.first, *(r for r, _ in comparison.pairs))
    }
    single_verdicts = [_run_verdict(run) for run in runs if id(run) not in paired_ids]
    return [
        *(verdict for comparison in comparisons for verdict in comparison.verdicts()),
        *single_verdicts,
    ]


def title(runs: Sequence[RecordedRun]) -> str:
    """Return the title of a report: the environments, and the agents.

    The models of the agents are added if they differ.
    """
    env_labels = list(dict.fromkeys(run.env_label for run in runs))
    models = {run.model for run in runs if run.model}
    suffix = f" ({models.pop()})" if len(models) == 1 and len(runs) > 1 else ""
    agents = list(dict.fromkeys(run.label.replace(suffix, "") for run in runs))
    return f"{', '.join(env_labels)}: {format_names(agents, _MAX_AGENTS)}" if runs else "no runs"


def facts(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Return facts about all runs together: their times, models and versions of InterCode.

    Returns:
        ``made``, ``model`` and ``version`` → text, without those that are not known.
    """
    sessions = [session for run in runs for session in run.manifest.get("sessions") or ()]
    times = sorted(
        str(session[name]) for session in sessions for name in _TIMES if session.get(name)
    )
    time_range = (
        "" if not times else times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"
    )
    report_facts = {
        "made": time_range.replace("T", " ").replace("Z", " UTC"),
        "model": ", ".join(dict.fromkeys(run.model for run in runs if run.model)),
        "version": ", ".join(dict.fromkeys(filter(None, map(_version, sessions)))),
    }
    return {name: text for name, text in report_facts.items() if text}


def warnings(runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison]) -> list[str]:
    """Return warnings about the runs, which limit the conclusions from a report.

    A warning may have several lines: the first is a summary, and the others give details.
    """
    unfinished_notes = [
        f"{run.folder}: {run.unfinished_note}" for run in runs if run.unfinished_note
    ]
    return [
        *unfinished_notes,
        *(warning for comparison in comparisons for warning in describe_drift(comparison)),
    ]


def describe_drift(comparison: BaselineComparison) -> list[str]:
    """Return warnings about conditions in which runs differ from their baseline.

    Runs with the same differences share a warning.
    """
    folders_by_text: dict[str, list[str]] = {}
    for folder, run_differences in comparison.differences_by_folder.items():
        if run_differences:
            version_differences = comparison.version_differences[folder]
            run_differences = [
                *version_differences,
                *(
                    run_difference
                    for run_difference in run_differences
                    if run_difference not in version_differences
                ),
            ]
            lines = [
                f"  {run_difference.what}: {_format_value(run_difference.recorded)} and "
                f"{_format_value(run_difference.now)}"
                for run_difference in run_differences[:_MAX_LINES]
            ]
            if len(run_differences) > _MAX_LINES:
                lines.append(
                    f"  … and {len(run_differences) - _MAX_LINES} more (--json has them all)"
                )
            secret = recorded_options(comparison.first.manifest).get("secret")
            if secret is not None and any(
                run_difference.what == "dataset.digest" for run_difference in run_differences
            ):
                lines.append("  each run draws its own flags, unless --secret is the same")
            advice = dict.fromkeys(difference.advice for difference in version_differences)
            lines += [f"  not compared, as versions differ: {text}" for text in advice]
            folders_by_text.setdefault("\n".join(lines), []).append(folder)
    return [
        f"{comparison.first.folder} and {', '.join(folders)} differ in their "
        f"conditions:\n{difference_text}"
        for difference_text, folders in folders_by_text.items()
    ]


_TIMES = ("started", "finished")
_MAX_LINES = 10
"""The maximum number of differences that a warning lists."""
_DIGEST = 32
"""The minimum length of a hexadecimal text that counts as a digest. A warning shows only the first
12 digits of a digest."""


def _version(session: dict[str, Any]) -> str:
    versions = session.get("versions") or {}
    commit = str(versions.get("commit", ""))[:12]
    intercode_version = versions.get("intercode")
    return (
        f"intercode {intercode_version}{f' ({commit})' if commit else ''}"
        if intercode_version
        else ""
    )


def _format_value(value: object) -> str:
    text = "nothing" if value is None else str(value)
    is_digest = len(text) >= _DIGEST and not set(text) - set("0123456789abcdef")
    return f"{text[:12]}…" if is_digest else text


def _run_verdict(run: RecordedRun) -> RunVerdict:
    stats = summarize(run.outcomes)
    rate, ends = format_value(stats.success_rate, "rate"), format_value(interval(stats), "interval")
    run_link = {"run": run.name}
    links: list[tuple[str, Link]] = [
        (
            f"{format_count(stats.episodes - stats.successes, 'episode')} not solved",
            {**run_link, "state": _BAD},
        )
    ]
    if stats.errors:
        links.append((format_count(stats.errors, "error"), {**run_link, "state": "error"}))
    remarks = [f"95 % interval {ends}"]
    remarks += (
        ["the agent was shown gold, so this does not measure ability"] if run.shown_gold else []
    )
    remarks += [f"{format_count(stats.errors, 'error')}, not counted"] if stats.errors else []
    if run.coverage.missing:
        remarks.append(f"{run.coverage.missing} of {run.coverage.planned} episodes are missing")
    metric = rate_name(run.judge)
    return RunVerdict(
        f"{run.label} in {run.env_label}: {metric} {rate} of "
        f"{format_count(stats.episodes, 'episode')}",
        "; ".join(remarks),
        "rate",
        tuple(links),
    )


_BAD = "failed"
"""The value of the viewer's filter ``state`` for episodes without success and without an error."""


def _pair_verdict(
    baseline: RecordedRun,
    run: RecordedRun,
    comparison: PairedRunComparison,
    p_value: float | None,
    test_count: int,
) -> RunVerdict:
    gain, tasks = comparison.difference.value, format_count(comparison.tasks, "task")
    points = format_value(abs(gain), "size")
    if comparison.is_significant(p_value):
        kind: Literal["better", "worse", "open"] = "better" if gain > 0 else "worse"
        candidate, alternative = (run, baseline) if gain > 0 else (baseline, run)
        headline = f"{candidate.label} is better than {alternative.label} by {points} points"
    elif gain == 0 and not (comparison.better_first or comparison.better_second):
        kind, headline = "open", f"{run.label} and {baseline.label} solve the same"
    else:
        kind = "open"
        headline = f"No difference between {run.label} and {baseline.label} is detected"
    rates, estimate = (comparison.second, comparison.first), comparison.difference
    if kind == "worse":  # the sentence has the better run first, so the sign is reversed
        rates, estimate = (
            (comparison.first, comparison.second),
            IntervalEstimate(-gain, -estimate.high, -estimate.low),
        )
    clauses = [
        f"{baseline.env_label}, {tasks}: "
        f"{' against '.join(format_value(rate, 'rate') for rate in rates)}"
    ]
    clauses.append(f"{format_value(estimate.value, 'points')} points{_ends(estimate)}")
    if comparison.test is not None and p_value is not None:
        correction = f", corrected for {test_count} comparisons" if test_count > 1 else ""
        text = format_value(p_value, "p")
        clauses.append(f"p {text if text.startswith('<') else f'= {text}'} (McNemar{correction})")
    if kind == "open":
        if comparison.detectable is not None:
            clauses.append(
                f"detectable difference {format_value(comparison.detectable, 'size')} points"
            )
        if comparison.needed is not None:
            clauses.append(f"tasks needed for the observed one {comparison.needed:,}")
    if runs_shown_gold := [
        candidate.label for candidate in (baseline, run) if candidate.shown_gold
    ]:
        clauses.append(
            f"{' and '.join(runs_shown_gold)} was shown gold, so this does not measure ability"
        )
    pair_link = {"first": baseline.name, "second": run.name}
    comparison_sides = (
        ("first", comparison.better_first, baseline),
        ("second", comparison.better_second, run),
    )
    links = [
        (
            f"{format_count(len(better_task_ids), 'task')} better by {better_run.label}",
            {**pair_link, "only": side},
        )
        for side, better_task_ids, better_run in comparison_sides
        if better_task_ids
    ]
    return RunVerdict(
        headline,
        "; ".join(clauses),
        kind,
        tuple(links),
        (baseline.name, run.name),
        (gain, *(known_interval(comparison.difference) or ())),
        p_value,
    )


def _ends(estimate: IntervalEstimate) -> str:
    ends = known_interval(estimate)
    return f" (95 % interval {format_value(ends, 'range')})" if ends else ""
