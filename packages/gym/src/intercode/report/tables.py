"""The tables of reports, as plain values.

`intercode.report.text` formats a table as text, and `intercode.report.viewer_overview` prepares it
for the HTML page. The class `ReportTable` comes first in this module, then the tables about one
run. The tables that compare several runs, side by side and task by task, come last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from intercode.evaluate.comparison import ALPHA, POWER, holm
from intercode.evaluate.statistics import FEW_CLUSTERS, IntervalEstimate
from intercode.evaluate.summary import (
    Statistics,
    by_attempts,
    by_failure_mode,
    by_image_or_database,
    by_level,
    by_tag,
    by_turn,
    errors_by_type,
    spending_by_outcome,
    summarize,
    total,
)
from intercode.failure_modes import FAILURE_MODES
from intercode.records import LEVELS, Outcome
from intercode.report.runs import (
    JudgeCounts,
    PairedRunComparison,
    RecordedRun,
    add_judge,
    count_judgements,
    rate_name,
)
from intercode_sandbox.units import format_count

ALL_GROUP = "all"
_MEANS = "Reward, turns and seconds are means over the scored episodes."
_MAX_ENTRIES = 8
"""The maximum number of entries in a list within the table of settings."""

Kind = Literal[
    "text",
    "words",
    "count",
    "rate",
    "interval",
    "estimate",
    "points",
    "size",
    "range",
    "number",
    "precise",
    "p",
    "money",
    "gain",
    "paid",
]
"""The kind of the values in a column. The kind determines the format of the values.

- ``text`` is left-aligned only in the first column, ``words`` in any column.
- ``rate`` is a share from 0 to 1; ``interval`` is a pair of rates.
- ``points`` is a difference of rates with its sign; ``range`` is a pair of such differences.
- ``size`` is a difference of rates without a sign.
- ``estimate`` is a rate, followed by both ends of its interval.
- ``gain`` is a difference of numbers, and ``paid`` a difference of dollars, both with a sign.

In any column, None stands for an unknown value."""
Row = tuple[Any, ...]
_Column = tuple[str, Kind, Callable[[Any], Any]]
Link = Mapping[str, str]
"""A selection of episodes in the viewer: name of a filter → its value."""
_DIGITS = {"number": 1, "precise": 3, "money": 4}


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report: columns, and rows of values."""

    title: str
    columns: tuple[tuple[str, Kind], ...]
    """Name and kind of each column."""
    rows: tuple[Row, ...]
    note: str = ""
    """Remarks for the reader, each on a line."""
    links: tuple[Link | Sequence[Link | None] | None, ...] = ()
    """The selection of episodes that each row describes, or a selection for each cell of the row.
    An empty tuple: the table has no selections."""

    def cells(self) -> list[list[str]]:
        """Return the rows, in which each value is formatted as text."""
        kinds = [kind for _, kind in self.columns]
        return [[format_value(v, k) for v, k in zip(row, kinds, strict=True)] for row in self.rows]

    @property
    def left_count(self) -> int:
        """The number of left-aligned columns before the first right-aligned column."""
        flush = [kind == "words" for _, kind in self.columns]
        flush[0] |= self.columns[0][1] == "text"
        return [*flush, False].index(False)


def _table(
    title: str,
    records: Iterable[Any],
    columns: Sequence[_Column],
    note: str = "",
    link: Callable[[Any], Link | Sequence[Link | None] | None] = lambda item: None,
) -> ReportTable:
    """Return a table with a row for each record.

    Args:
        title: The title.
        records: The objects that the rows describe.
        columns: For each column its name, its kind, and a function from a record to the value.
        note: Remarks for the reader.
        link: A function from a record to the selection of episodes that the row describes.
    """
    records = list(records)
    rows = tuple(tuple(get(record) for _, _, get in columns) for record in records)
    head = tuple((name, kind) for name, kind, _ in columns)
    return ReportTable(title, head, rows, note, tuple(map(link, records)))


def format_value(value: Any, kind: Kind) -> str:
    """Return a value as formatted text; ``-`` if the value is unknown."""
    if value is None:
        return "-"
    match kind:
        case "interval":
            return f"{100 * value[0]:.1f} - {100 * value[1]:.1f} %"
        case "estimate":
            return f"{format_value(value[0], 'rate')} ({format_value(value[1:], 'interval')})"
        case "range":
            return f"{format_value(value[0], 'points')} to {format_value(value[1], 'points')}"
        case "rate":
            return f"{100 * value:.1f} %"
        case "points":
            text = f"{100 * value:+.1f}"
            return text[1:] if text[1:] == "0.0" else text
        case "size":
            return f"{100 * value:.1f}"
        case "count":
            return f"{value:,}"
        case "gain" | "paid":
            return f"{value:+,.{1 if kind == 'gain' else 4}f}"
        case "p":
            return "< 0.001" if value < 0.001 else f"{value:.3f}"
        case "number" | "precise" | "money":
            return f"{value:,.{_DIGITS[kind]}f}"
    return str(value)


def interval(stats: Statistics) -> tuple[float, float] | None:
    """Return the 95 % interval of the success rate; None: not known."""
    return _pair(stats.success_low, stats.success_high)


def _clustered_interval(stats: Statistics) -> tuple[float, float] | None:
    """Return the 95 % interval of the success rate with images or databases as clusters."""
    return _pair(stats.clustered_low, stats.clustered_high)


def _pair(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def group_table(
    title: str,
    statistics_by_name: Mapping[str, Statistics],
    note: str = "",
    rate: str = "success",
    link: Callable[[str], Link | None] = lambda name: None,
) -> ReportTable:
    """Return a table with a line for each group of episodes.

    Args:
        title: The table's title.
        statistics_by_name: The statistics of each group, by its name.
        note: The table's note.
        rate: The name of the success rate, from `intercode.report.runs.rate_name`.
        link: A function from a group's name to the selection of its episodes.
    """
    columns: list[_Column] = [
        ("", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1].episodes),
        (rate, "rate", lambda item: item[1].success_rate),
        ("95 % interval", "interval", lambda item: interval(item[1])),
        ("reward", "precise", lambda item: item[1].mean_reward),
        ("turns", "number", lambda item: item[1].mean_turns),
        ("seconds", "precise", lambda item: item[1].mean_seconds),
        ("errors", "count", lambda item: item[1].errors),
    ]
    return _table(title, statistics_by_name.items(), columns, note, lambda item: link(item[0]))


def success_table(
    outcomes: Sequence[Outcome],
    judge: str | None,
    gold_labels: Iterable[str],
    link: Callable[[str], Link | None] = lambda name: None,
) -> ReportTable:
    """Return the table of a run's success, with remarks on the reliability of the numbers.

    Args:
        outcomes: The run's outcomes.
        judge: The judge's model; None: no judge.
        gold_labels: The label of the run's agent if the agent received gold.
        link: A function from a group's name to the selection of its episodes.
    """
    statistics, sentence = summarize(outcomes), judge_sentence(count_judgements(judge, outcomes))
    lines = [_MEANS, *statistics.remarks(), *filter(None, [sentence])]
    note = "\n".join(lines) + _shown_gold(gold_labels)
    return group_table("Success", {ALL_GROUP: statistics}, note, rate_name(judge), link)


def run_tables(run: RecordedRun, tags: int | None = None) -> list[ReportTable]:
    """Return the tables of one run, except those of `error_tables` and `settings_table`.

    Args:
        run: The run.
        tags: The maximum number of tags, the most frequent first; None: all tags.
    """
    outcomes, overall_statistics = run.outcomes, summarize(run.outcomes)
    rate, judge_counts = rate_name(run.judge), count_judgements(run.judge, outcomes)
    run_link = {"run": run.name}
    tables = [
        success_table(outcomes, run.judge, [run.label] * run.shown_gold, lambda name: run_link)
    ]
    tables.append(_coverage(run, overall_statistics))
    tables += judge_tables({run.judge or "": judge_counts})
    if levels := by_level(outcomes):
        level_table = group_table(
            "By difficulty", levels, "", rate, lambda name: {**run_link, "level": name}
        )
        tables.append(level_table)
    if overall_statistics.clusters:
        note, statistics_by_cluster = (
            _cluster_note(overall_statistics),
            by_image_or_database(outcomes),
        )
        cluster_table = group_table(
            "By image or database",
            statistics_by_cluster,
            note,
            rate,
            lambda name: {**run_link, "place": name},
        )
        tables.append(cluster_table)
    tables += _attempts(run)
    if any(outcome.turns > 1 for outcome in outcomes):
        tables.append(_turns(run))
    if mode_counts := by_failure_mode(outcomes):
        tables.append(_failure_modes(run, mode_counts))
    if outcomes:
        tables.append(_spending_table(run))
    if tag_statistics := list(by_tag(outcomes).items()):
        note = (
            ""
            if tags is None or len(tag_statistics) <= tags
            else format_count(len(tag_statistics) - tags, "more tag")
        )
        tag_statistics = tag_statistics[:tags]
        tag_table = group_table(
            "By tag", dict(tag_statistics), note, rate, lambda name: {**run_link, "tag": name}
        )
        tables.append(tag_table)
    return tables


def _attempts(run: RecordedRun) -> list[ReportTable]:
    columns: list[_Column] = [
        ("k", "count", attrgetter("k")),
        ("tasks", "count", attrgetter("tasks")),
        ("pass@k", "rate", attrgetter("pass_at_k")),
        ("pass^k", "rate", attrgetter("pass_hat_k")),
    ]
    note = "pass@k: at least one of k attempts succeeds. pass^k: all of them do."
    attempt_rates = by_attempts(run.outcomes)
    title, run_link = add_judge("Several attempts", run.judge), {"run": run.name}
    return (
        [_table(title, attempt_rates, columns, note, lambda item: run_link)]
        if attempt_rates
        else []
    )


def _turns(run: RecordedRun) -> ReportTable:
    columns: list[_Column] = [
        ("turns", "count", lambda point: point[0]),
        (rate_name(run.judge), "rate", lambda point: point[1].value),
        ("95 % interval", "interval", lambda point: (point[1].low, point[1].high)),
    ]
    run_link = {"run": run.name, "sort": "turns"}
    title, points = "Success within a number of turns", enumerate(by_turn(run.outcomes), 1)
    return _table(title, points, columns, "", lambda item: run_link)


def _failure_modes(run: RecordedRun, mode_counts: Mapping[str, int]) -> ReportTable:
    unsolved_count = sum(not outcome.failed and not outcome.success for outcome in run.outcomes)
    columns: list[_Column] = [
        ("", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1]),
        ("of those not solved", "rate", lambda item: item[1] / unsolved_count),
        ("", "words", lambda item: FAILURE_MODES[item[0]]),
    ]
    run_link = {"run": run.name}
    note = "An episode can have several of them, or none."
    return _table("What went wrong", mode_counts.items(), columns, note, lambda item: run_link)


def _spending_table(run: RecordedRun) -> ReportTable:
    names = ("episodes", "turns", "invalid")
    columns: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        *((name, "count") for name in names),
        *((name, "number") for name in ("seconds", "in actions", "in replies")),
        *((name, "count") for name in ("tokens in", "tokens out")),
        ("dollars", "money"),
    )
    totals_by_outcome = spending_by_outcome(run.outcomes)
    rows = tuple((name, *astuple(totals)) for name, totals in totals_by_outcome.items())
    links = tuple({"run": run.name, "state": name} for name in totals_by_outcome)
    return ReportTable("Consumption by outcome", columns, rows, "All columns are sums.", links)


_COVERAGE: Sequence[_Column] = (
    ("scored", "count", lambda item: item[0].scored),
    ("errors", "count", lambda item: item[0].errored),
    ("missing", "count", lambda item: item[0].missing),
    ("excluded tasks", "count", lambda item: item[0].excluded),
    ("coverage", "rate", lambda item: item[0].coverage),
    ("ended-by-agent", "count", lambda item: item[1].outcomes["ended-by-agent"]),
    ("restarts", "count", lambda item: item[1].restarts),
    ("invalid actions", "rate", lambda item: item[1].invalid_rate),
    ("not executed", "rate", lambda item: item[1].unexecuted_rate),
)


def _coverage(run: RecordedRun, statistics: Statistics) -> ReportTable:
    coverage = run.coverage
    note = f"{format_count(coverage.tasks, 'task')} in the dataset"
    note += "." if coverage.epochs == 1 else f", {coverage.epochs} attempts at each."
    if statistics.reward_low is not None and statistics.reward_high is not None:
        note += (
            f" Mean reward {statistics.mean_reward:.3f}, 95 % interval "
            f"{statistics.reward_low:.3f} - {statistics.reward_high:.3f}."
        )
    run_link = {"run": run.name}
    return _table("Coverage", [(coverage, statistics)], _COVERAGE, note, lambda item: run_link)


def _cluster_note(statistics: Statistics) -> str:
    ends = format_value(_clustered_interval(statistics), "interval")
    text = f"Success with these {statistics.clusters} as clusters: {ends}."
    if statistics.few_clusters:
        text += f" They are fewer than {FEW_CLUSTERS}: the interval is likely to be too narrow."
    return text


def _shown_gold(labels: Iterable[str]) -> str:
    """Return a line with the labels of agents that received gold; empty if there are none."""
    names = dict.fromkeys(labels)
    return f"\nShown gold: {', '.join(names)}." if names else ""


def judge_tables(counts_by_name: Mapping[str, JudgeCounts | None]) -> list[ReportTable]:
    """Return a table about the work of judges, or no table if no run had a judge.

    Args:
        counts_by_name: Name of a row → numbers about the judge; None: the run had no judge.
    """
    column_kinds: dict[str, Kind] = {
        "": "text",
        **dict.fromkeys(("judged", "judged equal", "disagreed", "steered", "malformed"), "count"),
        "by execution alone": "rate",
        **dict.fromkeys(("tokens in", "tokens out"), "count"),
        "dollars": "money",
    }
    note = (
        "The judge is called if the files equal gold's and the output does not. Disagreed: its "
        "votes differ, or the two orders of one vote. Steered: it accepted a decoy as equal, so "
        "its votes do not count. Malformed: replies without a verdict.\nOther tables exclude its "
        "tokens and dollars."
    )
    rows = tuple(
        (name, *astuple(counts)[1:])
        for name, counts in counts_by_name.items()
        if counts is not None
    )
    return [ReportTable("The judge", tuple(column_kinds.items()), rows, note)] if rows else []


def judge_sentence(counts: JudgeCounts | None) -> str:
    """Return a sentence about the successes that a judge decided; empty without a judge."""
    if counts is None:
        return ""
    execution_rate = format_value(counts.success_by_execution, "rate")
    return (
        f"Judged by {counts.model}: {counts.same} by its word; by execution alone {execution_rate}."
    )


def side_by_side_tables(runs: Sequence[RecordedRun]) -> list[ReportTable]:
    """Return the tables that show several runs side by side."""
    stats = [(run, summarize(run.outcomes)) for run in runs]
    return [
        _by_agent_and_environment(stats),
        *_levels(runs),
        _overview(stats),
        _table("Coverage", stats, [_RUN, *map(_adapt_column, _COVERAGE)], "", _run_link),
        *_failure_mode_tables(runs),
        _bill(stats),
        *judge_tables({_name(run): count_judgements(run.judge, run.outcomes) for run in runs}),
    ]


_Summaries = Sequence[tuple[RecordedRun, Statistics]]
_RUN: _Column = ("run", "text", lambda item: _name(item[0]))


def _run_link(item: tuple[RecordedRun, Statistics]) -> Link:
    return {"run": item[0].name}


def _name(run: RecordedRun) -> str:
    return f"{run.label}: {run.env_label}"


def _adapt_column(column: _Column) -> _Column:
    name, kind, get = column
    return name, kind, lambda item: get((item[0].coverage, item[1]))


def _by_agent_and_environment(stats: _Summaries) -> ReportTable:
    """Return a table of success rates in the form of the 2023 paper.

    Each agent has a row, and each environment a column.
    """
    env_labels = list(dict.fromkeys(run.env_label for run, _ in stats))
    cells: dict[str, dict[str, Any]] = {}
    links: dict[str, dict[str, Link]] = {}
    for run, statistics in stats:
        ends = interval(statistics)
        cells.setdefault(run.label, {})[run.env_label] = ends and (statistics.success_rate, *ends)
        links.setdefault(run.label, {})[run.env_label] = {"run": run.name}
    rows = tuple(
        (name, *(row.get(column_label) for column_label in env_labels))
        for name, row in cells.items()
    )
    head: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        *((column_label, "estimate") for column_label in env_labels),
    )
    note = "95 % intervals in brackets." + _shown_gold(
        run.label for run, _ in stats if run.shown_gold
    )
    row_links = tuple([None, *map(row.get, env_labels)] for row in links.values())
    return ReportTable("Success by agent and environment", head, rows, note, row_links)


def _levels(runs: Sequence[RecordedRun]) -> list[ReportTable]:
    """Return a table of success rates by difficulty, or no table if no task has a difficulty."""
    level_rows = [(run, row) for run in runs if (row := by_level(run.outcomes))]
    levels = [level for level in LEVELS if any(level in row for _, row in level_rows)]
    rows = tuple(
        (_name(run), *(_share(row[level]) if level in row else None for level in levels))
        for run, row in level_rows
    )
    links = tuple(
        [None, *({"run": run.name, "level": level} for level in levels)] for run, _ in level_rows
    )
    head: tuple[tuple[str, Kind], ...] = (("run", "text"), *((level, "text") for level in levels))
    return [ReportTable("Success by difficulty", head, rows, "", links)] if rows else []


def _share(statistics: Statistics) -> str:
    return f"{format_value(statistics.success_rate, 'rate')} of {statistics.episodes:,}"


def _overview(stats: _Summaries) -> ReportTable:
    columns: list[_Column] = [
        _RUN,
        ("episodes", "count", lambda item: item[1].episodes),
        ("success", "rate", lambda item: item[1].success_rate),
        ("95 % interval", "interval", lambda item: interval(item[1])),
        ("clusters", "count", lambda item: item[1].clusters),
        ("clustered interval", "interval", lambda item: _clustered_interval(item[1])),
        ("reward", "precise", lambda item: item[1].mean_reward),
        ("turns", "number", lambda item: item[1].mean_turns),
        ("seconds", "precise", lambda item: item[1].mean_seconds),
    ]
    remarks = [
        f"{run.label}: {remark}" for run, statistics in stats for remark in statistics.remarks()
    ]
    note = "\n".join([_MEANS, *remarks])
    if any(statistics.clusters for _, statistics in stats):
        note += "\nClusters are the images or databases of the tasks."
    if any(statistics.few_clusters for _, statistics in stats):
        note += f" Intervals with fewer than {FEW_CLUSTERS} of them are likely to be too narrow."
    return _table("Runs", stats, columns, note, _run_link)


def _bill(stats: _Summaries) -> ReportTable:
    columns: list[_Column] = [
        _RUN,
        ("turns", "count", lambda item: sum(outcome.turns for outcome in item[0].outcomes)),
        ("seconds", "number", lambda item: total(o.seconds for o in item[0].outcomes)),
        ("tokens in", "count", lambda item: item[1].tokens_in),
        ("tokens out", "count", lambda item: item[1].tokens_out),
        ("dollars", "money", lambda item: item[1].cost),
        ("dollars per success", "money", lambda item: _price(item[1])),
    ]
    note = "Totals include episodes that ended in an error."
    return _table("Consumption", stats, columns, note, _run_link)


def _failure_mode_tables(runs: Sequence[RecordedRun]) -> list[ReportTable]:
    """Return a table of the failure modes of several runs; no table if no episode has one."""
    counts = [(run, by_failure_mode(run.outcomes)) for run in runs]
    modes = [
        mode for mode in FAILURE_MODES if any(mode in mode_counts for _, mode_counts in counts)
    ]
    head: tuple[tuple[str, Kind], ...] = (("run", "text"), *((mode, "count") for mode in modes))
    rows = tuple(
        (_name(run), *(mode_counts.get(mode, 0) for mode in modes)) for run, mode_counts in counts
    )
    links = tuple({"run": run.name} for run in runs)
    note = "Episodes that were not solved; one can have several failure modes."
    return [ReportTable("What went wrong", head, rows, note, links)] if modes else []


def _price(statistics: Statistics) -> float | None:
    return (
        statistics.cost / statistics.successes
        if statistics.successes and statistics.cost is not None
        else None
    )


def pair_tables(
    baseline: RecordedRun, pairs: Sequence[tuple[RecordedRun, PairedRunComparison]]
) -> list[ReportTable]:
    """Return the tables that compare runs with a baseline, task by task.

    Args:
        baseline: The baseline.
        pairs: The other runs, each with its comparison.
    """
    if not pairs:
        return []
    p_values = [comparison.test.p for _, comparison in pairs if comparison.test]
    corrected_values = iter(holm(p_values))
    columns: list[_Column] = [
        (f"against {baseline.label}", "text", lambda item: item[0].label),
        ("tasks", "count", lambda item: item[1].tasks),
        ("baseline", "rate", lambda item: item[1].first),
        ("this run", "rate", lambda item: item[1].second),
        ("difference", "points", lambda item: item[1].difference.value),
        ("95 % interval", "range", lambda item: known_interval(item[1].difference)),
        ("clustered interval", "range", lambda item: known_interval(item[1].drawn)),
        ("detectable difference", "size", lambda item: item[1].detectable),
        ("tasks needed", "count", lambda item: item[1].needed),
        ("only baseline", "count", lambda item: item[1].test and item[1].test.only_first),
        ("only this run", "count", lambda item: item[1].test and item[1].test.only_second),
        ("McNemar's p", "p", lambda item: item[1].test and item[1].test.p),
    ]
    if len(p_values) > 1:  # a single test needs no correction for multiple comparisons
        columns.append(
            ("Holm's p", "p", lambda item: next(corrected_values) if item[1].test else None)
        )
    note = (
        "Differences are in points. Detectable difference: the smallest that this number of "
        f"tasks would detect ({100 * POWER:.0f} % power, level {ALPHA}). Tasks needed: to detect "
        "the observed difference."
    )
    if any(comparison.drawn and comparison.drawn.has_few_clusters for _, comparison in pairs):
        note += (
            f"\nThere are fewer than {FEW_CLUSTERS} images or databases: the intervals over them "
            "are t intervals, and may still be too narrow."
        )
    names = [name for name, _, _ in columns]

    def link(item: tuple[RecordedRun, PairedRunComparison]) -> list[Link | None]:
        links_by_column: dict[str, Link] = {
            name: {"run": item[0].name} for name in ("tasks", "this run")
        }
        links_by_column["baseline"] = {"run": baseline.name}
        pair_link = {"first": baseline.name, "second": item[0].name}
        links_by_column |= {
            "only baseline": {**pair_link, "only": "first"},
            "only this run": {**pair_link, "only": "second"},
        }
        return [None, *(links_by_column.get(name, pair_link) for name in names[1:])]

    table = _table(f"Task by task: {baseline.env_label}", pairs, columns, note, link)
    return [table, *_consumption_tables(baseline, pairs)]


def _consumption_tables(
    baseline: RecordedRun, pairs: Sequence[tuple[RecordedRun, PairedRunComparison]]
) -> list[ReportTable]:
    """Return a table that compares turns, tokens and costs of runs with those of a baseline.

    A run without known tokens is omitted. If no run remains, there is no table.
    """
    kinds: dict[str, tuple[Kind, Kind]] = {
        "turns": ("number", "gain"),
        "tokens": ("number", "gain"),
        "cost": ("money", "paid"),
    }
    rows, links = [], []
    for run, comparison in pairs:
        if comparison.tokens is None:
            continue
        pair_link = {"first": baseline.name, "second": run.name}
        for name, kind in kinds.items():
            if (consumption := getattr(comparison, name)) is None:
                continue
            value_kind, change_kind = kind
            ends = known_interval(consumption.difference)
            links.append(pair_link)
            rows.append(
                (
                    run.label,
                    "dollars" if name == "cost" else name,
                    consumption.tasks,
                    *(
                        format_value(value, value_kind)
                        for value in (consumption.first, consumption.second)
                    ),
                    format_value(consumption.difference.value, change_kind),
                    " to ".join(format_value(end, change_kind) for end in ends) if ends else "-",
                )
            )
    names = ("baseline", "this run", "difference", "95 % interval")
    columns: tuple[tuple[str, Kind], ...] = (
        (f"against {baseline.label}", "text"),
        ("measure", "words"),
        ("tasks", "count"),
        *((name, "text") for name in names),
    )
    note = "Tasks that both runs tried without an error; intervals of the paired t test."
    title = f"Consumption per task: {baseline.env_label}"
    return [ReportTable(title, columns, tuple(rows), note, tuple(links))] if rows else []


def known_interval(estimate: IntervalEstimate | None) -> tuple[float, float] | None:
    """Return the ends of an interval; None if the interval is not known.

    A single task gives an infinite interval, and equal values give one of width 0: neither says
    anything about the uncertainty.
    """
    is_known = estimate is not None and 0 < estimate.high - estimate.low < math.inf
    return (estimate.low, estimate.high) if is_known and estimate else None


def matrix(runs: Sequence[RecordedRun]) -> ReportTable:
    """Return a table of success rates and mean turns that is narrow enough for a terminal.

    Each environment has a column, and a last column covers all environments. Each agent has several
    rows. (The tables of `side_by_side_tables` are wider.)
    """
    env_labels = list(dict.fromkeys(run.env_label for run in runs))
    head: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        *((header_label, "text") for header_label in (*env_labels, ALL_GROUP)),
    )
    sizes = [
        len(
            {
                outcome.task_id
                for run in runs
                if run.env_label == column_label
                for outcome in run.outcomes
            }
        )
        for column_label in env_labels
    ]
    rows: list[Row] = [("tasks", *map(str, (*sizes, sum(sizes))))]
    for label, agent_outcomes in by_agent(runs).items():
        statistics_by_env = {
            run.env_label: summarize(run.outcomes) for run in runs if run.label == label
        }
        statistics_by_env[ALL_GROUP] = summarize(agent_outcomes)
        rows += _lines(
            label,
            [statistics_by_env.get(column_label) for column_label in (*env_labels, ALL_GROUP)],
        )
    return ReportTable("", head, tuple(rows), "Success, and mean turns of an episode.")


def by_agent(runs: Iterable[RecordedRun]) -> dict[str, list[Outcome]]:
    """Return the episodes of each agent in all environments.

    The environment is added to each task id, because two environments may have the same ids.

    Returns:
        Label of an agent → summaries of its episodes.
    """
    outcomes_by_agent: dict[str, list[Outcome]] = {}
    for run in runs:
        outcomes_by_agent.setdefault(run.label, []).extend(
            replace(outcome, task_id=f"{run.env_label}/{outcome.task_id}")
            for outcome in run.outcomes
        )
    return outcomes_by_agent


def _lines(label: str, cells: Sequence[Statistics | None]) -> Iterator[Row]:
    stats = [cell or summarize(()) for cell in cells]
    yield label, *(format_value(cell.success_rate, "rate") for cell in stats)
    ends = [interval(cell) for cell in stats]
    yield "  95 % interval", *(f"{100 * e[0]:.0f} - {100 * e[1]:.0f}" if e else "-" for e in ends)
    yield "  turns", *(format_value(cell.mean_turns, "number") for cell in stats)
    yield "  errors", *("-" if cell is None else str(cell.errors) for cell in cells)


def error_tables(run: RecordedRun) -> list[ReportTable]:
    """Return a table of the errors in a run, by type; no table if all episodes have a result."""
    message_by_type: dict[str, str] = {}
    for outcome in run.outcomes:
        if outcome.failed:
            message_by_type.setdefault(outcome.error_type or "unknown", outcome.error or "")
    columns: list[_Column] = [
        ("kind", "text", lambda item: item[0]),
        ("episodes", "count", lambda item: item[1]),
        ("first message", "words", lambda item: " ".join(message_by_type[item[0]].split())),
    ]
    counts = errors_by_type(run.outcomes).items()
    note = "Rates and means exclude errors."

    def link(item: tuple[str, int]) -> Link:
        return {"run": run.name, "state": "error", "kind": item[0]}

    return [_table("Errors", counts, columns, note, link)] if counts else []


def settings_table(run: RecordedRun) -> ReportTable:
    """Return a table of the settings, versions and times that a run's record contains."""
    rows = tuple((name, text) for name, text in _facts(run) if text)
    return ReportTable("Settings", (("", "text"), ("", "words")), rows)


def _facts(run: RecordedRun) -> Iterator[tuple[str, str]]:
    manifest = run.manifest
    env, dataset, agent = (manifest.get(name, {}) for name in ("env", "dataset", "agent"))
    yield "folder", str(run.folder)
    yield "environment", f"{env.get('env')}, protocol {env.get('protocol')}"
    yield "reward", str(env.get("reward", ""))
    yield "judge", _list_facts(env.get("judge", {}))
    yield "maximum turns", str(env.get("max_turns") or "the environment's default")
    yield "limits", _list_facts(env.get("limits", {}))
    yield "dataset", f"{dataset.get('name')}, {format_count(dataset.get('tasks', 0), 'task')}"
    yield "dataset digest", str(dataset.get("digest", ""))
    yield "history of repositories", str(env.get("history", ""))
    yield "images", _abbreviate_texts(list(env.get("images", {})))
    yield "excluded", _list_facts(manifest.get("excluded", {}))
    yield "agent", str(agent.get("name"))
    yield "agent options", _list_facts(agent.get("options", {}))
    for name, value in agent.get("language_model", {}).items():
        yield name, _list_facts(value) if isinstance(value, Mapping) else _format_setting(value)
    yield "seed", str(manifest.get("seed"))
    sessions = manifest.get("sessions", [])
    for session in sessions[-1:]:
        yield "attempts at each task", str(session.get("settings", {}).get("epochs", ""))
        yield "workers", str(session.get("settings", {}).get("workers", ""))
        yield "sandbox", str(env.get("sandbox", ""))
        yield "versions", _list_facts(session.get("versions", {}))
        yield "machine", _list_facts(session.get("host", {}))
    yield "started", str(sessions[0].get("started", "")) if sessions else ""
    yield "finished", str(sessions[-1].get("finished") or "not yet") if sessions else ""
    yield "sessions", str(len(sessions)) if len(sessions) > 1 else ""


def _list_facts(facts: Mapping[str, Any]) -> str:
    return _abbreviate_texts(
        [f"{name} {text}" for name, value in facts.items() if (text := _format_setting(value))]
    )


def _abbreviate_texts(texts: list[str]) -> str:
    remainder_texts = [f"{len(texts) - _MAX_ENTRIES} more"] if len(texts) > _MAX_ENTRIES else []
    return ", ".join(texts[:_MAX_ENTRIES] + remainder_texts)


def _format_setting(value: object) -> str:
    """Return the value of a setting as text; empty if the setting has no value."""
    return "" if value is None or value == [] or value == "" else str(value)
