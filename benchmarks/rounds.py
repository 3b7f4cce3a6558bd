"""Measurements that take turns, so that a busy minute meets all of them, and shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

Figures = dict[str, float]
Rounds = dict[str, list[float]]
"""Of each figure its values, one of each round."""


def take_turns(
    floor: Callable[[], Figures], measures: Sequence[Callable[[], Figures]], rounds: int
) -> Rounds:
    """So many rounds of the measurements, with the floor before each of them."""
    found: Rounds = defaultdict(list)
    for _ in range(rounds):
        one: Rounds = defaultdict(list)
        for measure in measures:
            for name, value in (floor() | measure()).items():
                one[name].append(value)
        for name, values in one.items():
            found[name].append(median(values))
    return found
