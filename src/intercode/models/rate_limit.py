"""How often a provider is called: a pace that all threads share, and that adapts to refusals."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from intercode.errors import UsageError

WINDOW = 60.0
"""Seconds that limits, and what is observed, are about."""
RECOVERY = 60.0
"""Seconds without a refusal in which a slowed pace doubles, and …"""
RECOVERY_CALLS = 32
"""… calls that got through, in which it does."""
BRIEFEST = 0.25
"""Seconds that are looked back on at least, to see what the pace was."""


class _Pace:
    """So many of something per second, evenly: of requests, or of tokens."""

    def __init__(self, per_minute: float | None, least: float) -> None:
        self._ceiling = None if per_minute is None else per_minute / WINDOW
        self._least = least
        self._slowed: float | None = None
        self._since = 0.0
        self._through = 0
        self.due = 0.0
        """When the next may start."""

    def rate(self, now: float) -> float | None:
        """Per second; ``None`` is as many as there are."""
        if self._slowed is None:
            return self._ceiling
        doublings = (now - self._since) / RECOVERY + self._through / RECOVERY_CALLS
        rate: float = self._slowed * 2.0 ** min(doublings, 64.0)
        return rate if self._ceiling is None else min(rate, self._ceiling)

    def take(self, amount: float, start: float) -> None:
        if rate := self.rate(start):
            self.due = max(self.due, start) + amount / rate

    def got_through(self, difference: float, now: float) -> None:
        self._through += 1
        if rate := self.rate(now):
            self.due += difference / rate

    def halve(self, observed: float, now: float) -> None:
        self._slowed = max(min(self.rate(now) or observed, observed) / 2, self._least)
        self._since, self._through = now, 0


@dataclass(frozen=True, slots=True)
class Permit:
    """One call that may be made."""

    granted: float
    tokens: int


class RateLimit:
    """The pace of calls to one provider.

    With limits, it is never above them in any minute. Without, it is free until the provider first
    says "too many": then all wait as long as it asks, the pace is half of what it was or of what
    was tried in the last minute, and doubles with each minute and with every 32 calls that get
    through until the next refusal.

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
        self._halved = float("-inf")
        self._recent: deque[Permit] = deque()

    def acquire(self, tokens: int) -> Permit:
        """Wait for one's turn.

        Args:
            tokens: What the call will likely take; `used` corrects it.
        """
        while True:
            with self._lock:
                refusals, now = self._refusals, self._clock()
                start = max(now, self._resume, self._requests.due, self._tokens.due)
                self._requests.take(1, start)
                self._tokens.take(tokens, start)
            if start > now:
                self._sleep(start - now)
            with self._lock:
                if refusals == self._refusals:
                    return self._grant(tokens)
            # Somebody was refused meanwhile, so that this turn is void: all turns are dealt anew.

    def used(self, permit: Permit, tokens: int) -> None:
        """The call got through, and took this many tokens in truth."""
        with self._lock:
            now = self._clock()
            self._requests.got_through(0, now)
            self._tokens.got_through(tokens - permit.tokens, now)

    def refused(self, permit: Permit, retry_after: float | None) -> None:
        """The provider said "too many": slow down.

        Several calls that were under way together are refused together, and halve the pace once.
        """
        with self._lock:
            now = self._clock()
            self._refusals += 1
            self._resume = max(self._resume, now + (retry_after or 0.0))
            if permit.granted > self._halved:
                requests, tokens = self._observed(now)
                self._requests.halve(requests, now)
                self._tokens.halve(tokens, now)
                self._halved = now
            self._requests.due = self._tokens.due = self._resume

    def _grant(self, tokens: int) -> Permit:
        permit = Permit(self._clock(), tokens)
        self._recent.append(permit)
        while self._recent[0].granted < permit.granted - WINDOW:
            self._recent.popleft()
        return permit

    def _observed(self, now: float) -> tuple[float, float]:
        """Requests and tokens per second in the last minute."""
        seconds = max(BRIEFEST, now - self._recent[0].granted)
        tokens = sum(permit.tokens for permit in self._recent)
        return len(self._recent) / seconds, tokens / seconds
