"""Limits of calls: how often they are made, what they may cost, and how long to wait between tries.

`RateLimit` and `Budget` may be shared by many models and threads; `Retry` is one model's own.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from intercode.errors import BudgetError, UsageError
from intercode.models.base import Usage
from intercode.models.drain import Drain, current_drain

LONGEST_WAIT = 60.0
"""Seconds of waiting where the server does not say how long."""
PATIENCE = 300.0
"""Seconds of waiting that a server may ask for; a quota of a day is not waited for."""
FIRST_PAUSE = 1.0
"""Seconds in which no call starts, after the first "too many" without ``Retry-After``: doubled six
times, they outlast a quota of a minute."""
_MINUTE = 60.0
_ROUNDING_TOLERANCE = 1e-9
_NEGLIGIBLE_WAIT = 1e-6
"""Seconds that are not worth a sleep, and might be lost in a clock's rounding."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The patience with a server: how long a call may take, and how often it is repeated.

    Attributes:
        timeout: Seconds for which the server may be silent.
        retries: The number of tries after the first one.
        first_wait: Seconds before the second try; doubled from then on.
    """

    timeout: float = 300.0
    retries: int = 6
    first_wait: float = 0.5

    def __post_init__(self) -> None:
        if not self.timeout > 0 or self.retries < 0 or self.first_wait < 0:
            raise UsageError(
                "a timeout must be above 0 seconds, and retries and the wait not below 0"
            )

    def backoff(
        self, failures: int, retry_after: float | None, chance: random.Random
    ) -> float | None:
        """Return the seconds to wait before the next try.

        Jitter keeps workers from coming back together.

        Args:
            failures: The number of calls that have failed, at least 1.
            retry_after: Seconds that the server asks for; the wait is never shorter.
            chance: The source of the jitter.

        Returns:
            ``None``: the server asks for more than `PATIENCE`.
        """
        base_wait = self.first_wait * 2.0 ** min(failures - 1, 30)
        wait: float = min(LONGEST_WAIT, base_wait) * chance.uniform(0.5, 1.0)
        if retry_after is None:
            return wait
        return None if retry_after > PATIENCE else retry_after + wait * 0.1


class RateLimit:
    """The pace of calls to one provider.

    With limits, calls are spaced evenly, so that no minute has more than the limit. When the
    provider says "too many", no call starts for as long as the provider asks, or for a pause that
    doubles until a call succeeds; and half as many calls as before are under way at once. Each
    success lets this number grow again, by one in the time in which all of them succeed. A refused
    call is the first to be tried again.

    Args:
        requests: Calls per minute.
        tokens: Tokens per minute, of prompts and replies.
        clock: Returns seconds, rising.
        sleep: Waits; default: until an interrupt of the run, at most.

    Raises:
        UsageError: A limit is not a positive number.
    """

    def __init__(
        self,
        requests: float | None = None,
        tokens: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        for name, limit in (("requests", requests), ("tokens", tokens)):
            if limit is not None and not limit > 0:
                raise UsageError(f"a limit of {name} per minute must be above 0, not {limit}")
        self._call = _MINUTE / requests if requests else 0.0
        self._token = _MINUTE / tokens if tokens else 0.0
        self._clock, self._sleep = clock, sleep
        self._condition = threading.Condition()
        self._calls_due = self._tokens_due = self._resume = -math.inf
        self._tickets, self._queue = itertools.count(), set[int]()
        self._active_calls, self._width = 0, math.inf
        """Calls under way, and how many there may be."""
        self._pause = FIRST_PAUSE

    def ticket(self) -> int:
        """Return a place in the queue, to be kept over all tries of a call."""
        return next(self._tickets)

    def acquire(self, tokens: int, ticket: int | None = None, drain: Drain | None = None) -> float:
        """Wait until a call may start; end it with `release` or `refuse`.

        Args:
            tokens: The estimated tokens of the call; `release` corrects them.
            ticket: The place in the queue: a call that was refused goes before later ones.
            drain: The drain that the call obeys; default: that of the run in progress.

        Returns:
            The moment of the start, by the clock.

        Raises:
            ModelUnavailableError: The run was interrupted, and the call would have to wait, or
                another one has failed since.
        """
        drain = drain or current_drain()
        queue_ticket = self.ticket() if ticket is None else ticket
        with self._condition:
            self._queue.add(queue_ticket)
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._is_next(queue_ticket))
                    drain.check()
                    now = self._clock()
                    start = max(now, self._resume, self._calls_due, self._tokens_due)
                    if start - now < _NEGLIGIBLE_WAIT:
                        self._active_calls += 1
                        self._calls_due = start + self._call
                        self._tokens_due = start + self._token * tokens
                        return start
                if drain.is_interrupted:
                    drain.failed = True
                    drain.check()
                (self._sleep or drain.wait)(start - now)
        finally:
            with self._condition:
                self._queue.discard(queue_ticket)
                self._condition.notify_all()

    def _is_next(self, ticket: int) -> bool:
        return min(self._queue) == ticket and self._active_calls + 1 <= self._width

    def release(self, start_time: float, *, unused: float = 0, succeeded: bool = True) -> None:
        """End a call that was not refused for its pace.

        Args:
            start_time: The moment that `acquire` returned.
            unused: The tokens that were estimated and not used.
            succeeded: Whether there was an answer: then calls may become more frequent.
        """
        with self._condition:
            self._tokens_due -= self._token * unused
            if succeeded:
                if start_time >= self._resume:  # else it says nothing of the time since a refusal
                    self._pause = FIRST_PAUSE
                self._width += 1 / self._width
            self._active_calls -= 1
            self._condition.notify_all()

    def refuse(self, retry_after: float | None) -> None:
        """End a call that the provider refused for its pace.

        Args:
            retry_after: Seconds that the provider asks callers to wait.
        """
        with self._condition:
            now = self._clock()
            if now >= self._resume:  # else a call refused together with others: counted once
                self._width = max(1.0, min(self._width, self._active_calls) / 2)
                if retry_after is None:
                    retry_after, self._pause = self._pause, min(LONGEST_WAIT, 2 * self._pause)
            if retry_after is not None and retry_after <= PATIENCE:
                self._resume = max(self._resume, now + retry_after)
            self._active_calls -= 1
            self._condition.notify_all()


@dataclass(slots=True)
class Spending:
    """An amount of US dollars, and one of tokens."""

    cost: float = 0.0
    tokens: int = 0

    def add(self, cost: float, tokens: int) -> None:
        """Add to both amounts; a negative amount is subtracted."""
        self.cost += cost
        self.tokens += tokens


class Budget:
    """US dollars and tokens that all who share the budget may spend together.

    The most that a call may cost is set aside before the call. A call that might not fit waits
    while others are under way, as these mostly need less than was set aside for them; it is refused
    when even that would not help.

    Attributes:
        spent: The cost of replies, and what was spent of the budget before.
        presumed: The amounts set aside for calls whose answer was lost, or did not state its
            usage: they may have been charged, so they count.
    """

    def __init__(
        self,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        *,
        before: Spending | None = None,
    ) -> None:
        """Set the limits; ``None`` sets none.

        Args:
            max_cost: US dollars.
            max_tokens: Input and output tokens.
            before: Earlier spending; see `intercode.evaluate.spending`.

        Raises:
            UsageError: A limit is not a positive number.
        """
        for name, limit in (("max_cost", max_cost), ("max_tokens", max_tokens)):
            if limit is not None and not limit > 0:
                raise UsageError(f"a budget's {name} must be above 0, not {limit}")
        self.max_cost = max_cost
        self.max_tokens = max_tokens
        self.spent = replace(before) if before is not None else Spending()
        self.presumed = Spending()
        self._reservations = Spending()
        self._condition = threading.Condition()

    def __repr__(self) -> str:
        return f"Budget(max_cost={self.max_cost}, max_tokens={self.max_tokens})"

    def reserve(self, tokens: int, cost: float) -> Hold:
        """Set aside the most that a call may take. End it with one of the hold's methods.

        Raises:
            BudgetError: The rest of the budget is smaller.
        """
        with self._condition:
            while True:
                if not self._fits(tokens, cost, Spending()):
                    raise BudgetError(self._refusal(tokens, cost))
                if self._fits(tokens, cost, self._reservations):
                    self._reservations.add(cost, tokens)
                    return Hold(self, tokens, cost)
                self._condition.wait()

    def _fits(self, tokens: int, cost: float, reservations: Spending) -> bool:
        used_tokens = self.spent.tokens + self.presumed.tokens + reservations.tokens
        paid_cost = self.spent.cost + self.presumed.cost + reservations.cost
        return (self.max_tokens is None or used_tokens + tokens <= self.max_tokens) and (
            self.max_cost is None or paid_cost + cost <= self.max_cost + _ROUNDING_TOLERANCE
        )

    def _refusal(self, tokens: int, cost: float) -> str:
        paid_cost = self.spent.cost + self.presumed.cost
        used_tokens = self.spent.tokens + self.presumed.tokens
        parts, options = [], []
        if self.max_cost is not None:
            remaining_amount = max(0.0, self.max_cost - paid_cost)
            parts.append(
                f"may cost ${cost:.4f}, and ${remaining_amount:.4f} of ${self.max_cost:g} is left"
            )
            options.append("--max-cost")
        if self.max_tokens is not None:
            remaining_amount = max(0, self.max_tokens - used_tokens)
            parts.append(
                f"may take {tokens} tokens, and {remaining_amount} of {self.max_tokens} are left"
            )
            options.append("--max-tokens")
        return (
            f"the rest of the budget is too small: the next call {'; it '.join(parts)}. "
            f"Raise {' or '.join(options)}, or shorten replies with --reply-tokens"
        )

    def _end(self, hold: Hold, target: Spending | None, cost: float, tokens: int) -> None:
        with self._condition:
            self._reservations.add(-hold.cost, -hold.tokens)
            if target is not None:
                target.add(cost, tokens)
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of a budget that is set aside for one call under way."""

    budget: Budget
    tokens: int
    cost: float

    def settle(self, usage: Usage, cost: float | None) -> None:
        """Count the actual cost of the call."""
        self.budget._end(self, self.budget.spent, cost or 0.0, usage.total)

    def presume(self) -> None:
        """Count all that was set aside, as the cost of the call is unknown."""
        self.budget._end(self, self.budget.presumed, self.cost, self.tokens)

    def release(self) -> None:
        """Count nothing: the call cost nothing."""
        self.budget._end(self, None, 0.0, 0)
