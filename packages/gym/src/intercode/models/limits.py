"""Limits of model calls: rate limit, budget and retries.

Many models and threads may share a `RateLimit` or a `Budget`. Each model has its own `Retry`
policy.
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
from intercode.models.interrupted_calls import RunInterruptState, current_drain

LONGEST_WAIT = 60.0
"""Maximum wait in seconds before a retry, if the server's response states no wait."""
PATIENCE = 300.0
"""Maximum wait in seconds that a server may state in ``Retry-After``. After a longer
``Retry-After``, the call fails, because waiting for a daily quota is pointless."""
FIRST_PAUSE = 1.0
"""Seconds without new calls after a server first refuses a call for the rate limit, if the response
has no ``Retry-After``. Each further refusal doubles the pause, up to `LONGEST_WAIT`, which is the
minute to which most quotas apply."""
_MINUTE = 60.0
_ROUNDING_TOLERANCE = 1e-9
_NEGLIGIBLE_WAIT = 1e-6
"""Seconds below which a wait is skipped. Such a short wait may not change the clock's value,
because of rounding, and the loop would not end."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy of a model: timeout, number of retries and backoff.

    Attributes:
        timeout: Seconds for which the server may be silent; above 0.
        retries: The maximum number of tries after the first; at least 0.
        first_wait: Seconds before the second try, before jitter (see `backoff`); at least 0. The
            wait is doubled for each further try.

    Raises:
        UsageError: A value is out of range.
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
        self, failures: int, retry_after: float | None, random_source: random.Random
    ) -> float | None:
        """Return the seconds to wait before the next try: exponential backoff with jitter.

        The wait is ``min(LONGEST_WAIT, first_wait * 2 ** (failures - 1))`` times a random factor
        from 0.5 to 1 (jitter). With `retry_after`, the result is `retry_after` plus a tenth of the
        wait from this formula. Jitter keeps workers from retrying at the same moment.

        Args:
            failures: The number of failed calls, at least 1.
            retry_after: Seconds that the server asks for; the wait is never shorter.
            random_source: The random generator of the jitter.

        Returns:
            The seconds; ``None`` if the server asks for more than `PATIENCE`.
        """
        base_wait = self.first_wait * 2.0 ** min(failures - 1, 30)
        wait: float = min(LONGEST_WAIT, base_wait) * random_source.uniform(0.5, 1.0)
        if retry_after is None:
            return wait
        return None if retry_after > PATIENCE else retry_after + wait * 0.1


class RateLimit:
    """An adaptive rate limit for the calls to one provider.

    With configured limits, the starts of calls are spaced evenly, so no minute exceeds a limit. The
    limit of tokens relies on estimates before a call, which the actual counts correct after it.
    After a provider refuses a call for its rate limit (HTTP 429), no call starts during the
    response's ``Retry-After``, unless it exceeds `PATIENCE`. If a response has no ``Retry-After``,
    the pause doubles with each refusal, until a call succeeds. A refusal also halves the maximum
    number of concurrent calls. Successes raise that maximum again, by one for each round in which
    all concurrent calls succeed. A refused call is retried before later calls.

    Args:
        requests: Maximum calls per minute; None: no limit.
        tokens: Maximum tokens per minute, of prompts and replies together; None: no limit.
        clock: Returns monotonic seconds.
        sleep: Waits for a number of seconds; None: a wait that an interrupt of the run ends.

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
        """The number of running calls, and (`_width`) the maximum number of concurrent calls."""
        self._pause = FIRST_PAUSE

    def ticket(self) -> int:
        """Return a queue position, which a call keeps for all its tries."""
        return next(self._tickets)

    def acquire(
        self, tokens: int, ticket: int | None = None, drain: RunInterruptState | None = None
    ) -> float:
        """Wait until a call may start; the caller ends the call with `release` or `refuse`.

        Args:
            tokens: The estimated tokens of the call, which `release` corrects.
            ticket: The queue position, with which a refused call precedes later calls when it is
                retried; None: a new position.
            drain: The drain that the call obeys; None: the drain of the active run.

        Returns:
            The start time of the call, in seconds of `clock`.

        Raises:
            ModelUnavailableError: The run was interrupted, and either the call would have to wait
                or another call has failed since the interrupt.
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

    def release(
        self, start_time: float, *, unused_tokens: float = 0, succeeded: bool = True
    ) -> None:
        """End a call that the provider did not refuse for its rate limit.

        Args:
            start_time: The start time from `acquire`.
            unused_tokens: The estimated tokens that the call did not use; negative if the call used
                more tokens than estimated.
            succeeded: Whether the call returned an answer, which permits more concurrent calls.
        """
        with self._condition:
            self._tokens_due -= self._token * unused_tokens
            if succeeded:
                # The success of a call from before the last refusal does not prove that the pause
                # was long enough.
                if start_time >= self._resume:
                    self._pause = FIRST_PAUSE
                self._width += 1 / self._width
            self._active_calls -= 1
            self._condition.notify_all()

    def refuse(self, retry_after: float | None) -> None:
        """End a call that the provider refused for its rate limit.

        Args:
            retry_after: Seconds that the provider asks callers to wait; None: not stated.
        """
        with self._condition:
            now = self._clock()
            # Several calls that are refused at the same time count as one refusal.
            if now >= self._resume:
                self._width = max(1.0, min(self._width, self._active_calls) / 2)
                if retry_after is None:
                    retry_after, self._pause = self._pause, min(LONGEST_WAIT, 2 * self._pause)
            if retry_after is not None and retry_after <= PATIENCE:
                self._resume = max(self._resume, now + retry_after)
            self._active_calls -= 1
            self._condition.notify_all()


@dataclass(slots=True)
class SpendingAmounts:
    """An amount of US dollars and a number of tokens."""

    cost: float = 0.0
    tokens: int = 0

    def add(self, cost: float, tokens: int) -> None:
        """Add to both amounts; negative values subtract."""
        self.cost += cost
        self.tokens += tokens


class Budget:
    """A budget of US dollars and tokens, which models and threads may share.

    Each call first reserves the maximum that it may cost. If the reservation might exceed the
    budget, the call waits for running calls to end, because calls mostly cost less than reserved.
    If the reservation would exceed the budget even after a full refund of all running calls, the
    call is refused.

    Attributes:
        spent: The cost and tokens of replies, plus earlier spending of the budget.
        presumed_spending: The reservations of calls whose answer was lost or reported no usage. The
            provider may have charged for these calls, so the full reservations count as spent.
    """

    def __init__(
        self,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        *,
        previous_spending: SpendingAmounts | None = None,
    ) -> None:
        """Set the limits; ``None`` sets no limit.

        Args:
            max_cost: The maximum cost in US dollars.
            max_tokens: The maximum sum of input and output tokens.
            previous_spending: Earlier spending, which counts against the limits; see
                `intercode.evaluate.spending`.

        Raises:
            UsageError: A limit is not a positive number.
        """
        for name, limit in (("max_cost", max_cost), ("max_tokens", max_tokens)):
            if limit is not None and not limit > 0:
                raise UsageError(f"a budget's {name} must be above 0, not {limit}")
        self.max_cost = max_cost
        self.max_tokens = max_tokens
        self.spent = (
            replace(previous_spending) if previous_spending is not None else SpendingAmounts()
        )
        self.presumed_spending = SpendingAmounts()
        self._reservations = SpendingAmounts()
        self._condition = threading.Condition()

    def __repr__(self) -> str:
        return f"Budget(max_cost={self.max_cost}, max_tokens={self.max_tokens})"

    def reserve(self, tokens: int, cost: float) -> BudgetReservation:
        """Reserve the maximum usage of a call.

        The method waits while running calls may still free enough of the budget. After the call,
        the caller ends the reservation by a method of the returned hold.

        Args:
            tokens: The maximum number of tokens.
            cost: The maximum cost in US dollars.

        Returns:
            The hold, which the caller ends by `BudgetReservation.settle`,
            `BudgetReservation.presume` or `BudgetReservation.release`.

        Raises:
            BudgetError: The remaining budget is too small.
        """
        with self._condition:
            while True:
                if not self._fits(tokens, cost, SpendingAmounts()):
                    raise BudgetError(self._refusal(tokens, cost))
                if self._fits(tokens, cost, self._reservations):
                    self._reservations.add(cost, tokens)
                    return BudgetReservation(self, tokens, cost)
                self._condition.wait()

    def _fits(self, tokens: int, cost: float, reservations: SpendingAmounts) -> bool:
        used_tokens = self.spent.tokens + self.presumed_spending.tokens + reservations.tokens
        paid_cost = self.spent.cost + self.presumed_spending.cost + reservations.cost
        return (self.max_tokens is None or used_tokens + tokens <= self.max_tokens) and (
            self.max_cost is None or paid_cost + cost <= self.max_cost + _ROUNDING_TOLERANCE
        )

    def _refusal(self, tokens: int, cost: float) -> str:
        paid_cost = self.spent.cost + self.presumed_spending.cost
        used_tokens = self.spent.tokens + self.presumed_spending.tokens
        requirements, options = [], []
        if self.max_cost is not None:
            remaining_amount = max(0.0, self.max_cost - paid_cost)
            requirements.append(
                f"may cost ${cost:.4f}, and ${remaining_amount:.4f} of ${self.max_cost:g} is left"
            )
            options.append("--max-cost")
        if self.max_tokens is not None:
            remaining_amount = max(0, self.max_tokens - used_tokens)
            requirements.append(
                f"may take {tokens} tokens, and {remaining_amount} of {self.max_tokens} are left"
            )
            options.append("--max-tokens")
        return (
            f"the rest of the budget is too small: the next call {'; it '.join(requirements)}. "
            f"Raise {' or '.join(options)}, or shorten replies with --reply-tokens"
        )

    def _end(
        self,
        reservation: BudgetReservation,
        target: SpendingAmounts | None,
        cost: float,
        tokens: int,
    ) -> None:
        with self._condition:
            self._reservations.add(-reservation.cost, -reservation.tokens)
            if target is not None:
                target.add(cost, tokens)
            self._condition.notify_all()


@dataclass(frozen=True, slots=True)
class BudgetReservation:
    """A reservation of a budget for one running call, in tokens and US dollars."""

    budget: Budget
    tokens: int
    cost: float

    def settle(self, usage: Usage, cost: float | None) -> None:
        """End the reservation, and count the actual usage and cost as spent; None counts as 0."""
        self.budget._end(self, self.budget.spent, cost or 0.0, usage.total)

    def presume(self) -> None:
        """End the reservation, and count its full amount, because the actual cost is unknown."""
        self.budget._end(self, self.budget.presumed_spending, self.cost, self.tokens)

    def release(self) -> None:
        """End the reservation and count nothing, because the call cost nothing."""
        self.budget._end(self, None, 0.0, 0)
