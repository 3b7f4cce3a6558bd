"""The pictures of a report: success against turns with bands, and small ones of intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from intercode.evaluate.statistics import Estimate

WIDTH, HEIGHT = 720, 340
COLOURS = 8
"""That the style sheet has: ``c0`` … ``c7``, each with dashes of its own."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 12, 44
_LINE = 20
_LONGEST = 52
"""Characters of a name that stands beside another one."""


def curves(
    series: Mapping[str, Sequence[Estimate]],
    colours: Mapping[str, int] | None = None,
    title: str = "success within so many turns",
) -> str:
    """An SVG picture of success rates within 1, 2, … turns; bands are their intervals.

    Args:
        series: Name → the rates, as `report.by_turn` gives them.
        colours: Name → the number of its colour, for several pictures alike; default: as they come.
        title: What it is, for those who cannot see it.
    """
    turns = max((len(points) for points in series.values()), default=0)
    if not turns:
        return ""
    names = list(series)
    colours = colours or {name: number for number, name in enumerate(names)}
    parts = _axes(turns)
    # Bands first: none hides a curve.
    for drawn in (_band, _curve):
        for name, points in series.items():
            # Who has stopped stays where it is.
            longer = [*points, *([points[-1]] * (turns - len(points)))] if points else []
            parts.append(f'<g class="c{colours[name] % COLOURS}">{drawn(longer, turns)}</g>')
    legend, height = _legend(names, colours)
    crowd = " many" if len(names) > 4 else ""
    return (
        f'<svg class="curves{crowd}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">'
        f"{''.join([*parts, *legend])}</svg>"
    )


def interval_picture(value: float, low: float, high: float) -> str:
    """A rate and its interval on a line from 0 to 1."""
    return (
        '<svg class="interval" viewBox="-3 0 106 12" width="80" height="10" aria-hidden="true">'
        '<line class="axis" x1="0" x2="100" y1="6" y2="6"/>'
        f'<line class="span" x1="{100 * low:.1f}" x2="{100 * high:.1f}" y1="6" y2="6"/>'
        f'<rect class="at" x="{100 * value - 1.5:.1f}" y="1" width="3" height="10"/></svg>'
    )


def _x(turn: int, turns: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * ((turn - 1) / (turns - 1) if turns > 1 else 0.5)


def _y(rate: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - rate)


def _axes(turns: int) -> list[str]:
    parts = []
    for step in range(0, 101, 20):
        y = _y(step / 100)
        parts.append(
            f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{step} %</text>'
        )
    every = max(1, -(-turns // 15))
    parts += [
        f'<text x="{_x(turn, turns):.1f}" y="{HEIGHT - _BOTTOM + 18}" '
        f'text-anchor="middle">{turn}</text>'
        for turn in range(1, turns + 1, every)
    ]
    across, down = (_LEFT + WIDTH - _RIGHT) / 2, (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(f'<text x="{across}" y="{HEIGHT - 8}" text-anchor="middle">turns</text>')
    parts.append(
        f'<text transform="translate(14 {down}) rotate(-90)" text-anchor="middle">solved</text>'
    )
    return parts


def _band(points: Sequence[Estimate], turns: int) -> str:
    at = [(_x(turn, turns), point) for turn, point in enumerate(points, 1)]
    edge = [f"{x:.1f},{_y(point.high):.1f}" for x, point in at]
    edge += [f"{x:.1f},{_y(point.low):.1f}" for x, point in reversed(at)]
    return f'<polygon class="band" points="{" ".join(edge)}"/>'


def _curve(points: Sequence[Estimate], turns: int) -> str:
    at = [(_x(turn, turns), _y(point.value)) for turn, point in enumerate(points, 1)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(f'<circle class="dot" r="3" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in at)
    return f'<polyline class="curve" points="{line}"/>{dots}'


def _legend(names: Sequence[str], colours: Mapping[str, int]) -> tuple[list[str], int]:
    """Whose curve is which, in two columns if the names are short; and the picture's height."""
    columns = 2 if max(map(len, names)) <= _LONGEST else 1
    lines = -(-len(names) // columns)
    parts = []
    for number, name in enumerate(names):
        column, line = divmod(number, lines)
        x, y = _LEFT + column * (WIDTH - _LEFT) // 2, HEIGHT + _LINE * line + 8
        parts.append(
            f'<g class="c{colours[name] % COLOURS}">'
            f'<line class="curve" x1="{x}" x2="{x + 28}" y1="{y - 4}" y2="{y - 4}"/>'
            f'<circle class="dot" r="3" cx="{x + 14}" cy="{y - 4}"/>'
            f'<text x="{x + 36}" y="{y}">{escape(name)}</text></g>'
        )
    return parts, HEIGHT + _LINE * lines
