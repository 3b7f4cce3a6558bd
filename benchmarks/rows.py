"""Lines of a benchmark's table: a figure, what it is held against, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str
    target: str = ""
    ok: bool | None = None
    note: str = ""


def against(
    name: str, ms: float, floor_name: str, floor: float, times: float, goal: float | None = None
) -> Row:
    """A time as a multiple of a floor."""
    ratio = ms / floor
    target = f"< {times:g} x {floor_name}" + (f", goal {goal:g} x" if goal else "")
    return Row(name, ms, "ms", target, ratio < times, f"{ratio:.2f} x")


def below(name: str, value: float, limit: float, unit: str, note: str = "") -> Row:
    """A value that must stay below a limit."""
    return Row(name, value, unit, f"< {limit:g} {unit}", value < limit, note)
