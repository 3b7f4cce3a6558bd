"""Every formula against values published elsewhere, or against SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy  # its parts are loaded when they are used: collecting tests is quick
from hypothesis import given, settings, strategies as st

from intercode.evaluate.comparison import (
    bootstrap,
    detectable_mean,
    detectable_rate_difference,
    difference,
    holm,
    mcnemar,
    mean_tasks,
    paired_power,
    paired_tasks,
)
from intercode.evaluate.distributions import binomial_tail, t_cdf, t_quantile
from intercode.evaluate.statistics import (
    clustered_error,
    mean,
    pass_at_k,
    pass_hat_k,
    rate,
    wilson,
)


@pytest.fixture
def generator() -> np.random.Generator:
    """The same numbers in each test, whichever others were run before."""
    return np.random.default_rng(0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 19, 999.5, 10**6])
def test_student_t(freedom: float) -> None:
    for p in (1e-4, 0.025, 0.3, 0.5, 0.6, 0.975, 0.9999):
        assert t_quantile(p, freedom) == pytest.approx(
            scipy.stats.t.ppf(p, freedom), rel=1e-7, abs=1e-12
        )
    for x in (-30.0, -1.0, 0.0, 0.1, 2.5):
        assert t_cdf(x, freedom) == pytest.approx(scipy.stats.t.cdf(x, freedom), rel=1e-8)


@given(st.integers(0, 400), st.integers(0, 400))
def test_binomial_tail(k: int, more: int) -> None:
    assert binomial_tail(k, k + more) == pytest.approx(scipy.stats.binom.cdf(k, k + more, 0.5))


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [
        (0, 10, 0.0, 0.27753279),
        (10, 10, 0.72246721, 1.0),
        (485, 1000, 0.45414286, 0.51597159),
        # Newcombe, Two-Sided Confidence Intervals for the Single Proportion, 1998, table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson(successes: int, total: int, low: float, high: float) -> None:
    assert wilson(successes, total) == pytest.approx((low, high), abs=1e-4)
    found = rate([True] * successes + [False] * (total - successes))
    assert (found.low, found.high) == wilson(successes, total)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_holds_the_rate(successes: int, failures: int) -> None:
    total = successes + failures
    low, high = wilson(successes, total)
    assert 0.0 <= low <= (successes / total if total else 0.5) <= high <= 1.0
    if total:
        expected = scipy.stats.binomtest(successes, total).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=50))
def test_a_mean_is_the_textbooks(values: list[float]) -> None:
    found, spread = mean(values), float(scipy.stats.sem(values))
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * spread
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert found.high - found.low == pytest.approx(2 * half, abs=1e-9)


def test_equal_clusters_count_as_their_means(generator: np.random.Generator) -> None:
    """Known: with G clusters of the same size the robust error is that of the G means."""
    values = generator.normal(size=(12, 7))
    clusters = list(np.repeat(np.arange(12), 7))
    expected = scipy.stats.sem(values.mean(axis=1))
    assert clustered_error(list(values.ravel()), clusters) == pytest.approx(expected)
    found = mean(list(values.ravel()), clusters)
    assert found.clusters == 12 and found.has_few_clusters
    assert found.high - found.value == pytest.approx(scipy.stats.t.ppf(0.975, 11) * expected)


def test_clusters_of_different_sizes() -> None:
    """By hand: residuals' sums -1, 1.5, -0.5; squares 3.5; times 3/2; root over 8."""
    values = [0, 0, 1, 1, 1, 0.5, 0.5, 0]
    clusters = ["a", "a", "b", "b", "b", "c", "c", "c"]
    assert clustered_error(values, clusters) == pytest.approx(math.sqrt(3.5 * 1.5) / 8)


def test_a_clustered_rate_is_less_sure() -> None:
    results = [True] * 50 + [False] * 50
    whole = rate(results, [n // 10 for n in range(100)])  # ten clusters that are all alike inside
    mixed = rate(results, [n % 10 for n in range(100)])
    plain = rate(results)
    assert whole.low < plain.low < plain.high < whole.high
    assert (mixed.low, mixed.high) == pytest.approx((plain.low, plain.high), abs=0.02)
    # Ten clusters of one kind are worth ten results.
    assert (whole.low, whole.high) == pytest.approx(wilson(5, 10))
    assert whole.has_few_clusters and not rate(results, list(range(100))).has_few_clusters
    # All alike: a cluster is worth one result; less, where they differ in size.
    assert rate([True] * 100, [n // 10 for n in range(100)]).low == wilson(10, 10)[0]
    assert rate([True] * 100, [n // 12 for n in range(100)]).low < wilson(9, 9)[0]
    assert rate([True] * 100, ["one"] * 100).low == 0.0


def test_fewer_degrees_of_freedom_make_a_clustered_rate_less_sure() -> None:
    results = [n % 3 != 0 or n < 30 for n in range(102)]
    clusters = [n // 12 for n in range(102)]  # the last one is smaller
    found = rate(results, clusters)
    error = clustered_error([float(x) for x in results], clusters)
    p = sum(results) / 102
    n = (scipy.stats.t.ppf(0.975, 101) / scipy.stats.t.ppf(0.975, 8)) ** 2 * p * (1 - p) / error**2
    assert (found.low, found.high) == pytest.approx(wilson(p * n, n))


@pytest.mark.parametrize("solved", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("epochs", [2, 3, 10])
def test_attempts_that_tell_nothing_new_change_no_interval(solved: int, epochs: int) -> None:
    tasks = [n < solved for n in range(8)]
    once = rate(tasks)
    more = rate(tasks * epochs, [*range(8)] * epochs)
    assert (more.low, more.high) == pytest.approx((once.low, once.high))


def test_a_clustered_rate_keeps_its_promise(generator: np.random.Generator) -> None:
    """Of 400 samples of 40 clusters of 10, about 95 % of the intervals hold the true rate."""
    held = held_plain = 0
    for _ in range(400):
        chances = generator.beta(1, 1, size=40)
        results = list((generator.random((40, 10)) < chances[:, None]).ravel())
        found = rate(results, list(np.repeat(np.arange(40), 10)))
        held += found.low <= 0.5 <= found.high
        low, high = wilson(sum(results), 400)
        held_plain += low <= 0.5 <= high
    assert 0.92 <= held / 400 <= 0.985
    assert held_plain / 400 < 0.8


@given(st.integers(1, 12), st.data())
def test_pass_at_k_is_what_every_choice_gives(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    choices = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([max(x) for x in choices]))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([min(x) for x in choices]))
    # The stable form that Chen et al. print.
    if n - c >= k:
        assert pass_at_k(n, c, k) == pytest.approx(
            1 - np.prod(1 - k / np.arange(n - c + 1, n + 1)), abs=1e-12
        )


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0), (0, 0, 1)])
def test_attempts_that_cannot_tell(n: int, c: int, k: int) -> None:
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="attempts"):
            function(n, c, k)


def pairs(both: int, only_first: int, only_second: int, neither: int) -> tuple[list[bool], ...]:
    first = [True] * (both + only_first) + [False] * (only_second + neither)
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return first, second


def test_mcnemar() -> None:
    # Fagerland, Lydersen and Laake 2013, table 3: 1 and 7 of 21 pairs differ, exact p = 0.070.
    found = mcnemar(*pairs(1, 1, 7, 12))
    assert (found.only_first, found.only_second) == (1, 7)
    assert found.p == pytest.approx(0.0703125)
    assert mcnemar(*pairs(5, 0, 0, 5)).p == mcnemar(*pairs(0, 3, 3, 0)).p == 1.0
    with pytest.raises(ValueError):
        mcnemar([True], [])


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    expected = scipy.stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(*pairs(3, b, c, 4)).p == pytest.approx(expected)


def test_a_paired_difference_is_the_paired_t_test(generator: np.random.Generator) -> None:
    first, second = generator.random(40), generator.random(40) + 0.1
    found = difference(list(first), list(second))
    expected = scipy.stats.ttest_rel(second, first).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_bootstrap(generator: np.random.Generator) -> None:
    values = list(generator.normal(1.0, 2.0, size=300))
    single = bootstrap(values, range(300))
    assert single == bootstrap(values, range(300)) != bootstrap(values, range(300), seed=1)
    plain = mean(values)
    assert (single.low, single.high) == pytest.approx((plain.low, plain.high), abs=0.05)
    # Clusters of different sizes: each drawn value still counts as one.
    same = bootstrap([1.0] * 10, ["a"] * 7 + ["b"] * 2 + ["c"])
    assert same.low == same.high == pytest.approx(1.0)
    # Whole clusters: as wide as the robust error says.
    shared = np.repeat(generator.normal(size=60), 5) + generator.normal(size=300)
    clusters = list(np.repeat(np.arange(60), 5))
    drawn, robust = bootstrap(list(shared), clusters), mean(list(shared), clusters)
    assert drawn.high - drawn.low == pytest.approx(robust.high - robust.low, rel=0.15)
    assert drawn.high - drawn.low > 1.3 * (mean(list(shared)).high - mean(list(shared)).low)


def test_no_difference_is_never_found() -> None:
    with pytest.raises(ValueError, match="difference"):
        paired_tasks(0.0, 0.2)


@pytest.mark.parametrize(
    ("n", "delta", "share", "alpha"),
    [(6, 0.9, 0.95, 0.05), (60, 0.2, 0.4, 0.05), (200, 0.1, 0.2, 0.01), (500, 0.05, 0.15, 0.05)],
)
def test_the_power_is_that_of_the_test_that_decides(
    n: int, delta: float, share: float, alpha: float
) -> None:
    """Summed over every number of differing pairs and of wins."""
    power = 0.0
    for differing in range(n + 1):
        wins = np.arange(differing + 1)
        worse = np.minimum(wins, differing - wins)
        found = np.minimum(1, 2 * scipy.stats.binom.cdf(worse, differing, 0.5)) < alpha
        chance = scipy.stats.binom.pmf(wins, differing, (share + delta) / (2 * share))
        power += scipy.stats.binom.pmf(differing, n, share) * chance[found].sum()
    assert paired_power(n, delta, share, alpha) == pytest.approx(power, abs=1e-6)


def test_what_is_said_to_be_needed_is_what_the_test_shows() -> None:
    assert paired_tasks(1.0, 1.0) == 6
    assert mcnemar([True] * 6, [False] * 6).p < 0.05 < mcnemar([True] * 5, [False] * 5).p


def test_with_very_many_tasks_it_is_asymptotic() -> None:
    assert paired_power(5000, 0.02, 0.2) == pytest.approx(paired_power(5001, 0.02, 0.2), abs=0.01)


@given(st.floats(0.03, 0.5), st.floats(0, 0.5))
@settings(deadline=None, max_examples=25)
def test_power_and_numbers_are_inverse(delta: float, more: float) -> None:
    share = min(1.0, delta + more)
    n = paired_tasks(delta, share)
    assert paired_power(n, delta, share) >= 0.8
    assert n == 1 or paired_power(n - 1, delta, share) < 0.8
    smallest = detectable_rate_difference(n, share)
    assert smallest is not None and smallest <= delta + 1e-5


@given(st.floats(0.02, 1.0), st.floats(0.01, 1.0))
def test_numbers_for_means_are_inverse(delta: float, spread: float) -> None:
    n = mean_tasks(delta, spread)
    assert detectable_mean(n, spread) <= delta
    assert n == 2 or detectable_mean(n - 1, spread) > delta
    # By the noncentral t distribution, whose power the formula is made for.
    freedom, shift = n - 1, delta / spread * math.sqrt(n)
    power = scipy.stats.nct.sf(scipy.stats.t.ppf(0.975, freedom), freedom, min(shift, 30))
    assert n < 8 or power > 0.77


def test_too_few_tasks_detect_nothing() -> None:
    assert (
        detectable_rate_difference(3, 0.3) is None and detectable_rate_difference(100, 0.0) is None
    )


def test_holm_against_a_worked_example() -> None:
    # By hand: 4 · 0.005, 3 · 0.01, 2 · 0.03, and no less than the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([]) == []
