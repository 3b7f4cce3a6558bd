"""What a report says, as tables of plain values; how they are written is another matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from intercode.evaluate.comparison import ALPHA, POWER
from intercode.evaluate.report import (
    Statistics,
    by_attempts,
    by_level,
    by_place,
    by_tag,
    by_turn,
    summarize,
)
from intercode.evaluate.report_runs import Paired, Run
from intercode.evaluate.spending import spending
from intercode.evaluate.statistics import FEW_CLUSTERS, Estimate

Kind = Literal["text", "count", "rate", "interval", "points", "number", "precise", "money"]
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns."""

    title: str
    columns: tuple[tuple[str, Kind], ...]
    """Name and kind of each. An ``interval`` is a pair, or None."""
    rows: tuple[Row, ...]
    note: str = ""

    def cells(self) -> list[list[str]]:
        """The rows as people read them."""
        kinds = [kind for _, kind in self.columns]
        return [[_shown(v, k) for v, k in zip(row, kinds, strict=True)] for row in self.rows]


_GROUP: tuple[tuple[str, Kind], ...] = (
    ("", "text"),
    ("episodes", "count"),
    ("success", "rate"),
    ("95 % interval", "interval"),
    ("reward", "precise"),
    ("turns", "number"),
    ("seconds", "precise"),
    ("errors", "count"),
)


def groups(title: str, found: Mapping[str, Statistics], note: str = "") -> Table:
    """A line for each group of episodes."""
    return Table(title, _GROUP, tuple(_group(name, stats) for name, stats in found.items()), note)


def of_run(run: Run, tags: int | None = None) -> list[Table]:
    """Everything about one run.

    Args:
        run: The run.
        tags: Only the most frequent ones, so many; None: all.
    """
    outcomes, tables = run.outcomes, []
    statistics = summarize(outcomes)
    named = list(by_tag(outcomes).items())
    note = "" if tags is None or len(named) <= tags else f"{len(named) - tags} more tags"
    tagged = {f"  {tag}": found for tag, found in named[:tags]}
    tables.append(groups("Success", {"all": statistics, **tagged}, note))
    tables.append(_coverage(run, statistics))
    if levels := by_level(outcomes):
        tables.append(groups("By hardness", levels))
    if statistics.clusters:
        tables.append(groups("By place", by_place(outcomes), _clustered(statistics)))
    if attempts := by_attempts(outcomes):
        rows = tuple((a.k, a.tasks, a.pass_at_k, a.pass_hat_k) for a in attempts)
        columns: tuple[tuple[str, Kind], ...] = (
            ("k", "count"),
            ("tasks", "count"),
            ("pass@k", "rate"),
            ("pass^k", "rate"),
        )
        tables.append(Table("Several attempts", columns, rows))
    if any(outcome.turns > 1 for outcome in outcomes):
        tables.append(_turns(run))
    if outcomes:
        tables.append(_spending(run))
    return tables


def of_runs(runs: Sequence[Run]) -> list[Table]:
    """Several runs side by side."""
    where = list(dict.fromkeys(run.where for run in runs))
    cells: dict[str, dict[str, str]] = {}
    for run in runs:
        stats = summarize(run.outcomes)
        text = f"{_shown(stats.success_rate, 'rate')} ({_shown(_interval(stats), 'interval')})"
        cells.setdefault(run.label, {})[run.where] = text
    matrix = tuple((name, *(row.get(place, "-") for place in where)) for name, row in cells.items())
    by_run = {f"{run.label}: {run.where}": summarize(run.outcomes) for run in runs}
    head: tuple[tuple[str, Kind], ...] = (("", "text"), *((place, "text") for place in where))
    return [
        Table("Success by agent and environment", head, matrix, "95 % intervals in brackets."),
        groups("Runs", by_run),
        Table(
            "Coverage",
            (("run", "text"), *_COVERAGE),
            tuple((f"{run.label}: {run.where}", *_covered(run)) for run in runs),
        ),
    ]


def of_pairs(first: Run, pairs: Iterable[tuple[Run, Paired]]) -> list[Table]:
    """Runs held against the first one, task by task."""
    rows: list[Row] = []
    notes = []
    for run, found in pairs:
        test, seen = found.test, found.difference
        rows.append(
            (
                run.label,
                found.tasks,
                found.first,
                found.second,
                seen.value,
                _known(seen),
                None if found.drawn is None else (found.drawn.low, found.drawn.high),
                test and test.only_first,
                test and test.only_second,
                test and test.p,
            )
        )
        notes.append(f"{run.label}: {_power(found)}")
    columns: tuple[tuple[str, Kind], ...] = (
        (f"against {first.label}", "text"),
        ("tasks", "count"),
        ("first", "rate"),
        ("this", "rate"),
        ("difference", "points"),
        ("95 % interval", "interval"),
        ("clustered bootstrap", "interval"),
        ("only first", "count"),
        ("only this", "count"),
        ("McNemar's p", "precise"),
    )
    return [Table("Task by task", columns, tuple(rows), " ".join(notes))] if rows else []


def _power(found: Paired) -> str:
    text = f"on {found.tasks} tasks "
    if not found.differing:
        text += "both do the same"
    elif found.detectable is None:
        text += "no difference can be found with any certainty"
    else:
        text += (
            f"a difference of {100 * found.detectable:.1f} points is found {100 * POWER:.0f} times "
            f"in a hundred (level {ALPHA})"
        )
    if found.needed is not None:
        text += f"; the one that was seen would take {found.needed} tasks"
    return text + "."


_COVERAGE: tuple[tuple[str, Kind], ...] = (
    ("scored", "count"),
    ("errors", "count"),
    ("missing", "count"),
    ("excluded tasks", "count"),
    ("coverage", "rate"),
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
        statistics.invalid_rate,
        statistics.unexecuted_rate,
    )


def _clustered(statistics: Statistics) -> str:
    ends = (statistics.clustered_low, statistics.clustered_high)
    text = f"Success with these {statistics.clusters} as clusters: {_shown(ends, 'interval')}."
    if statistics.few_clusters:
        text += f" They are fewer than {FEW_CLUSTERS}: the interval is likely to be too narrow."
    return text


def _turns(run: Run) -> Table:
    columns: tuple[tuple[str, Kind], ...] = (
        ("turns", "count"),
        ("success", "rate"),
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
    return Table("Where it went", columns, tuple(rows))


def _group(name: str, stats: Statistics) -> Row:
    return (
        name,
        stats.episodes,
        stats.success_rate,
        _interval(stats),
        stats.mean_reward,
        stats.mean_turns,
        stats.mean_seconds,
        stats.errors,
    )


def _known(seen: Estimate) -> tuple[float, float] | None:
    """Its interval, unless one task, or tasks that are all alike, tell nothing of it."""
    return (seen.low, seen.high) if 0 < seen.high - seen.low < math.inf else None


def _interval(stats: Statistics) -> tuple[float, float] | None:
    if stats.success_low is None or stats.success_high is None:
        return None
    return stats.success_low, stats.success_high


def _shown(value: Any, kind: Kind) -> str:
    if value is None:
        return "-"
    if kind == "interval":
        return f"{100 * value[0]:.1f} - {100 * value[1]:.1f} %"
    if kind == "rate":
        return f"{100 * value:.1f} %"
    if kind == "points":
        return f"{100 * value:+.1f}"
    digits = {"number": 1, "precise": 3, "money": 4}.get(kind)
    return str(value) if digits is None else f"{value:.{digits}f}"
