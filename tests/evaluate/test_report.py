"""Statistics, against numbers worked out elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.episode import Status
from intercode.evaluate.report import Outcome, by_tag, errors_by_type, summarize, wilson


def outcome(
    reward: float | None, status: Status = "submitted", *tags: str, turns: int = 1
) -> Outcome:
    return Outcome("t", 0, status, reward, reward == 1.0, turns, 2.0, tags=tags)


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [  # the textbook values
        (0, 10, 0.0, 0.27753279),
        (5, 10, 0.23659309, 0.76340691),
        (10, 10, 0.72246721, 1.0),
        (485, 1000, 0.45414286, 0.51597159),
    ],
)
def test_wilson(successes: int, total: int, low: float, high: float) -> None:
    assert wilson(successes, total) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_holds_the_rate(successes: int, failures: int) -> None:
    total = successes + failures
    low, high = wilson(successes, total)
    assert 0.0 <= low <= (successes / total if total else 0.5) <= high <= 1.0


def test_errors_are_no_zeros() -> None:
    stats = summarize(
        [
            outcome(1.0),
            outcome(0.5, "truncated", turns=3),
            outcome(0.0, "skipped"),
            outcome(None, "error"),
        ]
    )
    assert (stats.episodes, stats.errors, stats.successes) == (3, 1, 1)
    assert stats.success_rate == pytest.approx(1 / 3)
    assert stats.mean_reward == pytest.approx(0.5)
    assert stats.mean_turns == pytest.approx(5 / 3)
    assert (stats.truncated, stats.skipped) == (1, 1)


def test_nothing_has_no_rate() -> None:
    stats = summarize([outcome(None, "error")])
    assert stats.success_rate is stats.mean_reward is stats.success_low is None


def test_tags_and_errors() -> None:
    outcomes = [outcome(1.0, "submitted", "a", "b"), outcome(0.0, "submitted", "b")]
    tags = by_tag(outcomes)
    assert list(tags) == ["b", "a"]
    assert (tags["a"].success_rate, tags["b"].success_rate) == (1.0, 0.5)
    assert errors_by_type([*outcomes, outcome(None, "error")]) == {"unknown": 1}
