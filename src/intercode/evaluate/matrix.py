"""The paper's table for one's own runs: who acts, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from intercode.evaluate.report import Statistics, summarize
from intercode.evaluate.report_runs import Run
from intercode.evaluate.table import Kind, Row, Table
from intercode.records import Outcome

ALL = "all"


def matrix(runs: Sequence[Run]) -> Table:
    """A column for each environment and one for all; for each agent a few lines.

    It is narrow enough for a terminal, where `report_tables.of_runs` is not.
    """
    places = list(dict.fromkeys(run.where for run in runs))
    head: tuple[tuple[str, Kind], ...] = (("", "text"), *((p, "text") for p in (*places, ALL)))
    sizes = {place: len(_tasks(runs, place)) for place in places}
    rows: list[Row] = [("tasks", *map(str, (*sizes.values(), sum(sizes.values()))))]
    for label, everywhere in by_agent(runs).items():
        found = {run.where: summarize(run.outcomes) for run in runs if run.label == label}
        found[ALL] = summarize(everywhere)
        rows += _lines(label, [found.get(place) for place in (*places, ALL)])
    return Table("", head, tuple(rows), "Success, and mean turns of an episode.")


def by_agent(runs: Iterable[Run]) -> dict[str, list[Outcome]]:
    """Who acted → the episodes in all environments. Tasks of one name in two are not one task."""
    found: dict[str, list[Outcome]] = {}
    for run in runs:
        found.setdefault(run.label, []).extend(
            replace(outcome, task_id=f"{run.where}/{outcome.task_id}") for outcome in run.outcomes
        )
    return found


def _tasks(runs: Iterable[Run], where: str) -> set[str]:
    return {outcome.task_id for run in runs if run.where == where for outcome in run.outcomes}


def _lines(label: str, cells: Sequence[Statistics | None]) -> list[Row]:
    """Success and its interval, turns, errors."""
    return [
        (label, *(_rate(cell) for cell in cells)),
        ("  95 % interval", *(_interval(cell) for cell in cells)),
        ("  turns", *(_turns(cell) for cell in cells)),
        ("  errors", *("-" if cell is None else str(cell.errors) for cell in cells)),
    ]


def _rate(cell: Statistics | None) -> str:
    return "-" if cell is None or cell.success_rate is None else f"{100 * cell.success_rate:.1f} %"


def _interval(cell: Statistics | None) -> str:
    if cell is None or cell.success_low is None or cell.success_high is None:
        return "-"
    return f"{100 * cell.success_low:.0f} - {100 * cell.success_high:.0f}"


def _turns(cell: Statistics | None) -> str:
    return "-" if cell is None or cell.mean_turns is None else f"{cell.mean_turns:.1f}"
