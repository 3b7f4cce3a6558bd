"""Two runs compared, and how many tasks that takes: pure functions, each with its source."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from intercode.evaluate.distributions import binomial_tail, normal_cdf, normal_quantile
from intercode.evaluate.statistics import Estimate, mean

ALPHA, POWER = 0.05, 0.8
"""The level of a test, and the power that a study is planned for, by custom."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class McNemar:
    """The exact test of two rates on the same tasks."""

    only_first: int
    """Tasks that the first one solves and the second one does not."""
    only_second: int
    p: float
    """Two-sided."""


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """Whether one solves more of the same tasks than the other: the exact, two-sided test.

    McNemar, Note on the Sampling Error of the Difference between Correlated Proportions or
    Percentages, 1947; exact by the binomial distribution of the pairs that differ (Fagerland,
    Lydersen and Laake, The McNemar Test for Binary Matched-Pairs Data, 2013, equation 2).
    """
    pairs = list(zip(first, second, strict=True))
    b = sum(one and not other for one, other in pairs)
    c = sum(other and not one for one, other in pairs)
    return McNemar(b, c, min(1.0, 2 * binomial_tail(min(b, c), b + c)))


def holm(values: Sequence[float]) -> list[float]:
    """The p values of several tests, so that all are right together with the level of one.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.
    """
    found, last = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        last = max(last, min(1.0, (len(values) - rank) * values[place]))
        found[place] = last
    return found


def difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable] | None = None
) -> Estimate:
    """Second minus first on the same tasks: the mean of the paired differences, with t interval.

    Miller, Adding Error Bars to Evals, 2024, section 4.2: what the runs have in common, how hard
    each task is, cancels out.
    """
    return mean([b - a for a, b in zip(first, second, strict=True)], clusters)


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """A mean with the percentile interval of the clustered bootstrap.

    Whole clusters are drawn with replacement: Field and Welsh, Bootstrapping Clustered Data, 2007;
    the interval: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    Args:
        values: For instance paired differences.
        clusters: The cluster of each; a cluster for each value makes the ordinary bootstrap.
        seed: The same seed gives the same interval.
        resamples: How often clusters are drawn.

    Raises:
        ValueError: There are no values.
    """
    import numpy as np

    if not values:
        raise ValueError("a mean of nothing")
    _, inverse = np.unique([str(cluster) for cluster in clusters], return_inverse=True)
    sizes = np.bincount(inverse)
    sums = np.bincount(inverse, weights=np.asarray(values, dtype=float))
    groups = len(sizes)
    # How often each cluster is drawn; row by row, so that memory stays flat.
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    for row in range(resamples):
        drawn = np.bincount(generator.integers(groups, size=groups), minlength=groups)
        means[row] = drawn @ sums / (drawn @ sizes)
    low, high = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2])
    return Estimate(math.fsum(values) / len(values), float(low), float(high), groups)


def paired_power(n: int, difference: float, discordant: float, alpha: float = ALPHA) -> float:
    """The chance that McNemar's test finds a difference of two success rates on `n` tasks.

    Connor, Sample Size for Testing Differences in Proportions for the Paired-Sample Design, 1987.

    Args:
        n: Tasks that both try.
        difference: Of the success rates.
        discordant: The share of the tasks that one of the two solves and the other does not; at
            least the difference.
        alpha: The level of the test, two-sided.
    """
    delta = _checked(difference, discordant)
    spread = discordant - delta**2
    if spread <= 0:
        return 1.0
    z = normal_quantile(1 - alpha / 2)
    return normal_cdf((delta * math.sqrt(n) - z * math.sqrt(discordant)) / math.sqrt(spread))


def paired_tasks(
    difference: float, discordant: float, power: float = POWER, alpha: float = ALPHA
) -> int:
    """How many tasks it takes to find a difference with that power: the inverse of it (ibid.)."""
    delta = _checked(difference, discordant)
    z, beta = normal_quantile(1 - alpha / 2), normal_quantile(power)
    spread = max(0.0, discordant - delta**2)
    return math.ceil(((z * math.sqrt(discordant) + beta * math.sqrt(spread)) / delta) ** 2)


def detectable(
    n: int, discordant: float, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """The smallest difference that `n` tasks find with that power; None: not even the greatest."""
    if discordant <= 0 or paired_power(n, discordant, discordant, alpha) < power:
        return None
    low, high = 0.0, discordant
    for _ in range(60):
        middle = (low + high) / 2
        if paired_power(n, middle, discordant, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def _checked(difference: float, discordant: float) -> float:
    delta = abs(difference)
    if delta == 0 or not delta <= discordant <= 1:
        raise ValueError(f"a difference of {difference} with a share of {discordant} that differ")
    return delta
