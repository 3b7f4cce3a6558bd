"""Success against turns as a chart of text, to be read in any terminal, with or without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from intercode.errors import UsageError
from intercode.evaluate.statistics import Estimate

LEAST = 40
"""Columns that a chart takes at least."""
ROWS = 11
"""One for each ten percent, from 100 down to 0."""
MARKS = "●▲■◆○△□◇"
_GUTTER = len("100 % ┤")
_FAR = 8
"""Columns from a turn to the next, at most."""
_NAME = 24
"""Columns for a name, before its interval is shown."""
_ASCII = str.maketrans("●▲■◆○△□◇─│╮╯┤┼┬…", "*^#+oAOX-|..|++~")


def chart(
    series: Mapping[str, Sequence[Estimate]], *, width: int = 78, ascii_only: bool = False
) -> str:
    """A step up for each turn that solves more; below, what each mark stands for, and how it ends.

    Where curves lie on each other, the first is seen.

    Args:
        series: Name → the rates within 1, 2, … turns, as `report.by_turn` gives them.
        width: Columns that no line goes beyond.
        ascii_only: For terminals that have no other characters.

    Raises:
        UsageError: It is to be narrower than can be read.
    """
    if width < LEAST:
        raise UsageError(f"a chart is at least {LEAST} columns wide, not {width}")
    drawn = {name: points for name, points in series.items() if points}
    turns = max(map(len, drawn.values()), default=0)
    if not turns:
        return ""
    columns = min(width - _GUTTER, 1 + _FAR * (turns - 1))
    places = [round(turn * (columns - 1) / max(1, turns - 1)) for turn in range(turns)]
    canvas = [[" "] * columns for _ in range(ROWS)]
    for number, points in reversed([*enumerate(drawn.values())]):
        # Who has stopped stays where it is.
        rates = [point.value for point in [*points, *[points[-1]] * (turns - len(points))]]
        rows = [round((1 - rate) * (ROWS - 1)) for rate in rates]
        # Where turns share a column the last of them counts.
        _draw(canvas, dict(zip(places, rows, strict=True)), _mark(number))
    lines = [f"{_level(row)}{''.join(cells)}" for row, cells in enumerate(canvas)]
    lines += _axis(places, width)
    lines += [_legend(_mark(n), *item, width) for n, item in enumerate(drawn.items())]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(_ASCII) if ascii_only else text


def _mark(number: int) -> str:
    return MARKS[number % len(MARKS)]


def _draw(canvas: list[list[str]], rows: Mapping[int, int], mark: str) -> None:
    """A curve, as column → row, over what is there."""
    for (left, before), (right, now) in pairwise(rows.items()):
        for column in range(left, right):
            canvas[before][column] = "─"
        if before != now:
            for row in range(min(before, now), max(before, now)):
                canvas[row][right] = "│"
            canvas[before][right] = "╯" if now < before else "╮"
    for column, row in rows.items():
        canvas[row][column] = mark


def _level(row: int) -> str:
    percent = 100 - row * 100 // (ROWS - 1)
    return f"{percent:3} % ┤" if row % 2 == 0 else f"{'':{_GUTTER - 1}}│"


def _axis(places: Sequence[int], width: int) -> list[str]:
    """The line below the chart, and the turns, as many as there is room for."""
    ticks = ["─"] * (places[-1] + 1)
    numbers = ""
    for turn, column in enumerate(places, 1):
        end = _GUTTER + column + 1
        if end - len(str(turn)) > len(numbers) or not numbers:
            numbers = f"{numbers:{end - len(str(turn))}}{turn} "
            ticks[column] = "┬"
    line = f"{'':{_GUTTER - 1}}┼{''.join(ticks)}"
    named = f"{numbers}turns"
    return [line, named if len(named) <= width else numbers.rstrip()]


def _legend(mark: str, name: str, points: Sequence[Estimate], width: int) -> str:
    last = points[-1]
    rate = f"{100 * last.value:5.1f} %"
    interval = f"  {100 * last.low:.1f} - {100 * last.high:.1f} %"
    if (room := width - _GUTTER - len(f"m   {rate}{interval}")) < _NAME:
        room, interval = room + len(interval), ""
    shown = name if len(name) <= room else f"{name[: room - 1]}…"
    return f"{'':{_GUTTER}}{mark} {shown:{min(room, _NAME)}}  {rate}{interval}"
