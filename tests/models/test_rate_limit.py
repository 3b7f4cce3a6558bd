"""The pace, by a clock of the tests' own, and once by a real one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.errors import UsageError
from intercode.models import RateLimit
from intercode.models.rate_limit import SLOWED


class Clock:
    """Time passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def limit(clock: Clock, requests: float | None = None, tokens: float | None = None) -> RateLimit:
    return RateLimit(requests, tokens, clock=clock, sleep=clock.sleep)


@given(
    st.integers(1, 500),
    st.integers(100, 100_000),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10)), min_size=1, max_size=60),
)
def test_never_above_the_limits_in_any_minute(
    requests: int, tokens: int, calls: list[tuple[int, float]]
) -> None:
    clock = Clock()
    pace = limit(clock, requests, tokens)
    granted: list[tuple[float, int]] = []
    for amount, idle in calls:
        clock.now += idle
        granted.append((pace.acquire(amount).granted, amount))
    for start, _ in granted:
        minute = [n for moment, n in granted if start <= moment < start + 60 - 1e-6]
        assert len(minute) <= requests + 1e-6
        # The last one alone may be larger than a minute's worth.
        assert sum(minute[:-1]) <= tokens + 1e-6


def test_without_limits_nobody_waits() -> None:
    clock = Clock()
    pace = limit(clock)
    for _ in range(1000):
        pace.used(pace.acquire(1000), 500)
    assert clock.now == 1000


def test_tokens_that_were_not_used_are_given_back() -> None:
    clock = Clock()
    pace = limit(clock, tokens=600)
    pace.used(pace.acquire(600), 60)
    pace.acquire(1)
    assert clock.now == pytest.approx(1006)


def test_all_wait_as_long_as_the_provider_asks() -> None:
    clock = Clock()
    pace = limit(clock)
    pace.refused(pace.acquire(10), 30.0)
    assert pace.acquire(10).granted == 1030


def test_who_waits_for_a_turn_hears_of_a_refusal() -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        if clock.now < 1001:
            pace.refused(first, 30.0)
        clock.sleep(seconds)

    pace = RateLimit(6, clock=clock, sleep=sleep)
    first = pace.acquire(10)
    assert pace.acquire(10).granted >= 1030


def test_refusals_together_slow_the_pace_once_and_it_comes_back() -> None:
    clock = Clock()
    pace = limit(clock, requests=600)  # one in a tenth of a second
    before = [pace.acquire(0) for _ in range(100)]
    for permit in before[-8:]:
        pace.refused(permit, 1.0)
    start = pace.acquire(0)
    permits = [pace.acquire(0) for _ in range(10)]
    slow = (permits[-1].granted - start.granted) / 10
    assert 0.105 < slow <= 0.1 / SLOWED
    for _ in range(200):
        pace.acquire(0)
    moment = clock.now
    pace.acquire(0)
    pace.acquire(0)
    assert clock.now - moment == pytest.approx(0.2, rel=0.01), "as it was, and not above"


def test_pauses_grow_while_nobody_gets_through_but_the_pace_does_not_fall() -> None:
    clock = Clock()
    pace = limit(clock)
    for _ in range(40):
        clock.now += 0.1
        permit = pace.acquire(0)
    waits = []
    for _ in range(9):
        pace.refused(permit, None)
        moment, permit = clock.now, pace.acquire(0)
        waits.append(permit.granted - moment)
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    moment = clock.now
    for _ in range(10):
        pace.acquire(0)
    assert clock.now - moment < 2


def test_what_callers_think_of_tokens_is_corrected() -> None:
    clock = Clock()
    pace = limit(clock, tokens=6000)
    for _ in range(50):
        pace.used(pace.acquire(1000), 100)
    moment = clock.now
    for _ in range(10):
        pace.acquire(1000)
    assert clock.now - moment == pytest.approx(10, rel=0.2)


def test_threads_share_one_pace() -> None:
    pace, began = RateLimit(requests=6000), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        granted = sorted(p.granted for p in pool.map(lambda _: pace.acquire(1), range(40)))
    assert all(moment >= began + n * 0.01 for n, moment in enumerate(granted))


def test_limits_are_above_nothing() -> None:
    for limits in ({"requests": 0}, {"tokens": -5}, {"requests": float("nan")}):
        with pytest.raises(UsageError, match="above 0"):
            RateLimit(**limits)  # type: ignore[arg-type]
