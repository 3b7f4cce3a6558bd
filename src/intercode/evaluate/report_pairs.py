"""A report's tables of runs that are held against each other, task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from intercode.evaluate.comparison import ALPHA, POWER, holm
from intercode.evaluate.report_runs import Paired, Run
from intercode.evaluate.statistics import FEW_CLUSTERS, Estimate
from intercode.evaluate.table import Kind, Row, Table


def of_pairs(first: Run, pairs: Sequence[tuple[Run, Paired]]) -> list[Table]:
    """Runs held against the first one, task by task."""
    if not pairs:
        return []
    tested = [found.test.p for _, found in pairs if found.test]
    corrected = iter(holm(tested))
    rows = tuple(
        (*_row(run, found), next(corrected) if found.test else None) for run, found in pairs
    )
    columns: tuple[tuple[str, Kind], ...] = (
        (f"against {first.label}", "text"),
        ("tasks", "count"),
        ("first", "rate"),
        ("this", "rate"),
        ("difference", "points"),
        ("95 % interval", "range"),
        ("clustered bootstrap", "range"),
        ("can show", "size"),
        ("would take", "count"),
        ("only first", "count"),
        ("only this", "count"),
        ("McNemar's p", "p"),
        ("Holm's p", "p"),
    )
    if len(tested) < 2:  # nothing to correct for
        rows, columns = tuple(row[:-1] for row in rows), columns[:-1]
    note = (
        "Differences are in points. Can show: the smallest that so many tasks show "
        f"{100 * POWER:.0f} times in a hundred (level {ALPHA}). Would take: tasks to show the one "
        "that was seen."
    )
    if any(found.drawn and found.drawn.few for _, found in pairs):
        note += (
            f"\nThe bootstrap draws fewer than {FEW_CLUSTERS} images or databases: its intervals "
            "are likely to be too narrow."
        )
    return [Table(f"Task by task: {first.where}", columns, rows, note)]


def _row(run: Run, found: Paired) -> Row:
    test = found.test
    return (
        run.label,
        found.tasks,
        found.first,
        found.second,
        found.difference.value,
        _known(found.difference),
        None if found.drawn is None else _known(found.drawn),
        found.detectable,
        found.needed,
        test and test.only_first,
        test and test.only_second,
        test and test.p,
    )


def _known(seen: Estimate) -> tuple[float, float] | None:
    """Its interval, unless one task, or tasks that are all alike, tell nothing of it."""
    return (seen.low, seen.high) if 0 < seen.high - seen.low < math.inf else None
