"""Rates, means and their intervals: pure functions of numbers, each with its source.

All intervals are 95 % intervals. A *cluster* is a group of dependent results: results on one
database, on one file system, or from the attempts at one task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from intercode.evaluate.distributions import Z_SCORE_95, t_quantile

FEW_CLUSTERS = 20
"""The number of clusters below which a clustered interval is likely to be too narrow, because so
few clusters hardly show their spread.

Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference, 2015, section VI: "few" is
anything from under 20 to under 50.
"""


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A rate or a mean, and the ends of the confidence interval."""

    value: float
    low: float
    high: float
    clusters: int | None = None
    """The number of clusters that the interval accounts for; None: no clusters."""

    @property
    def has_few_clusters(self) -> bool:
        """Whether the clusters are so few that the interval is likely to be too narrow."""
        return self.clusters is not None and self.clusters < FEW_CLUSTERS


def wilson(successes: float, total: float, z: float = Z_SCORE_95) -> tuple[float, float]:
    """Return the score interval of a proportion; with the default of `z`, the 95 % interval.

    Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.

    Args:
        successes: Number of successes, from 0 to `total`.
        total: Number of results; an effective number need not be an integer.
        z: Quantile of the normal distribution for the interval's level.

    Returns:
        Both ends of the interval, in [0, 1]; (0, 1) without results.
    """
    if total == 0:
        return 0.0, 1.0
    proportion = successes / total
    scale = 1 + z * z / total
    adjusted_proportion = (proportion + z * z / (2 * total)) / scale
    half_width = (
        z / scale * math.sqrt(proportion * (1 - proportion) / total + z * z / (4 * total * total))
    )
    # At p = 0 the lower end is exactly 0, and at p = 1 the upper end is exactly 1. Rounding must
    # not move an end beyond 0 or 1.
    low = 0.0 if successes == 0 else max(0.0, adjusted_proportion - half_width)
    high = 1.0 if successes == total else min(1.0, adjusted_proportion + half_width)
    return low, high


def rate(
    successes: Sequence[bool],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> IntervalEstimate:
    """Return a success rate with Wilson's interval.

    With clusters, the interval is computed for an effective number of results instead of n, the
    number of results. The effective number is the number of independent results with the same
    information: n divided by the design effect (Kish 1965), never more than n. A correction
    accounts for the clusters' degrees of freedom. Sources:

    - The correction: Korn and Graubard, Confidence Intervals for Proportions with Small Expected
      Number of Positive Counts Estimated from Survey Data, 1998.
    - The choice of Wilson's interval, whose coverage is the best: Dean and Pagano, Evaluating
      Confidence Interval Methods for Binomial Proportions in Clustered Surveys, 2015.

    If all results are equal, the design effect is unknown. The effective number is then the number
    of clusters, or Kish's number (`_kish`) for clusters of different sizes. For clusters of equal
    size the effective number is never below the number of clusters. More attempts without new
    information therefore widen no interval.

    With weights, the result is the rate of a weighted sample, to first order. Kish's number then
    replaces n. Source: Binder, On the Variances of Asymptotically Normal Estimators from Complex
    Surveys, 1983.

    Args:
        successes: Whether each result is a success.
        clusters: The cluster of each result; None: all results are independent.
        weights: The weight of each result; None: equal weights.

    Returns:
        The rate and its 95 % interval, in [0, 1]; the whole range for a single cluster.

    Raises:
        ValueError: The sequence is empty, or weights are given without clusters.
    """
    n: float = len(successes)
    if n == 0:
        raise ValueError("rate of an empty sequence")
    if weights is not None and clusters is None:
        raise ValueError("weights need clusters")
    proportion = _centre([float(success) for success in successes], weights)
    if clusters is None:
        return IntervalEstimate(proportion, *wilson(sum(successes), n))
    cluster_count = len(set(clusters))
    if cluster_count < 2:
        # One cluster contains no information on other clusters.
        return IntervalEstimate(proportion, 0.0, 1.0, cluster_count)
    error = clustered_error([float(success) for success in successes], clusters, weights)
    totals = _totals(clusters, weights or [1.0] * len(successes))
    kish_size = _kish(totals)
    if weights is not None:
        n = max(2.0, _kish(weights))
    correction = (t_quantile(0.975, n - 1) / t_quantile(0.975, cluster_count - 1)) ** 2
    design_size = proportion * (1 - proportion) / error**2 if error > 0 else n
    if proportion in (0, 1):
        effective_size = kish_size
    elif min(totals) == max(totals):
        effective_size = min(n, max(kish_size, design_size * correction))
    else:
        effective_size = min(n, design_size * correction)
    return IntervalEstimate(
        proportion, *wilson(proportion * effective_size, effective_size), cluster_count
    )


def _totals(clusters: Sequence[Hashable], weights: Sequence[float]) -> list[float]:
    """Return the weight of each cluster."""
    totals: dict[Hashable, float] = defaultdict(float)
    for cluster, weight in zip(clusters, weights, strict=True):
        totals[cluster] += weight
    return [*totals.values()]


def _kish(weights: Sequence[float]) -> float:
    """Return Kish's number: the number of equal weights with the same information (Kish 1965)."""
    return math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)


def mean(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> IntervalEstimate:
    """Return a mean with its t interval.

    With clusters, the interval uses the cluster-robust standard error (`clustered_error`).

    A single value or cluster contains no information on the spread: then both ends are infinite.

    Args:
        values: The values.
        clusters: The cluster of each value; None: all values are independent.
        weights: The weight of each value; None: equal weights.

    Raises:
        ValueError: The sequence is empty.
    """
    n = len(values)
    if n == 0:
        raise ValueError("mean of an empty sequence")
    mean_value = _centre(values, weights)
    cluster_count = None if clusters is None else len(set(clusters))
    independent = n if cluster_count is None else cluster_count
    if independent < 2:
        return IntervalEstimate(mean_value, -math.inf, math.inf, cluster_count)
    error = clustered_error(values, range(n) if clusters is None else clusters, weights)
    half_width = t_quantile(0.975, independent - 1) * error
    return IntervalEstimate(
        mean_value, mean_value - half_width, mean_value + half_width, cluster_count
    )


def _centre(values: Sequence[float], weights: Sequence[float] | None) -> float:
    if weights is None:
        return math.fsum(values) / len(values)
    pairs = zip(values, weights, strict=True)
    return math.fsum(value * weight for value, weight in pairs) / math.fsum(weights)


def clustered_error(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float] | None = None,
) -> float:
    """Return the cluster-robust standard error of a mean.

    With one value per cluster, the result is the usual standard error. Sources:

    - The estimator: Liang and Zeger, Longitudinal Data Analysis Using Generalized Linear Models,
      1986.
    - The factor G/(G-1) for G clusters: Cameron and Miller 2015, equation 12.
    - The use for evaluations: Miller, Adding Error Bars to Evals, 2024, section 2.2.

    Args:
        values: The values.
        clusters: The cluster of each value; at least two different clusters.
        weights: The weight of each value; None: equal weights.
    """
    mean_value = _centre(values, weights)
    weights = weights or [1.0] * len(values)
    sums: dict[Hashable, float] = {}
    for value, cluster, weight in zip(values, clusters, weights, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + weight * (value - mean_value)
    cluster_count = len(sums)
    squares = math.fsum(residual * residual for residual in sums.values())
    return math.sqrt(squares * cluster_count / (cluster_count - 1)) / math.fsum(weights)


def pass_of_attempts(rates: Sequence[float], k: int) -> tuple[float, float]:
    """Return pass@k and pass^k of the attempts at a task, some of which may have forks.

    Forks of an attempt are not independent attempts, so each attempt counts with one of its forks.
    The result is the mean of `pass_at_k`, and the mean of `pass_hat_k`, over all choices of forks.
    Without forks each rate is 0 or 1, and the results equal those of the two functions.

    Args:
        rates: For each attempt, the share of its forks that succeed, in [0, 1].
        k: The number of attempts, at most the number of rates.

    Raises:
        ValueError: `k` is below 1, or above the number of attempts.
    """
    _check(len(rates), 0, k)

    def all_of_k(success_rates: Sequence[float]) -> float:
        sums = [1.0] + [0.0] * k  # elementary symmetric polynomials
        for success_rate in success_rates:
            for size in range(k, 0, -1):
                sums[size] += sums[size - 1] * success_rate
        return min(1.0, sums[k] / math.comb(len(success_rates), k))

    return 1 - all_of_k([1 - rate for rate in rates]), all_of_k(rates)


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of the chance that any of `k` attempts at a task succeeds.

    Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1.

    Raises:
        ValueError: `k` is below 1, or above the number of attempts.
    """
    _check(attempts, successes, k)
    return 1 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """Return an unbiased estimate of pass^k, the chance that all of `k` attempts at a task succeed.

    Yao et al., τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains, 2024.

    Raises:
        ValueError: `k` is below 1, or above the number of attempts.
    """
    _check(attempts, successes, k)
    return math.comb(successes, k) / math.comb(attempts, k)


def _check(attempts: int, successes: int, k: int) -> None:
    if not (1 <= k <= attempts and 0 <= successes <= attempts):
        raise ValueError(
            f"pass@k and pass^k need at least k attempts: k is {k}, and {successes} of "
            f"{attempts} attempts succeeded"
        )
