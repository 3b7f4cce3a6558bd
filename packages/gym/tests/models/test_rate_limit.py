"""The pace of calls, by a clock of the tests' own, and at a provider that refuses many."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from intercode.errors import UsageError
from intercode.models import RateLimit, Retry


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
        granted.append((pace.acquire(amount), amount))
        pace.release(granted[-1][0])
    for start, _ in granted:
        minute = [n for moment, n in granted if start <= moment < start + 60 - 1e-6]
        assert len(minute) <= requests + 1e-6
        # The last one alone may be larger than a minute's worth.
        assert sum(minute[:-1]) <= tokens + 1e-6


def test_without_limits_nobody_waits() -> None:
    clock = Clock()
    pace = limit(clock)
    for _ in range(1000):
        pace.acquire(1000)
    assert clock.now == 1000


def test_tokens_that_were_not_used_are_given_back() -> None:
    clock = Clock()
    pace = limit(clock, tokens=600)
    pace.release(pace.acquire(600), unused_tokens=540)
    assert pace.acquire(1) == pytest.approx(1006)


def test_all_wait_as_long_as_the_provider_asks() -> None:
    clock = Clock()
    pace = limit(clock)
    pace.acquire(10)
    pace.refuse(30.0)
    assert pace.acquire(10) == 1030


def test_a_wait_of_a_day_is_not_waited_for() -> None:
    clock = Clock()
    pace = limit(clock)
    pace.acquire(10)
    pace.refuse(86400.0)
    assert pace.acquire(10) == 1000, "the call itself ends in an error; so will the others"


def test_a_sleeper_hears_of_a_refusal() -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        if clock.now < 1001:
            pace.refuse(30.0)
        clock.sleep(seconds)

    pace = RateLimit(6, clock=clock, sleep=sleep)
    pace.acquire(10)
    assert pace.acquire(10) == 1030


def test_pauses_grow_until_a_call_succeeds() -> None:
    clock = Clock()
    pace, waits = limit(clock), []
    early, started = pace.acquire(0), pace.acquire(0)
    for number in range(11):
        if number == 9:
            pace.release(started)
            pace.acquire(0)
        pace.refuse(None)
        if number == 0:
            pace.release(early)  # it tells nothing of the time since
        moment, started = clock.now, pace.acquire(0)
        waits.append(started - moment)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1, 2]


def test_a_refusal_halves_the_calls_under_way_and_successes_bring_them_back() -> None:
    clock = Clock()
    pace = limit(clock)
    for _ in range(8):
        pace.acquire(0)
    for _ in range(3):
        pace.refuse(1.0)  # together: it counts once
    assert pace._width == 4
    for _ in range(5):
        pace.release(1000, succeeded=False)
    assert pace._width == 4, "no answer: no reason to call more"
    pace.release(pace.acquire(0))
    assert pace._width == 4.25


@pytest.mark.parametrize("says_when", [True, False])
@pytest.mark.parametrize(("count", "seconds"), [(10, 1), (2, 1), (60, 60)])
def test_a_storm_loses_no_call(count: int, seconds: float, says_when: bool) -> None:
    """Sixteen workers at a provider with few calls; time passes a hundred times as fast."""
    lock, taken, refused = threading.Lock(), [], []

    def clock() -> float:
        return time.monotonic() * 100

    def sleep(wait: float) -> None:
        time.sleep(wait / 100)  # allow sleep: a call takes its time

    def provider() -> float | None:
        with lock:
            now = clock()
            taken[:] = [moment for moment in taken if moment > now - seconds]
            if len(taken) == count:
                refused.append(now)
                return taken[0] + seconds - now
            taken.append(now)
            return None

    pace = RateLimit(clock=clock, sleep=sleep)

    def call(number: int) -> bool:
        ticket = pace.ticket()
        for _ in range(Retry().retries + 1):
            started = pace.acquire(500, ticket)
            if (when := provider()) is None:
                sleep(0.3)
                pace.release(started, unused_tokens=440)
                return True
            pace.refuse(when if says_when else None)
        return False

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(call, range(130)))
    assert refused


def test_threads_share_one_pace() -> None:
    pace, began = RateLimit(requests=6000), time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        granted = sorted(pool.map(lambda _: pace.acquire(1), range(40)))
    assert all(moment >= began + n * 0.01 for n, moment in enumerate(granted))


def test_limits_are_above_nothing() -> None:
    for limits in ({"requests": 0}, {"tokens": -5}, {"requests": float("nan")}):
        with pytest.raises(UsageError, match="above 0"):
            RateLimit(**limits)  # type: ignore[arg-type]
    for options in ({"timeout": 0}, {"retries": -1}, {"first_wait": -1}):
        with pytest.raises(UsageError, match="not below 0"):
            Retry(**options)  # type: ignore[arg-type]
