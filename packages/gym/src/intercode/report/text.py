"""Formatting of reports as text: Markdown, CSV, and a chart for terminals.

Texts of agents and programs are untrusted, so characters with a special meaning are escaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from itertools import pairwise

from intercode.errors import UsageError
from intercode.evaluate.statistics import IntervalEstimate
from intercode.evaluate.summary import Statistics, by_image_or_database, by_level, by_tag, summarize
from intercode.outcomes import OUTCOMES
from intercode.report.runs import RecordedRun
from intercode.report.tables import ReportTable

MIN_WIDTH = 40
"""The minimum width of a chart in characters."""
ROWS = 11
"""The number of rows in a chart: one for each ten percent, from 100 down to 0."""
MARKS = "●▲■◆○△□◇"
_GUTTER = len("100 % ┤")
_MAX_STEP = 8
"""The maximum number of characters between two turns on the axis of a chart."""
_NAME = 24
"""The minimum number of characters for a curve's name in the legend. If fewer would remain, the
legend omits the interval of the curve."""
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")  # noqa: RUF001 - full-width on purpose
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_ASCII = str.maketrans("●▲■◆○△□◇─│╮╯┤┼┬…", "*^#+oAOX-|..|++~")


def escape_unprintable(text: str) -> str:
    """Escape characters that could control a terminal or hide other text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def escape_formula(text: str) -> str:
    """Return the text of a cell in a form that no spreadsheet interprets as a formula.

    A single quote is added before a text that looks like a formula. Such a text may begin with
    blanks, which spreadsheets ignore. Some spreadsheets also accept full-width forms of the signs
    with which formulas begin.
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def to_markdown(table: ReportTable) -> str:
    """Return a table in GitHub's Markdown, with the table's title as a heading."""
    names = [name for name, _ in table.columns]
    lines = [f"### {escape_markdown(table.title)}", "", _line(names)]
    lines.append(_line(["---", *["---:"] * (len(names) - 1)]))
    lines += [_line(row) for row in table.cells()]
    if table.note:
        lines += ["", *map(escape_markdown, table.note.splitlines())]
    return "\n".join(lines) + "\n"


def to_list(text: str) -> str:
    """Return lines of text as a Markdown list. An indented line becomes an entry of a sublist."""
    return "".join(
        f"{'  - ' if line.startswith(' ') else '- '}{escape_markdown(line)}\n"
        for line in text.splitlines()
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escape_markdown(cell.strip()) for cell in cells)} |"


def escape_markdown(text: str) -> str:
    """Escape all markup of Markdown, and of the HTML that Markdown permits."""
    return re.sub(r"([\\|<>\[\]`*_&])", r"\\\1", escape_unprintable(" ".join(text.split())))


def to_csv(runs: Sequence[RecordedRun]) -> str:
    """Return a CSV text with a line for each run, and a line for each group of its episodes.

    A line has all statistics. The groups are those of difficulty, image or database, and tag.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    position = next(
        position for position, field in enumerate(fields(Statistics)) if field.name == "outcomes"
    )
    names: list[str] = [field.name for field in fields(Statistics)]
    names[position : position + 1] = OUTCOMES
    writer.writerow(["run", "agent", "environment", "group", "name", *names])
    for run in runs:
        groups: dict[str, Mapping[str, Statistics]] = {
            "all": {"": summarize(run.outcomes)},
            "level": by_level(run.outcomes),
            "place": by_image_or_database(run.outcomes),
            "tag": by_tag(run.outcomes),
        }
        for group, group_statistics in groups.items():
            for name, statistics in group_statistics.items():
                identity_cells = [str(run.folder), run.label, run.env_label, group, name]
                cell_texts = [escape_formula(escape_unprintable(text)) for text in identity_cells]
                values = [*astuple(statistics)]
                values[position : position + 1] = statistics.outcomes.values()
                writer.writerow([*cell_texts, *values])
    return text.getvalue()


def chart(
    series: Mapping[str, Sequence[IntervalEstimate]], *, width: int = 78, ascii_only: bool = False
) -> str:
    """Draw curves of the success rate by number of turns, for a terminal.

    A curve rises at each turn in which further episodes were solved. A legend below the chart has
    the mark, the name and the last rate of each curve. Where curves coincide, only the first is
    visible.

    Args:
        series: Name of a curve → success rates within 1, 2, … turns, from
            `intercode.evaluate.summary.by_turn`.
        width: The maximum width of a line in characters.
        ascii_only: Whether the chart may contain only ASCII characters.

    Returns:
        The lines of the chart; an empty text if no curve has a rate.

    Raises:
        UsageError: The width is below `MIN_WIDTH`.
    """
    if width < MIN_WIDTH:
        raise UsageError(f"a chart is at least {MIN_WIDTH} columns wide, not {width}")
    curves = {name: points for name, points in series.items() if points}
    turns = max(map(len, curves.values()), default=0)
    if not turns:
        return ""
    columns = min(width - _GUTTER, 1 + _MAX_STEP * (turns - 1))
    turn_columns = [round(turn * (columns - 1) / max(1, turns - 1)) for turn in range(turns)]
    canvas = [[" "] * columns for _ in range(ROWS)]
    for curve_index, points in reversed([*enumerate(curves.values())]):
        # A curve with fewer turns than others keeps its last rate up to the end of the chart.
        rates = [point.value for point in [*points, *[points[-1]] * (turns - len(points))]]
        rows = [round((1 - rate) * (ROWS - 1)) for rate in rates]
        # If the chart is narrow, several turns share a column: the last of these turns counts.
        _draw(canvas, dict(zip(turn_columns, rows, strict=True)), MARKS[curve_index % len(MARKS)])
    lines = [f"{_level(row)}{''.join(cells)}" for row, cells in enumerate(canvas)]
    lines += _axis(turn_columns, width)
    lines += [_legend(MARKS[n % len(MARKS)], *i, width) for n, i in enumerate(curves.items())]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(_ASCII) if ascii_only else text


def _draw(canvas: list[list[str]], rows: Mapping[int, int], symbol: str) -> None:
    """Draw a curve on the canvas, over earlier curves.

    Args:
        canvas: The characters of the chart: rows of columns.
        rows: Column of a turn → row of its rate.
        symbol: The mark at each turn.
    """
    for (start_column, start_row), (end_column, end_row) in pairwise(rows.items()):
        canvas[start_row][start_column:end_column] = "─" * (end_column - start_column)
        if start_row != end_row:
            for row in range(min(start_row, end_row), max(start_row, end_row)):
                canvas[row][end_column] = "│"
            canvas[start_row][end_column] = "╯" if end_row < start_row else "╮"
    for column, row in rows.items():
        canvas[row][column] = symbol


def _level(row: int) -> str:
    percent = 100 - row * 100 // (ROWS - 1)
    return f"{percent:3} % ┤" if row % 2 == 0 else f"{'':{_GUTTER - 1}}│"


def _axis(turn_columns: Sequence[int], width: int) -> list[str]:
    """Return the axis below the chart: a line, and a line with as many turn numbers as fit."""
    axis_marks = ["─"] * (turn_columns[-1] + 1)
    number_line = ""
    for turn, column in enumerate(turn_columns, 1):
        start = _GUTTER + column + 1 - len(str(turn))
        if start > len(number_line) or not number_line:
            number_line = f"{number_line:{start}}{turn} "
            axis_marks[column] = "┬"
    line = f"{'':{_GUTTER - 1}}┼{''.join(axis_marks)}"
    axis_text = f"{number_line}turns"
    return [line, axis_text if len(axis_text) <= width else number_line.rstrip()]


def _legend(symbol: str, name: str, points: Sequence[IntervalEstimate], width: int) -> str:
    estimate = points[-1]
    rate = f"{100 * estimate.value:5.1f} %"
    interval = f"  {100 * estimate.low:.1f} - {100 * estimate.high:.1f} %"
    if (available_width := width - _GUTTER - len(f"m   {rate}{interval}")) < _NAME:
        available_width, interval = available_width + len(interval), ""
    short_name = name if len(name) <= available_width else f"{name[: available_width - 1]}…"
    return f"{'':{_GUTTER}}{symbol} {short_name:{min(available_width, _NAME)}}  {rate}{interval}"
