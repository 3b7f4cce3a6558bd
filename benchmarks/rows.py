"""Lines of a benchmark's table: a figure, what it is held against, and whether it held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

Figure = float | Sequence[float]
"""One value, or one of each round."""


@dataclass
class Row:
    """One line of the table."""

    name: str
    figure: Figure
    unit: str
    target: str = ""
    ok: bool | None = None
    note: str = ""
    value: float = field(init=False)
    """The rounds' median."""
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        self.value, self.low, self.high = spread(self.figure)

    def __str__(self) -> str:
        mark = {True: "ok", False: "MISSED", None: ""}[self.ok]
        between = f"{self.low:.2f} to {self.high:.2f}" if self.low < self.high else ""
        return (
            f"{self.name:52} {self.value:9.2f} {self.unit:4} {between:16} {self.target:34} "
            f"{mark:7} {self.note}"
        ).rstrip()


def spread(figure: Figure) -> tuple[float, float, float]:
    """The median, the lowest and the highest."""
    values = figure if isinstance(figure, Sequence) else [figure]
    return median(values), min(values), max(values)


def against(
    name: str,
    ms: Sequence[float],
    floor_name: str,
    floor: Sequence[float],
    times: float,
    goal: float | None = None,
) -> Row:
    """A time as a multiple of a floor: each round's, of the same round's."""
    ratio, low, high = spread([one / other for one, other in zip(ms, floor, strict=True)])
    target = f"< {times:g} x {floor_name}" + (f", goal {goal:g} x" if goal else "")
    between = f" ({low:.2f} to {high:.2f})" if low < high else ""
    return Row(name, ms, "ms", target, ratio < times, f"{ratio:.2f} x{between}")


def below(name: str, figure: Figure, limit: float, unit: str, note: str = "") -> Row:
    """A figure that must stay below a limit."""
    return Row(name, figure, unit, f"< {limit:g} {unit}", spread(figure)[0] < limit, note)
