"""A report's tables as Markdown, HTML and CSV. What programs wrote is made harmless."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from html import escape

from intercode.evaluate.report import Statistics, by_level, by_place, by_tag, summarize
from intercode.evaluate.report_runs import Run
from intercode.evaluate.report_tables import Table


def to_markdown(table: Table) -> str:
    """A table in GitHub's Markdown, under a heading."""
    names = [name for name, _ in table.columns]
    lines = [f"### {_plain(table.title)}", "", _line(names)]
    lines.append(_line(["---", *["---:"] * (len(names) - 1)]))
    lines += [_line(row) for row in table.cells()]
    if table.note:
        lines += ["", _plain(table.note)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell.strip()) for cell in cells)} |"


def _plain(text: str) -> str:
    """Text that Markdown, and the HTML that it allows, takes for nothing else."""
    return re.sub(r"([\\|<>\[\]`*_&])", r"\\\1", printable(" ".join(text.split())))


def to_html(table: Table) -> str:
    """A table as HTML, under a heading."""
    head = "".join(f"<th>{_escaped(name)}</th>" for name, _ in table.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>\n"
        for row in table.cells()
    )
    note = f'<p class="note">{_escaped(table.note)}</p>' if table.note else ""
    return (
        f"<h3>{_escaped(table.title)}</h3>\n"
        f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>{note}\n'
    )


def _escaped(text: str) -> str:
    return escape(printable(text))


def printable(text: str) -> str:
    """Text without what only steers a terminal or hides other text, which stands as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def to_csv(runs: Sequence[Run]) -> str:
    """One line for each run and each of its groups of episodes, with every statistic."""
    text = io.StringIO()
    names = [field.name for field in fields(Statistics)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "agent", "environment", "group", "name", *names])
    for run in runs:
        groups: dict[str, Mapping[str, Statistics]] = {
            "all": {"": summarize(run.outcomes)},
            "level": by_level(run.outcomes),
            "place": by_place(run.outcomes),
            "tag": by_tag(run.outcomes),
        }
        for group, found in groups.items():
            for name, statistics in found.items():
                first = [str(run.folder), run.label, run.where, group, name]
                writer.writerow([*map(printable, first), *asdict(statistics).values()])
    return text.getvalue()
