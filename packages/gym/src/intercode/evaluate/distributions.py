"""The probability distributions that the statistics need, without SciPy. Pure functions."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

Z_SCORE_95 = NormalDist().inv_cdf(0.975)
"""The 97.5 % quantile of the normal distribution, 1.96, which 95 % intervals use."""
_STEPS = 300
_MIN_MAGNITUDE = 1e-300


def normal_quantile(p: float) -> float:
    """Return the value that a standard normal variable stays below with probability `p`.

    Args:
        p: A probability in (0, 1).
    """
    return NormalDist().inv_cdf(p)


def normal_cdf(x: float) -> float:
    """Return the probability that a standard normal variable is at most `x`."""
    return NormalDist().cdf(x)


@lru_cache(maxsize=1000)
def t_quantile(p: float, freedom: float) -> float:
    """Return the value that Student's t stays below with probability `p`; by bisection.

    Args:
        p: A probability in (0, 1).
        freedom: Degrees of freedom, above 0.
    """
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return high


def t_cdf(x: float, freedom: float) -> float:
    """Return the probability that Student's t is at most `x`.

    The formula is Abramowitz and Stegun 1964, 26.7.1.
    """
    tail = _beta(freedom / 2, 0.5, freedom / (freedom + x * x)) / 2
    return 1 - tail if x > 0 else tail


def binomial_tail(k: int, n: int) -> float:
    """Return the exact probability of at most `k` heads in `n` throws of a fair coin."""
    term = total = 1
    for i in range(k):
        term = term * (n - i) // (i + 1)
        total += term
    return total / (1 << n) if k >= 0 else 0.0


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most `k` successes in `n` trials.

    The formula is Abramowitz and Stegun 1964, 26.5.24.

    Args:
        k: Maximum number of successes.
        n: Number of trials.
        p: Probability of success in a trial, in [0, 1].
    """
    if k < 0:
        return 0.0
    return 1.0 if k >= n else _beta(n - k, k + 1, 1 - p)


def binomial_mass(k: int, n: int, p: float) -> float:
    """Return the probability of exactly `k` successes in `n` trials.

    Args:
        k: Number of successes.
        n: Number of trials.
        p: Probability of success in a trial, in [0, 1].
    """
    if p in (0, 1):
        return float(k == n * p)
    log_coefficient = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_coefficient + k * math.log(p) + (n - k) * math.log1p(-p))


def _beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function (Press et al., Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    prefactor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # The continued fraction converges fast for small `x` only. For large `x` the function uses the
    # symmetry I_x(a, b) = 1 - I_(1-x)(b, a).
    if x < (a + 1) / (a + b + 2):
        return prefactor * _fraction(a, b, x) / a
    return 1 - prefactor * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of `_beta`, by Lentz's method (Numerical Recipes, 6.4)."""
    numerator_ratio, denominator_ratio = 1.0, 1 / _avoid_zero(1 - (a + b) * x / (a + 1))
    value = denominator_ratio
    for index in range(1, _STEPS):
        step = 1.0
        for numerator in (
            index * (b - index) * x / ((a + 2 * index - 1) * (a + 2 * index)),
            -(a + index) * (a + b + index) * x / ((a + 2 * index) * (a + 2 * index + 1)),
        ):
            denominator_ratio = 1 / _avoid_zero(1 + numerator * denominator_ratio)
            numerator_ratio = _avoid_zero(1 + numerator / numerator_ratio)
            step = numerator_ratio * denominator_ratio
            value *= step
        if abs(step - 1) < 1e-15:
            break
    return value


def _avoid_zero(value: float) -> float:
    return value if abs(value) > _MIN_MAGNITUDE else _MIN_MAGNITUDE
