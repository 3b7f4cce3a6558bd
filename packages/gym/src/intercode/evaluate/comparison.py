"""Two runs compared, and how many tasks that takes: pure functions, each with its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from intercode.evaluate.distributions import (
    binomial_cdf,
    binomial_mass,
    binomial_tail,
    normal_cdf,
    normal_quantile,
    t_quantile,
)
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
    b = sum(bool(one) and not other for one, other in pairs)
    c = sum(bool(other) and not one for one, other in pairs)
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
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    most: float = math.inf,
) -> Estimate:
    """Second minus first on the same tasks: the mean of the paired differences, with t interval.

    Miller, Adding Error Bars to Evals, 2024, section 4.2: what the runs have in common, how hard
    each task is, cancels out.

    Args:
        first: The values of the one, by task.
        second: Those of the other.
        clusters: The cluster of each task.
        most: The greatest difference that there can be: of rates, 1. No end lies beyond.
    """
    found = mean([b - a for a, b in zip(first, second, strict=True)], clusters)
    if math.isinf(found.low):
        return found  # one task tells nothing
    return replace(found, low=max(found.low, -most), high=min(found.high, most))


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
    """The chance that `mcnemar` finds a difference of two success rates on `n` tasks.

    Exact: the sum over all numbers of tasks that may differ (Duffy, Asymptotic and Exact Power for
    the McNemar Test and Its Analogue with R Controls per Case, 1984). For more than 5,000 tasks the
    asymptotic power (Connor, Sample Size for Testing Differences in Proportions for the
    Paired-Sample Design, 1987), which hardly differs there.

    Args:
        n: Tasks that both try.
        difference: Of the success rates.
        discordant: The share of the tasks that one of the two solves and the other does not; at
            least the difference.
        alpha: The level of the test, two-sided; for one of several comparisons, its share of it.
    """
    delta = _checked(difference, discordant)
    if n > _ASYMPTOTIC:
        spread = max(discordant - delta**2, _TINY)
        z = normal_quantile(1 - alpha / 2)
        return normal_cdf((delta * math.sqrt(n) - z * math.sqrt(discordant)) / math.sqrt(spread))
    better = (discordant + delta) / (2 * discordant)
    return math.fsum(
        chance * (binomial_cdf(few, pairs, better) + binomial_cdf(few, pairs, 1 - better))
        for pairs, chance, few in _likely(n, discordant, alpha)
    )


def paired_tasks(
    difference: float, discordant: float, power: float = POWER, alpha: float = ALPHA
) -> int:
    """How many tasks it takes to find a difference with that power: the inverse of it."""
    delta = _checked(difference, discordant)

    return _smallest(lambda n: paired_power(n, delta, discordant, alpha) >= power)


def detectable(
    n: int, discordant: float, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """The smallest difference that `n` tasks find with that power; None: not even the greatest."""
    if discordant <= 0 or paired_power(n, discordant, discordant, alpha) < power:
        return None
    low, high = 0.0, discordant
    for _ in range(20):
        middle = (low + high) / 2
        if paired_power(n, middle, discordant, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def mean_tasks(difference: float, spread: float, power: float = POWER, alpha: float = ALPHA) -> int:
    """How many tasks it takes for the t interval of a mean difference to leave out 0.

    Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2, with t for the
    number of tasks.

    Args:
        difference: The mean of the paired differences.
        spread: Their standard deviation.
        power: The chance that it is found.
        alpha: The level, two-sided.
    """
    if difference == 0:
        raise ValueError("no number of tasks shows that there is no difference")
    return _smallest(lambda n: detectable_mean(n, spread, power, alpha) <= abs(difference))


def detectable_mean(n: int, spread: float, power: float = POWER, alpha: float = ALPHA) -> float:
    """The smallest mean difference that `n` tasks find with that power (ibid.)."""
    if n < 2:
        return math.inf
    return (t_quantile(1 - alpha / 2, n - 1) + normal_quantile(power)) * spread / math.sqrt(n)


_ASYMPTOTIC = 5000
_TINY = 1e-12
_SIGMAS = 6


@lru_cache(maxsize=100)
def _likely(n: int, discordant: float, alpha: float) -> list[tuple[int, float, int]]:
    """List numbers of tasks that may differ: each with its chance, and `_few` of it."""
    middle, reach = n * discordant, _SIGMAS * math.sqrt(n * discordant * (1 - discordant)) + 1
    first, last = max(0, math.floor(middle - reach)), min(n, math.ceil(middle + reach))
    return [
        (pairs, binomial_mass(pairs, n, discordant), _few(pairs, alpha))
        for pairs in range(first, last + 1)
    ]


def _few(pairs: int, alpha: float) -> int:
    """Return how many of the differing pairs the worse one may win so that `mcnemar` rejects."""
    few = min(pairs, math.ceil(pairs / 2))
    low = -1
    while few - low > 1:
        middle = (low + few) // 2
        low, few = (middle, few) if 2 * binomial_cdf(middle, pairs, 0.5) < alpha else (low, middle)
    return low


def _smallest(suffices: Callable[[int], bool]) -> int:
    """Return the smallest number that suffices, where all greater ones do."""
    high = 1
    while not suffices(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _checked(difference: float, discordant: float) -> float:
    delta = abs(difference)
    if delta == 0 or not delta <= discordant <= 1:
        raise ValueError(f"a difference of {difference} with a share of {discordant} that differ")
    return delta
