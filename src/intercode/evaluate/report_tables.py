"""What a report says, as tables of plain values; how they are written is another matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intercode.evaluate import judged
from intercode.evaluate.judged import in_words, judging, rate_name, with_judge
from intercode.evaluate.report import (
    Statistics,
    by_attempts,
    by_level,
    by_place,
    by_tag,
    by_turn,
    summarize,
)
from intercode.evaluate.report_runs import Run
from intercode.evaluate.spending import spending, total
from intercode.evaluate.statistics import FEW_CLUSTERS
from intercode.evaluate.table import Kind, Row, Table, clustered, groups, interval, shown
from intercode.records import LEVELS

__all__ = ["Kind", "Row", "Table", "groups", "of_run", "of_runs"]

_Summaries = Sequence[tuple[Run, Statistics]]
_MEANS = "Reward, turns and seconds are means over the scored episodes."


def of_run(run: Run, tags: int | None = None) -> list[Table]:
    """Everything about one run.

    Args:
        run: The run.
        tags: Only the most frequent ones, so many; None: all.
    """
    outcomes, statistics = run.outcomes, summarize(run.outcomes)
    rate, by_judge = rate_name(run.judge), judging(run.judge, outcomes)
    remarks = [*statistics.remarks(), *filter(None, [in_words(by_judge)])]
    note = "\n".join([_MEANS, *remarks]) + _shown_gold([run])
    tables = [groups("Success", {"all": statistics}, note, rate), _coverage(run, statistics)]
    tables += judged.tables({run.judge or "": by_judge})
    if levels := by_level(outcomes):
        tables.append(groups("By hardness", levels, rate=rate))
    if statistics.clusters:
        tables.append(groups("By place", by_place(outcomes), _clustered(statistics), rate))
    if attempts := by_attempts(outcomes):
        rows = tuple((a.k, a.tasks, a.pass_at_k, a.pass_hat_k) for a in attempts)
        columns: tuple[tuple[str, Kind], ...] = (
            ("k", "count"),
            ("tasks", "count"),
            ("pass@k", "rate"),
            ("pass^k", "rate"),
        )
        note = "pass@k: at least one of k attempts succeeds. pass^k: all of them do."
        tables.append(Table(with_judge("Several attempts", run.judge), columns, rows, note))
    if any(outcome.turns > 1 for outcome in outcomes):
        tables.append(_turns(run))
    if outcomes:
        tables.append(_spending(run))
    if named := list(by_tag(outcomes).items()):
        note = "" if tags is None or len(named) <= tags else f"{len(named) - tags} more tags"
        tables.append(groups("By tag", dict(named[:tags]), note, rate))
    return tables


def of_runs(runs: Sequence[Run]) -> list[Table]:
    """Several runs side by side."""
    stats = [(run, summarize(run.outcomes)) for run in runs]
    return [_matrix(stats), *_levels(runs), *_overviews(stats)]


def _matrix(stats: _Summaries) -> Table:
    """The paper's table: who acts, and where."""
    where = list(dict.fromkeys(run.where for run, _ in stats))
    cells: dict[str, dict[str, Any]] = {}
    for run, found in stats:
        ends = interval(found)
        cells.setdefault(run.label, {})[run.where] = ends and (found.success_rate, *ends)
    rows = tuple((name, *(row.get(place) for place in where)) for name, row in cells.items())
    head: tuple[tuple[str, Kind], ...] = (("", "text"), *((place, "estimate") for place in where))
    note = "95 % intervals in brackets." + _shown_gold([run for run, _ in stats])
    return Table("Success by agent and environment", head, rows, note)


def _shown_gold(runs: Sequence[Run]) -> str:
    """A line with the runs whose success is no measure; empty if there are none."""
    names = dict.fromkeys(run.label for run in runs if run.shown_gold)
    return f"\nShown gold: {', '.join(names)}." if names else ""


def _levels(runs: Sequence[Run]) -> list[Table]:
    """Each run by how hard the tasks are, as far as they say so."""
    found = {f"{run.label}: {run.where}": by_level(run.outcomes) for run in runs}
    levels = [level for level in LEVELS if any(level in row for row in found.values())]
    rows = tuple(
        (name, *(_of(row[level]) if level in row else None for level in levels))
        for name, row in found.items()
        if row
    )
    columns: tuple[tuple[str, Kind], ...] = (
        ("run", "text"),
        *((level, "text") for level in levels),
    )
    return [Table("Success by hardness", columns, rows)] if rows else []


def _of(found: Statistics) -> str:
    """A rate, and of how many episodes."""
    return f"{shown(found.success_rate, 'rate')} of {found.episodes:,}"


def _overviews(stats: _Summaries) -> list[Table]:
    """A line for each run: how well, of how much, for what."""
    columns: tuple[tuple[str, Kind], ...] = (
        ("run", "text"),
        ("episodes", "count"),
        ("success", "rate"),
        ("95 % interval", "interval"),
        ("clusters", "count"),
        ("clustered interval", "interval"),
        ("reward", "precise"),
        ("turns", "number"),
        ("seconds", "precise"),
    )
    rows = tuple(
        (
            f"{run.label}: {run.where}",
            found.episodes,
            found.success_rate,
            interval(found),
            found.clusters,
            clustered(found),
            found.mean_reward,
            found.mean_turns,
            found.mean_seconds,
        )
        for run, found in stats
    )
    note = "\n".join(
        [_MEANS, *(f"{run.label}: {r}" for run, found in stats for r in found.remarks())]
    )
    if any(found.clusters for _, found in stats):
        note += "\nThe clusters are the images or databases that the episodes took place in."
    if any(found.few_clusters for _, found in stats):
        note += f" Intervals with fewer than {FEW_CLUSTERS} of them are likely to be too narrow."
    covered = tuple((f"{run.label}: {run.where}", *_covered(run)) for run, _ in stats)
    return [
        Table("Runs", columns, rows, note),
        Table("Coverage", (("run", "text"), *_COVERAGE), covered),
        _bill(stats),
        *judged.tables(
            {f"{run.label}: {run.where}": judging(run.judge, run.outcomes) for run, _ in stats}
        ),
    ]


def _bill(stats: _Summaries) -> Table:
    """What each run took, all in all."""
    columns: tuple[tuple[str, Kind], ...] = (
        ("run", "text"),
        ("turns", "count"),
        ("seconds", "number"),
        ("tokens in", "count"),
        ("tokens out", "count"),
        ("dollars", "money"),
        ("a success", "money"),
    )
    rows = tuple(
        (
            f"{run.label}: {run.where}",
            sum(outcome.turns for outcome in run.outcomes),
            total(outcome.seconds for outcome in run.outcomes),
            found.tokens_in,
            found.tokens_out,
            found.cost,
            found.cost / found.successes if found.successes and found.cost is not None else None,
        )
        for run, found in stats
    )
    return Table("What it took", columns, rows, "Of all episodes, those with errors too.")


_COVERAGE: tuple[tuple[str, Kind], ...] = (
    ("scored", "count"),
    ("errors", "count"),
    ("missing", "count"),
    ("excluded tasks", "count"),
    ("coverage", "rate"),
    ("ended by the agent", "count"),
    ("restarts", "count"),
    ("invalid actions", "rate"),
    ("not executed", "rate"),
)


def _coverage(run: Run, statistics: Statistics) -> Table:
    note = f"{run.coverage.tasks} tasks in the dataset, {run.coverage.epochs} attempts at each."
    if run.coverage.epochs == 1:
        note = f"{run.coverage.tasks} tasks in the dataset."
    if statistics.reward_low is not None and statistics.reward_high is not None:
        note += (
            f" Mean reward {statistics.mean_reward:.3f}, 95 % interval "
            f"{statistics.reward_low:.3f} - {statistics.reward_high:.3f}."
        )
    return Table("Coverage", _COVERAGE, (_covered(run),), note)


def _covered(run: Run) -> Row:
    found, statistics = run.coverage, summarize(run.outcomes)
    return (
        found.scored,
        found.errored,
        found.missing,
        found.excluded,
        found.coverage,
        statistics.ended,
        statistics.restarts,
        statistics.invalid_rate,
        statistics.unexecuted_rate,
    )


def _clustered(statistics: Statistics) -> str:
    ends = shown(clustered(statistics), "interval")
    text = f"Success with these {statistics.clusters} as clusters: {ends}."
    if statistics.few_clusters:
        text += f" They are fewer than {FEW_CLUSTERS}: the interval is likely to be too narrow."
    return text


def _turns(run: Run) -> Table:
    columns: tuple[tuple[str, Kind], ...] = (
        ("turns", "count"),
        (rate_name(run.judge), "rate"),
        ("95 % interval", "interval"),
    )
    points = enumerate(by_turn(run.outcomes), 1)
    return Table(
        "Success within so many turns",
        columns,
        tuple((turn, point.value, (point.low, point.high)) for turn, point in points),
    )


def _spending(run: Run) -> Table:
    columns: tuple[tuple[str, Kind], ...] = (
        ("", "text"),
        ("episodes", "count"),
        ("turns", "count"),
        ("invalid", "count"),
        ("seconds", "number"),
        ("in actions", "number"),
        ("in replies", "number"),
        ("tokens in", "count"),
        ("tokens out", "count"),
        ("dollars", "money"),
    )
    rows = [
        (
            name,
            found.episodes,
            found.turns,
            found.invalid,
            found.seconds,
            found.action_seconds,
            found.model_seconds,
            found.tokens_in,
            found.tokens_out,
            found.cost,
        )
        for name, found in spending(run.outcomes).items()
    ]
    return Table("Where it went", columns, tuple(rows), "All are sums.")
