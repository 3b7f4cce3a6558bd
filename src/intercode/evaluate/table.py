"""A table of a report: plain values under columns, and how people read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from intercode.evaluate.report import Statistics

Kind = Literal[
    "text",
    "words",
    "count",
    "rate",
    "interval",
    "estimate",
    "points",
    "size",
    "range",
    "number",
    "precise",
    "p",
    "money",
]
"""What a column holds. ``text`` is flush left in the first column only, ``words`` in any; an
``interval`` of a rate and a ``range`` of points are pairs; ``points`` have a sign, a ``size`` has
none; an ``estimate`` is a rate and both ends of its interval. Whatever is not known is None."""
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under columns."""

    title: str
    columns: tuple[tuple[str, Kind], ...]
    """Name and kind of each."""
    rows: tuple[Row, ...]
    note: str = ""
    """What the reader must know of it; lines are apart."""

    def cells(self) -> list[list[str]]:
        """The rows as people read them."""
        kinds = [kind for _, kind in self.columns]
        return [[shown(v, k) for v, k in zip(row, kinds, strict=True)] for row in self.rows]

    @property
    def left(self) -> int:
        """How many columns from the first on are flush left."""
        flush = [kind == "words" for _, kind in self.columns]
        flush[0] |= self.columns[0][1] == "text"
        return [*flush, False].index(False)


_DIGITS = {"number": 1, "precise": 3, "money": 4}
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


def groups(
    title: str, found: Mapping[str, Statistics], note: str = "", rate: str = "success"
) -> Table:
    """A line for each group of episodes; `rate` is what their rate is called."""
    columns = tuple((rate if name == "success" else name, kind) for name, kind in _GROUP)
    return Table(title, columns, tuple(_group(name, stats) for name, stats in found.items()), note)


def _group(name: str, stats: Statistics) -> Row:
    return (
        name,
        stats.episodes,
        stats.success_rate,
        interval(stats),
        stats.mean_reward,
        stats.mean_turns,
        stats.mean_seconds,
        stats.errors,
    )


def interval(stats: Statistics) -> tuple[float, float] | None:
    """That of the success rate."""
    return _pair(stats.success_low, stats.success_high)


def clustered(stats: Statistics) -> tuple[float, float] | None:
    """The same with images or databases as clusters; None: they tell nothing."""
    return _pair(stats.clustered_low, stats.clustered_high)


def _pair(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def shown(value: Any, kind: Kind) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    match kind:
        case "interval":
            return f"{100 * value[0]:.1f} - {100 * value[1]:.1f} %"
        case "estimate":
            return f"{shown(value[0], 'rate')} ({shown(value[1:], 'interval')})"
        case "range":
            return f"{shown(value[0], 'points')} to {shown(value[1], 'points')}"
        case "rate":
            return f"{100 * value:.1f} %"
        case "points":
            return f"{100 * value:+.1f}"
        case "size":
            return f"{100 * value:.1f}"
        case "count":
            return f"{value:,}"
        case "p":
            return "< 0.001" if value < 0.001 else f"{value:.3f}"
        case "number" | "precise" | "money":
            return f"{value:,.{_DIGITS[kind]}f}"
    return str(value)
