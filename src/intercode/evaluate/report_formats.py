"""A report's tables as Markdown, HTML and CSV. What programs wrote is made harmless."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from typing import Any

from intercode.evaluate.report import Statistics, by_level, by_place, by_tag, summarize
from intercode.evaluate.report_runs import Run
from intercode.evaluate.report_svg import interval_picture
from intercode.evaluate.table import Row, Table

_BESIDE = 3
"""Columns that have room for pictures beside their numbers; of more, they stand below."""


def to_markdown(table: Table) -> str:
    """A table in GitHub's Markdown, under a heading."""
    names = [name for name, _ in table.columns]
    lines = [f"### {_plain(table.title)}", "", _line(names)]
    lines.append(_line(["---", *["---:"] * (len(names) - 1)]))
    lines += [_line(row) for row in table.cells()]
    if table.note:
        lines += ["", *map(_plain, table.note.splitlines())]
    return "\n".join(lines) + "\n"


def to_list(text: str) -> str:
    """Lines as a list in Markdown; those that are indented go with the one above."""
    indents = ("  - " if line.startswith(" ") else "- " for line in text.splitlines())
    return "".join(
        f"{indent}{_plain(line)}\n" for indent, line in zip(indents, text.splitlines(), strict=True)
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell.strip()) for cell in cells)} |"


def _plain(text: str) -> str:
    """Text that Markdown, and the HTML that it allows, takes for nothing else."""
    return re.sub(r"([\\|<>\[\]`*_&])", r"\\\1", printable(" ".join(text.split())))


def to_html(table: Table) -> str:
    """A table as HTML, under a heading; beside each interval a picture of it."""
    kinds = [
        "left" if kind == "words" or column < table.left else ""
        for column, (_, kind) in enumerate(table.columns)
    ]
    head = "".join(
        f'<th scope="col"{_class(kind)}>{_escaped(name)}</th>'
        for (name, _), kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cells(table, row, cells, kinds))}</tr>\n"
        for row, cells in zip(table.rows, table.cells(), strict=True)
    )
    note = "".join(f'<p class="note">{_escaped(line)}</p>' for line in table.note.splitlines())
    title = _escaped(table.title)
    estimates = [kind for _, kind in table.columns if kind == "estimate"]
    crowded = "crowded" if len(estimates) > _BESIDE else ""
    # Whoever has no mouse must be able to scroll it.
    return (
        f"<h3>{title}</h3>\n"
        f'<div class="wide" tabindex="0" role="region" aria-label="{title}">'
        f"<table{_class(crowded)}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}\n"
    )


def _cells(table: Table, row: Row, cells: Sequence[str], kinds: Sequence[str]) -> Iterator[str]:
    before: Any = None
    for (_, kind), value, cell, css in zip(table.columns, row, cells, kinds, strict=True):
        picture = ""
        if kind == "interval" and value is not None:
            picture = interval_picture(before, *value)
        elif kind == "estimate" and value is not None:
            picture = interval_picture(*value)
        head = css == "left" and kind == "text"
        tag, attributes = ("th", ' scope="row"') if head else ("td", "")
        yield f"<{tag}{attributes}{_class(css)}>{_escaped(cell)}{picture}</{tag}>"
        before = value if kind == "rate" else before


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


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
