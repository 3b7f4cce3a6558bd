"""Statistical comparisons of two runs, and the number of tasks that a comparison needs.

All functions are pure. The docstrings name the sources of the formulas.
"""

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
from intercode.evaluate.statistics import IntervalEstimate, mean

ALPHA, POWER = 0.05, 0.8
"""The customary level of a test, and the customary power of a planned study."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class McNemarTest:
    """The result of McNemar's exact test of two rates on the same tasks."""

    only_first: int
    """Tasks that the first run solves and the second does not."""
    only_second: int
    p: float
    """Two-sided p value."""


def mcnemar(first_successes: Sequence[bool], second_successes: Sequence[bool]) -> McNemarTest:
    """Return the exact, two-sided test of whether one run solves more of the same tasks.

    The p value is exact, by the binomial distribution of the number of pairs that differ.

    - The test: McNemar, Note on the Sampling Error of the Difference between Correlated Proportions
      or Percentages, 1947.
    - The exact form: Fagerland, Lydersen and Laake, The McNemar Test for Binary Matched-Pairs Data,
      2013, equation 2.

    Args:
        first_successes: Whether the first run solves each task.
        second_successes: Whether the second run solves each task, in the same order.

    Raises:
        ValueError: The sequences differ in length.
    """
    pairs = list(zip(first_successes, second_successes, strict=True))
    first_wins = sum(
        bool(first_success) and not second_success for first_success, second_success in pairs
    )
    second_wins = sum(
        bool(second_success) and not first_success for first_success, second_success in pairs
    )
    return McNemarTest(
        first_wins,
        second_wins,
        min(1.0, 2 * binomial_tail(min(first_wins, second_wins), first_wins + second_wins)),
    )


def holm(values: Sequence[float]) -> list[float]:
    """Return the p values of several tests, corrected to control the family-wise error rate.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979.

    Returns:
        The corrected values in the order of `values`, each at most 1.
    """
    adjusted_values, running_maximum = [0.0] * len(values), 0.0
    for rank, position in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        running_maximum = max(running_maximum, min(1.0, (len(values) - rank) * values[position]))
        adjusted_values[position] = running_maximum
    return adjusted_values


def difference(
    first_values: Sequence[float],
    second_values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    max_difference: float = math.inf,
) -> IntervalEstimate:
    """Return the mean of second value minus first value over the tasks, with its t interval.

    The values are paired by task, so the difficulty of each task cancels out: Miller, Adding Error
    Bars to Evals, 2024, section 4.2.

    Args:
        first_values: The first run's values, by task.
        second_values: The second run's values, in the same order.
        clusters: The cluster of each task.
        max_difference: The greatest possible difference, which limits the interval; 1 for rates.

    Raises:
        ValueError: The sequences are empty, or differ in length.
    """
    estimate = mean([b - a for a, b in zip(first_values, second_values, strict=True)], clusters)
    if math.isinf(estimate.low):
        return estimate  # a single task or cluster gives no spread, so no finite interval
    return replace(
        estimate, low=max(estimate.low, -max_difference), high=min(estimate.high, max_difference)
    )


def bootstrap(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> IntervalEstimate:
    """Return a mean with the percentile interval of the clustered bootstrap.

    Whole clusters are drawn with replacement (Field and Welsh, Bootstrapping Clustered Data, 2007).
    The interval's ends are percentiles of the resampled means (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993, chapter 13).

    Args:
        values: Values such as paired differences.
        clusters: The cluster of each value; one cluster for each value gives the ordinary
            bootstrap.
        seed: The same seed gives the same interval.
        resamples: Number of resamples.

    Raises:
        ValueError: The sequence is empty.
    """
    import numpy as np

    if not values:
        raise ValueError("a mean of nothing")
    _, inverse = np.unique([str(cluster) for cluster in clusters], return_inverse=True)
    sizes = np.bincount(inverse)
    sums = np.bincount(inverse, weights=np.asarray(values, dtype=float))
    cluster_count = len(sizes)
    # Each resample is drawn separately, so memory holds the draws of only one resample.
    generator = np.random.default_rng(seed)
    resampled_means = np.empty(resamples)
    for row in range(resamples):
        draw_counts = np.bincount(
            generator.integers(cluster_count, size=cluster_count), minlength=cluster_count
        )
        resampled_means[row] = draw_counts @ sums / (draw_counts @ sizes)
    low, high = np.quantile(resampled_means, [ALPHA / 2, 1 - ALPHA / 2])
    return IntervalEstimate(math.fsum(values) / len(values), float(low), float(high), cluster_count)


def paired_power(n: int, difference: float, discordance: float, alpha: float = ALPHA) -> float:
    """Return the chance that `mcnemar` finds a difference of two success rates on `n` tasks.

    - Up to 5,000 tasks, the power is exact: a sum over the numbers of tasks that exactly one run
      may solve. Numbers beyond six standard deviations are omitted as negligible. Source: Duffy,
      Asymptotic and Exact Power for the McNemar Test and Its Analogue with R Controls per Case,
      1984.
    - Above 5,000 tasks, the power is asymptotic, which hardly differs at this size. Source: Connor,
      Sample Size for Testing Differences in Proportions for the Paired-Sample Design, 1987.

    Args:
        n: Tasks that both runs try.
        difference: The difference of the success rates.
        discordance: The share of the tasks that exactly one run solves; at least the difference.
        alpha: The level of the two-sided test. With several comparisons, this is the share of the
            common level that falls to one comparison.

    Raises:
        ValueError: The difference is 0, or above the discordance; or the discordance is above 1.
    """
    delta = _check_difference(difference, discordance)
    if n > _ASYMPTOTIC:
        spread = max(discordance - delta**2, _MIN_VARIANCE)
        critical_value = normal_quantile(1 - alpha / 2)
        return normal_cdf(
            (delta * math.sqrt(n) - critical_value * math.sqrt(discordance)) / math.sqrt(spread)
        )
    better_share = (discordance + delta) / (2 * discordance)
    return math.fsum(
        power
        * (
            binomial_cdf(critical_count, pairs, better_share)
            + binomial_cdf(critical_count, pairs, 1 - better_share)
        )
        for pairs, power, critical_count in _discordant_counts(n, discordance, alpha)
    )


def paired_tasks(
    difference: float, discordance: float, power: float = POWER, alpha: float = ALPHA
) -> int:
    """Return the number of tasks on which `mcnemar` finds a difference with a given power.

    The function inverts `paired_power`. At a discordance near 1, the power does not grow steadily
    with the number of tasks, so a somewhat smaller number may suffice, too.

    Args:
        difference: As for `paired_power`.
        discordance: As for `paired_power`.
        power: The chance of finding the difference.
        alpha: As for `paired_power`.

    Raises:
        ValueError: As for `paired_power`.
    """
    delta = _check_difference(difference, discordance)

    return _find_minimum(lambda n: paired_power(n, delta, discordance, alpha) >= power)


def detectable_rate_difference(
    n: int, discordance: float, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the smallest difference of two rates that `n` tasks show with a given power.

    Returns:
        The difference in (0, discordance]. None: even the greatest possible difference,
        `discordance`, has less power.

    Raises:
        ValueError: The discordance is above 1.
    """
    if discordance <= 0 or paired_power(n, discordance, discordance, alpha) < power:
        return None
    low, high = 0.0, discordance
    for _ in range(20):
        middle = (low + high) / 2
        if paired_power(n, middle, discordance, alpha) < power:
            low = middle
        else:
            high = middle
    return high


def mean_tasks(difference: float, spread: float, power: float = POWER, alpha: float = ALPHA) -> int:
    """Return the number of tasks at which the t interval of a mean difference probably excludes 0.

    Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2, with t for the
    number of tasks.

    Args:
        difference: The mean of the paired differences.
        spread: The standard deviation of the paired differences.
        power: The chance of finding the difference.
        alpha: The level, two-sided.

    Raises:
        ValueError: The difference is 0.
    """
    if difference == 0:
        raise ValueError("no number of tasks can show that a difference is 0")
    return _find_minimum(lambda n: detectable_mean(n, spread, power, alpha) <= abs(difference))


def detectable_mean(n: int, spread: float, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the smallest mean difference that `n` tasks show with a given power.

    The source is that of `mean_tasks`.

    Returns:
        The difference; infinity for fewer than two tasks.
    """
    if n < 2:
        return math.inf
    return (t_quantile(1 - alpha / 2, n - 1) + normal_quantile(power)) * spread / math.sqrt(n)


_ASYMPTOTIC = 5000
_MIN_VARIANCE = 1e-12
_SIGMAS = 6


@lru_cache(maxsize=100)
def _discordant_counts(n: int, discordance: float, alpha: float) -> list[tuple[int, float, int]]:
    """Return the probable numbers of tasks that exactly one run solves.

    Returns:
        For each number, the number, its probability, and its `_critical_count`.
    """
    expected_count, half_width = (
        n * discordance,
        _SIGMAS * math.sqrt(n * discordance * (1 - discordance)) + 1,
    )
    low, high = (
        max(0, math.floor(expected_count - half_width)),
        min(n, math.ceil(expected_count + half_width)),
    )
    return [
        (pairs, binomial_mass(pairs, n, discordance), _critical_count(pairs, alpha))
        for pairs in range(low, high + 1)
    ]


def _critical_count(pairs: int, alpha: float) -> int:
    """Return the greatest number of tasks that only the worse run solves while `mcnemar` rejects.

    Args:
        pairs: The number of tasks that exactly one run solves.
        alpha: The level of the test.

    Returns:
        The number; -1: `mcnemar` rejects for no number.
    """
    high = min(pairs, math.ceil(pairs / 2))
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if 2 * binomial_cdf(middle, pairs, 0.5) < alpha else (low, middle)
        )
    return low


def _find_minimum(is_sufficient: Callable[[int], bool]) -> int:
    """Return the smallest sufficient number.

    Args:
        is_sufficient: Whether a number suffices. All numbers above a sufficient one must suffice.
    """
    high = 1
    while not is_sufficient(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_sufficient(middle) else (middle, high)
    return high


def _check_difference(difference: float, discordance: float) -> float:
    delta = abs(difference)
    if delta == 0 or not delta <= discordance <= 1:
        raise ValueError(f"a difference of {difference} with a share of {discordance} that differ")
    return delta
