"""The figure of a report: success against turns, with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from intercode.evaluate.statistics import Estimate

WIDTH, HEIGHT = 720, 340
COLOURS = 8
"""That the style sheet has: ``c0`` … ``c7``."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 12, 44


def curves(series: Mapping[str, Sequence[Estimate]]) -> str:
    """An SVG picture of success rates within 1, 2, … turns; bands are their intervals.

    Args:
        series: Name → the rates, as `report.by_turn` gives them.
    """
    turns = max((len(points) for points in series.values()), default=0)
    if not turns:
        return ""
    parts = [*_axes(turns)]
    for number, (name, points) in enumerate(series.items()):
        # Who has stopped stays where it is.
        longer = [*points, *([points[-1]] * (turns - len(points)))] if points else []
        parts += _curve(number, name, longer, turns)
    height = HEIGHT + 20 * len(series)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="success against turns">{"".join(parts)}</svg>'
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
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">turns</text>')
    return parts


def _curve(number: int, name: str, points: Sequence[Estimate], turns: int) -> list[str]:
    at = [(_x(turn, turns), point) for turn, point in enumerate(points, 1)]
    line = " ".join(f"{x:.1f},{_y(point.value):.1f}" for x, point in at)
    upper = [f"{x:.1f},{_y(point.high):.1f}" for x, point in at]
    lower = [f"{x:.1f},{_y(point.low):.1f}" for x, point in reversed(at)]
    y = HEIGHT + 20 * number + 8
    return [
        f'<g class="c{number % COLOURS}">',
        f'<polygon class="band" points="{" ".join(upper + lower)}"/>',
        f'<polyline class="curve" points="{line}"/>',
        *(f'<circle class="dot" r="3" cx="{x:.1f}" cy="{_y(p.value):.1f}"/>' for x, p in at),
        f'<rect class="dot" x="{_LEFT}" y="{y - 9}" width="14" height="10"/>',
        f'<text x="{_LEFT + 22}" y="{y}">{escape(name)}</text></g>',
    ]
