"""Many workers at a provider that says "too many": how near they come to what it allows."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable

import pytest

from intercode.models import RateLimit
from intercode.models.retry import backoff

WORKERS, CALLS, RETRIES = 16, 400, 6
THOUGHT, TOOK = 500, 60
"""Tokens."""


class World:
    """Time of our own: it passes when all who live in it sleep."""

    def __init__(self, lives: int) -> None:
        self.now = 0.0
        self._lives = lives
        self._changed = threading.Condition()
        self._asleep: list[tuple[float, int]] = []
        self._number = 0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._number += 1
            until = (self.now + seconds, self._number)
            heapq.heappush(self._asleep, until)
            self._pass()
            self._changed.wait_for(lambda: until not in self._asleep)

    def end(self) -> None:
        with self._changed:
            self._lives -= 1
            self._pass()

    def _pass(self) -> None:
        if self._asleep and len(self._asleep) == self._lives:
            self.now, _ = heapq.heappop(self._asleep)
            self._changed.notify_all()


Provider = Callable[[float], "float | None"]
"""Moment → nothing, or for how long it is to be left alone."""


def allows(count: int, seconds: float) -> Provider:
    taken: list[float] = []

    def ask(now: float) -> float | None:
        taken[:] = [moment for moment in taken if moment > now - seconds]
        if len(taken) == count:
            return taken[0] + seconds - now
        taken.append(now)
        return None

    return ask


class Storm:
    """Workers who call as often as they may."""

    def __init__(self, provider: Provider, *, says_when: bool, latency: float) -> None:
        self.world = World(WORKERS)
        self.pace = RateLimit(clock=self.world.clock, sleep=self.world.sleep)
        self.failed = self.refused = 0
        self._provider = provider
        self._says_when = says_when
        self._latency = latency
        self._left = iter(range(CALLS))

    def seconds(self) -> float:
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.world.now

    def _work(self, number: int) -> None:
        self.world.sleep(number / 1000)  # so that there is never more than one awake
        chance = random.Random(number)
        while next(self._left, None) is not None:
            self._call(chance)
        self.world.end()

    def _call(self, chance: random.Random) -> None:
        for failures in range(1, RETRIES + 2):
            permit = self.pace.acquire(THOUGHT)
            when = self._provider(self.world.now)
            if when is None:
                self.world.sleep(self._latency * chance.uniform(0.5, 1.5))
                self.pace.used(permit, TOOK)
                return
            self.world.sleep(0.02)
            self.refused += 1
            told = when if self._says_when else None
            self.pace.refused(permit, told)
            self.world.sleep(backoff(failures, told, chance) or 0)
        self.failed += 1


@pytest.mark.parametrize("says_when", [True, False])
@pytest.mark.parametrize("latency", [0.05, 1.0])
@pytest.mark.parametrize(("count", "seconds"), [(10, 1), (2, 1), (60, 60), (300, 60)])
def test_a_storm_ends_near_what_is_allowed(
    count: int, seconds: float, latency: float, says_when: bool
) -> None:
    storm = Storm(allows(count, seconds), says_when=says_when, latency=latency)
    least = max((CALLS - 1) // count * seconds, CALLS * latency / WORKERS)
    assert storm.seconds() < 1.7 * least
    assert storm.failed == 0
    assert storm.refused < CALLS / (8 if says_when else 1)
