"""How often intervals and powers of reports keep their promise: ``python benchmarks/coverage.py``.

Runs are drawn whose true rates are known; each line is the share of 2,000 draws (4,000 of powers)
in which the interval has the truth, or the test finds the difference. It takes a minute, and prints
the table of docs/gym/publish-numbers.md#one-run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from intercode.evaluate.comparison import bootstrap, difference, mcnemar, paired_tasks
from intercode.evaluate.statistics import IntervalEstimate, rate

DRAWS = 2000
SPREAD = 0.15
"""The standard deviation of the success rates of places."""


def share(holds: Callable[[np.random.Generator], bool], draws: int = DRAWS) -> str:
    """Return the share of draws in which something holds."""
    generator = np.random.default_rng(20)
    return f"{sum(holds(generator) for _ in range(draws)) / draws:.3f}"


def has(found: IntervalEstimate, truth: float) -> bool:
    """Tell whether an interval has the truth."""
    return found.low <= truth <= found.high


def alone(n: int, p: float) -> Callable[[np.random.Generator], bool]:
    """Draw the success of a run."""
    return lambda draw: has(rate(list(draw.random(n) < p)), p)


def at_places(places: int, each: int) -> Callable[[np.random.Generator], bool]:
    """Draw the success of a run over places of different difficulty."""

    def holds(draw: np.random.Generator) -> bool:
        rates = np.clip(draw.normal(0.5, SPREAD, places), 0, 1).repeat(each)
        clusters = list(np.arange(places).repeat(each))
        return has(rate(list(draw.random(places * each) < rates), clusters), 0.5)

    return holds


def pair(n: int, gain: float, differing: float) -> Callable[[np.random.Generator], bool]:
    """Draw two runs on the same tasks."""

    def holds(draw: np.random.Generator) -> bool:
        first, second = _pair(draw, n, gain, differing)
        return has(difference(first, second, max_difference=1.0), gain)

    return holds


def pair_at_places(places: int, each: int, how: str) -> Callable[[np.random.Generator], bool]:
    """Draw two runs whose difference is another at each place; its mean is 10 points."""

    def holds(draw: np.random.Generator) -> bool:
        gains = np.clip(draw.normal(0.1, SPREAD, places), -0.4, 0.6).repeat(each)
        chance = draw.random(places * each)
        changes = np.where(chance < 0.2 + gains / 2, 1.0, np.where(chance > 0.8 + gains / 2, -1, 0))
        clusters = list(np.arange(places).repeat(each))
        if how == "bootstrap":
            return has(bootstrap(list(changes), clusters, resamples=500), 0.1)
        return has(
            difference([0.0] * len(changes), list(changes), clusters, max_difference=1.0), 0.1
        )

    return holds


def finds(n: int, gain: float, differing: float) -> Callable[[np.random.Generator], bool]:
    """Draw two runs, and test whether they differ."""

    def holds(draw: np.random.Generator) -> bool:
        first, second = _pair(draw, n, gain, differing)
        return mcnemar([x == 1 for x in first], [x == 1 for x in second]).p < 0.05

    return holds


def _pair(
    draw: np.random.Generator, n: int, gain: float, differing: float
) -> tuple[list[float], list[float]]:
    chance = draw.random(n)
    better, worse = (differing + gain) / 2, (differing - gain) / 2
    second = np.where(chance < better, 1.0, np.where(chance > 1 - worse, 0.0, 0.5))
    first = np.where(chance < better, 0.0, np.where(chance > 1 - worse, 1.0, 0.5))
    return list(first), list(second)


def main() -> None:
    """Print the table."""
    print("| | | share of draws |\n|---|---|---|")
    for n, p in ((10, 0.5), (57, 0.3), (57, 0.95), (200, 0.6)):
        print(f"| success | {n} tasks, truly {p:.0%} | {share(alone(n, p))} |")
    for places in (4, 10, 30):
        print(
            f"| success, clustered | {places}, 20 tasks in each | {share(at_places(places, 20))} |"
        )
    for n in (10, 57, 200):
        print(f"| difference | {n} tasks, 10 points of 30 % | {share(pair(n, 0.1, 0.3))} |")
    for places in (4, 10, 30):
        for how in ("t interval", "bootstrap"):
            held = share(pair_at_places(places, 20, how))
            print(f"| difference, clustered, {how} | {places}, 20 tasks in each | {held} |")
    for gain, differing in ((0.1, 0.25), (0.2, 0.3), (0.9, 0.95)):
        n = paired_tasks(gain, differing)
        power = share(finds(n, gain, differing), 2 * DRAWS)
        print(f"| power | {n} tasks needed for {gain:.0%} of {differing:.0%} | {power} |")


if __name__ == "__main__":
    main()
