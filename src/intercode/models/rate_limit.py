"""How often a provider is called: a pace that all threads share, and that adapts to refusals."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from intercode.errors import UsageError

WINDOW = 60.0
"""Seconds that limits, and what is observed, are about."""
BRIEFEST = 1.0
"""Seconds that are looked back on at least, to see what the pace was."""
SLOWED = 0.7
"""Of the pace that was refused, what is left of it."""
RECOVERY_CALLS = 64
"""It comes back, and begins to go beyond, in the time of so many calls, …"""
BRIEFEST_RECOVERY, LONGEST_RECOVERY = 8.0, 60.0
"""… but neither in less nor in more seconds."""
LEARNING = 0.1
"""How much a call counts, at least, in what is known of the tokens that calls take."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds in which nobody calls, where the provider does not say how long."""

_BEND = (1 - SLOWED) ** (1 / 3)
"""When it is back where it was refused, in recovery times: the K of CUBIC."""


class _Pace:
    """So many of something per second, evenly: of requests, or of tokens.

    After a refusal it grows as TCP CUBIC has it (RFC 9438): quickly back to where it was refused,
    slowly around that, as it is about right, and quickly beyond, as times have changed.
    """

    def __init__(self, per_minute: float | None, least: float) -> None:
        self._ceiling = None if per_minute is None else per_minute / WINDOW
        self._least = least
        self._refused_at: float | None = None
        self._since = 0.0
        self._recovery = LONGEST_RECOVERY
        self.due = 0.0
        """When the next may start."""

    def rate(self, now: float) -> float | None:
        """Per second; ``None`` is as many as there are."""
        if self._refused_at is None:
            return self._ceiling
        recovered = (now - self._since) / self._recovery
        rate: float = self._refused_at * (1 + (recovered - _BEND) ** 3)
        return rate if self._ceiling is None else min(rate, self._ceiling)

    def take(self, amount: float, start: float) -> None:
        if rate := self.rate(start):
            self.due = max(self.due, start) + amount / rate

    def correct(self, difference: float, now: float) -> None:
        if rate := self.rate(now):
            self.due += difference / rate

    def slow(self, accepted: float, now: float, recovery: float) -> None:
        """So many per second were accepted of late, and that, or less, is what is allowed."""
        rate = self.rate(now)
        self._refused_at = max(accepted if rate is None else min(rate, accepted), self._least)
        self._since, self._recovery = now, recovery


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """One call that may be made.

    Attributes:
        granted: When.
        tokens: What it will likely take, as the caller thinks.
        taken: The same, as calls before it were compared with what callers thought.
    """

    granted: float
    tokens: int
    taken: float


class RateLimit:
    """The pace of calls to one provider.

    With limits, it is never above them in any minute, but for the turns that came up while the
    machine stood still: those are taken together. Without, it is free until the provider first says
    "too many". Then all wait as long as it asks, or a little, and longer each time, until one gets
    through; and the pace is less than what was accepted in the last minute, and grows from there
    until the next refusal.

    Args:
        requests: Per minute.
        tokens: Per minute, those of prompts and of replies.
        clock: Seconds, rising.
        sleep: Waits.

    Raises:
        UsageError: A limit is no positive number.
    """

    def __init__(
        self,
        requests: float | None = None,
        tokens: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for name, limit in (("requests", requests), ("tokens", tokens)):
            if limit is not None and not limit > 0:
                raise UsageError(f"a limit of {name} per minute must be above 0, not {limit}")
        self._requests = _Pace(requests, least=10 / WINDOW)
        self._tokens = _Pace(tokens, least=10_000 / WINDOW)
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._refusals = 0
        self._resume = 0.0
        self._slowed = float("-inf")
        self._fruitless = 0
        """Refusals, one after the other, those of calls under way together taken as one."""
        self._accepted: OrderedDict[Permit, float] = OrderedDict()
        """Calls of the last minute that were not refused, and their tokens."""
        self._answers = 0
        self._share = 1.0
        """Of the tokens that callers think of, those that calls take."""

    def acquire(self, tokens: int) -> Permit:
        """Wait for one's turn.

        Args:
            tokens: What the call will likely take; `used` corrects it.
        """
        while True:
            with self._lock:
                refusals, now = self._refusals, self._clock()
                start = max(now, self._resume, self._requests.due, self._tokens.due)
                taken = tokens * self._share
                self._requests.take(1, start)
                self._tokens.take(taken, start)
            if start > now:
                self._sleep(start - now)
            with self._lock:
                if refusals == self._refusals:
                    return self._grant(tokens, taken)
            # Somebody was refused meanwhile, so that this turn is void: all turns are dealt anew.

    def used(self, permit: Permit, tokens: float) -> None:
        """The call got through, and took this many tokens in truth; `taken`, if nobody says."""
        with self._lock:
            if permit in self._accepted:
                self._accepted[permit] = tokens
            self._tokens.correct(tokens - permit.taken, self._clock())
            if permit.tokens:
                self._answers += 1
                weight = max(LEARNING, 1 / self._answers)
                self._share += weight * (tokens / permit.tokens - self._share)

    def refused(self, permit: Permit, retry_after: float | None) -> None:
        """The provider said "too many": slow down.

        Several calls that were under way together are refused together, and slow the pace once. It
        is not slowed again before one gets through: where none does, only waiting helps.
        """
        with self._lock:
            now = self._clock()
            self._accepted.pop(permit, None)
            self._refusals += 1
            if permit.granted > self._slowed:
                if self._got_through(permit):
                    self._slow(now)
                    self._fruitless = 0
                self._fruitless += 1
                self._slowed = now
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._fruitless - 1, 30))
            wait = pause if retry_after is None else retry_after
            self._resume = max(self._resume, now + wait)
            self._requests.due = self._tokens.due = self._resume

    def _grant(self, tokens: int, taken: float) -> Permit:
        permit = Permit(self._clock(), tokens, taken)
        self._accepted[permit] = taken
        self._forget(permit.granted)
        return permit

    def _forget(self, now: float) -> None:
        while self._accepted and next(iter(self._accepted)).granted < now - WINDOW:
            self._accepted.popitem(last=False)

    def _got_through(self, refused: Permit) -> bool:
        """Whether one has since the last refusal: one under way has, if a later one is back."""
        earlier = (p.granted for p in reversed(self._accepted) if p.granted < refused.granted)
        return self._fruitless == 0 or next(earlier, self._slowed) > self._slowed

    def _slow(self, now: float) -> None:
        self._forget(now)
        oldest = next(iter(self._accepted)).granted if self._accepted else now
        seconds = max(BRIEFEST, now - oldest)
        calls, tokens = len(self._accepted) / seconds, sum(self._accepted.values()) / seconds
        recovery = max(BRIEFEST_RECOVERY, RECOVERY_CALLS / calls if calls else LONGEST_RECOVERY)
        recovery = min(LONGEST_RECOVERY, recovery)
        self._requests.slow(calls, now, recovery)
        self._tokens.slow(tokens, now, recovery)
