"""The overview of the viewer (the web page that shows runs), as plain data.

The overview is the first screen: results, curves, verdicts, reasons of failures, and tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any
from urllib.parse import urlencode

from intercode import __version__
from intercode.evaluate.summary import by_turn, summarize
from intercode.outcomes import OUTCOMES
from intercode.report.runs import RecordedRun
from intercode.report.tables import (
    Link,
    ReportTable,
    Row,
    error_tables,
    run_tables,
    settings_table,
    side_by_side_tables,
)
from intercode.report.verdict import (
    BaselineComparison,
    RunVerdict,
    compare_with_baselines,
    facts,
    title,
    verdicts,
    warnings,
)

_ALL_PAIRS = 6
"""The maximum number of runs in one environment for which all pairs are compared. Of more runs,
each is compared only with its baseline."""
_COLUMN_FILTERS: Mapping[str, Link] = {
    "errors": {"state": "error"},
    "reward": {"sort": "reward"},
    "turns": {"sort": "-turns"},
    **{name: {"sort": "-seconds"} for name in ("seconds", "in actions", "in replies")},
    **{name: {"sort": "-tokens"} for name in ("tokens in", "tokens out")},
    **{name: {"sort": "-cost"} for name in ("dollars", "dollars per success")},
    "ended-by-agent": {"state": "ended-by-agent"},
    "restarts": {"kind": "restarted"},
    "not executed": {"kind": "no action"},
}
"""Name of a column → filter for the episodes that a number in the column describes. A number in a
table is a link to these episodes."""


def overview(
    runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison] | None = None
) -> dict[str, Any]:
    """Return the viewer's report on some runs: verdicts, tables, curves, comparisons.

    Args:
        runs: The runs, with unique names.
        comparisons: The result of `compare_with_baselines` for the runs. None: this function
            compares the runs. Runs whose agents received gold, such as the oracle, then come last.
            They are baselines only if no other run has their tasks.

    Returns:
        The report. A number that is not finite, which JSON cannot represent, is None.
    """
    if comparisons is None:
        comparisons = compare_with_baselines(sorted(runs, key=lambda run: run.shown_gold))
    sections = [("Side by side", side_by_side_tables(runs))] if len(runs) > 1 else []
    if tables := [table for entry in comparisons for table in entry.tables()]:
        sections.append(("Compared", tables))
    details = [
        (
            f"{run.label}: {run.env_label}",
            [*run_tables(run), *error_tables(run), settings_table(run)],
        )
        for run in runs
    ]
    if len(runs) == 1:
        sections, details = [("The run", details[0][1])], []
    report = {
        "title": title(runs),
        "facts": {**facts(runs), "viewer": f"intercode {__version__}"},
        "warnings": warnings(runs, comparisons),
        "verdicts": [_verdict(entry) for entry in verdicts(runs, comparisons)],
        "sections": [_section(*entry) for entry in sections],
        "details": [_section(*entry) for entry in details],
        "curves": list(_curves(runs)),
        "pairs": list(_pairs(runs, comparisons)),
        "runs": [run_facts(run) for run in runs],
        "outcomes": OUTCOMES,
    }
    return {name: _finite_data(value) for name, value in report.items()}


def _finite_data(data: Any) -> Any:
    """Return plain data in which None replaces each number that is not finite."""
    if isinstance(data, Mapping):
        return {key: _finite_data(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite_data(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def run_facts(run: RecordedRun) -> dict[str, Any]:
    """Return the facts of a run that the first screen shows, and by which lists sort and filter."""
    stats, coverage = summarize(run.outcomes), run.coverage
    tokens = (stats.tokens_in, stats.tokens_out)
    sessions = run.manifest.get("sessions") or [{}]
    return {
        "name": run.name,
        "label": run.label,
        "where": run.env_label,
        "agent": str(run.manifest.get("agent", {}).get("name", "")),
        "model": run.model,
        "env": run.env,
        "folder": str(run.folder),
        "judge": run.judge,
        "gold": run.shown_gold,
        "started": str(sessions[0].get("started") or ""),
        "finished": str(sessions[-1].get("finished") or ""),
        "tasks": coverage.planned // coverage.epochs,
        "planned": coverage.planned,
        "done": coverage.planned - coverage.missing,
        "errors": stats.errors,
        "scored": stats.episodes,
        "successes": stats.successes,
        "rate": stats.success_rate,
        "low": stats.success_low,
        "high": stats.success_high,
        "reward": stats.mean_reward,
        "turns": stats.mean_turns,
        "seconds": stats.mean_seconds,
        "tokens": None if None in tokens else sum(tokens),
        "cost": stats.cost,
    }


def _verdict(verdict: RunVerdict) -> dict[str, Any]:
    links = [[text, address(link)] for text, link in verdict.links]
    return {**asdict(verdict), "links": links}


def address(link: Link) -> str:
    """Return the address of a selection of episodes in the viewer.

    Args:
        link: The selection: name of a filter → value.

    Returns:
        The fragment of the address, without the ``#``.
    """
    view = "compare" if "second" in link else "episodes"
    # An address cannot contain a lone surrogate. The viewer's script replaces it in the same way.
    names = {name: re.sub("[\ud800-\udfff]", "\ufffd", value) for name, value in link.items()}
    return f"{view}?{urlencode(names)}"


def _section(heading: str, tables: Sequence[ReportTable]) -> dict[str, Any]:
    return {"heading": heading, "tables": [_table(table) for table in tables]}


def _table(table: ReportTable) -> dict[str, Any]:
    kinds = [kind for _, kind in table.columns]
    left_columns = [
        kind == "words" or column_index < table.left_count
        for column_index, kind in enumerate(kinds)
    ]
    links = table.links or (None,) * len(table.rows)
    return {
        "title": table.title,
        "note": table.note,
        "head": [name for name, _ in table.columns],
        "left": left_columns,
        "rows": [
            [
                [text, *(_tail(address(link) if link else None, interval))]
                for text, link, interval in zip(
                    cells, _cell_links(table, row_links), _intervals(row, kinds), strict=True
                )
            ]
            for row, cells, row_links in zip(table.rows, table.cells(), links, strict=True)
        ],
    }


def _tail(cell_link: str | None, interval: Any) -> list[Any]:
    """Return the optional elements that follow a cell's text: its link, and its interval.

    The viewer draws the interval as a picture.
    """
    return [cell_link, interval] if interval else [cell_link] if cell_link else []


def _cell_links(
    table: ReportTable, links: Link | Sequence[Link | None] | None
) -> Iterator[Link | None]:
    """Yield for each cell of a row the selection of episodes that it describes, or None.

    Args:
        table: The table.
        links: The selection of the whole row, or the selection of each cell; None: no selection.
    """
    for column_index, (name, kind) in enumerate(table.columns):
        if links is None or (column_index == 0 and kind == "text") or kind == "words":
            yield None
        elif isinstance(links, Mapping):
            column_filter = (
                {"state": "solved"} if name.startswith("success") else _COLUMN_FILTERS.get(name, {})
            )
            yield {**column_filter, **links}
        else:
            yield links[column_index]


def _intervals(row: Row, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield for each cell of a row the rate and the interval that the viewer draws, or None.

    Args:
        row: The values of the cells.
        kinds: The kind of each column.
    """
    rate: Any = None
    for value, kind in zip(row, kinds, strict=True):
        rate = value if kind == "rate" else rate
        has_interval = kind in ("interval", "estimate") and value is not None
        yield ((rate, *value) if kind == "interval" else value) if has_interval else None


def _curves(runs: Sequence[RecordedRun]) -> Iterator[dict[str, Any]]:
    """Yield the curves of each environment: the success rate of each run by number of turns.

    An agent has the same colour in all environments.
    """
    colours = {label: n for n, label in enumerate(dict.fromkeys(run.label for run in runs))}
    for env_label in dict.fromkeys(run.env_label for run in runs):
        series = [
            {
                "name": run.label,
                "colour": colours[run.label],
                "points": [[point.value, point.low, point.high] for point in points],
            }
            for run in runs
            if run.env_label == env_label and (points := by_turn(run.outcomes))
        ]
        if series:
            yield {"where": env_label, "series": series}


def _pairs(
    runs: Sequence[RecordedRun], comparisons: Sequence[BaselineComparison]
) -> Iterator[dict[str, Any]]:
    """Yield a comparison for each pair of comparable runs in the same environment.

    Of more than `_ALL_PAIRS` runs, only the pairs with the baseline are compared. A comparison has
    a verdict, tables, and the tasks of which one run solves more attempts.
    """
    compared_pairs = {
        (comparison.first.name, run.name)
        for comparison in comparisons
        for run, _ in comparison.pairs
    }
    further_comparisons = []
    for env in dict.fromkeys(run.env for run in runs):
        env_runs = [run for run in runs if run.env == env]
        if len(env_runs) <= _ALL_PAIRS:
            further_comparisons += [
                BaselineComparison(a, [b])
                for a, b in combinations(env_runs, 2)
                if (a.name, b.name) not in compared_pairs
            ]
    for comparison in (*comparisons, *further_comparisons):
        tables = comparison.tables()
        for (run, paired_result), verdict in zip(
            comparison.pairs, comparison.verdicts(), strict=True
        ):
            yield {
                "first": comparison.first.name,
                "second": run.name,
                "verdict": _verdict(verdict),
                "better": {
                    "first": paired_result.better_first,
                    "second": paired_result.better_second,
                },
                "tables": [_table(_filter_table(table, run)) for table in tables],
            }


def _filter_table(table: ReportTable, run: RecordedRun) -> ReportTable:
    """Return a table of comparisons without the rows about other runs than `run`."""
    entries = []
    for row, links in zip(table.rows, table.links, strict=True):
        row_links = [links] if isinstance(links, Mapping) else links or []
        if any(link.get("second") == run.name for link in row_links if link):
            entries.append((row, links))
    return replace(
        table, rows=tuple(row for row, _ in entries), links=tuple(link for _, link in entries)
    )
