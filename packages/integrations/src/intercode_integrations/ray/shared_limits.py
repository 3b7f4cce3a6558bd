"""Limits that all processes of a run on a cluster share: budget, rate limit, concurrent calls.

A Ray actor on the driver's machine, the ledger, keeps the state of the limits. In every other
process, proxies call the ledger. A proxy waits for the answer of a request. A post needs no answer,
and is sent together with the next request. If a process is lost, the ledger releases everything
that the process holds. The ledger counts the process's running calls as paid: each call began with
a request that reserved its maximum cost.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from intercode.evaluate.episode_loop import FifoSemaphore
from intercode.models.interrupted_calls import RunInterruptState, current_drain
from intercode.models.limits import Budget, BudgetReservation, RateLimit, SpendingAmounts

_MAX_POST_DELAY = 0.05
"""Seconds after which posts are sent even without a request."""


@dataclass
class _ProcessReservations:
    """The budget reservations, running calls and call slots of one process."""

    reservations: Counter[tuple[int, float]] = field(default_factory=Counter)
    start_times: Counter[float] = field(default_factory=Counter)
    permits: int = 0
    lost: bool = False


class SharedLimitsActor:
    """The Ray actor that keeps the shared limits. Each call of the actor has its own thread.

    Args:
        max_cost: The US dollars that models may cost in all; None: no limit.
        max_tokens: The tokens that models may use in all; None: no limit.
        prior_spending: The spending before this run, which counts against both limits.
        connections: The maximum number of concurrent calls; None: no limit.
    """

    def __init__(
        self,
        max_cost: float | None,
        max_tokens: int | None,
        prior_spending: SpendingAmounts,
        connections: int | None,
    ) -> None:
        self._budget = Budget(max_cost, max_tokens, previous_spending=prior_spending)
        self._rate_limit = RateLimit()
        self._calls = FifoSemaphore(connections)
        self._lock = threading.Lock()
        self._states: dict[str, _ProcessReservations] = {}

    def handle(
        self, process_name: str, posts: Sequence[tuple[Any, ...]], method: str = "", *arguments: Any
    ) -> Any:
        """Apply the posts of a process in order, then execute its request.

        Args:
            process_name: The name of the process.
            posts: Names of methods that do not wait, each with its arguments.
            method: The method that the process requests; empty if it only sends posts.
            arguments: The arguments of the requested method.

        Returns:
            The result of the requested method; None without a request.
        """
        for post_method, *call_arguments in posts:
            getattr(self, post_method)(process_name, *call_arguments)
        return getattr(self, method)(process_name, *arguments) if method else None

    def _process_state(self, process_name: str) -> _ProcessReservations:
        return self._states.setdefault(process_name, _ProcessReservations())

    def reserve(self, process_name: str, tokens: int, cost: float) -> None:
        """Reserve a part of the budget; see `Budget.reserve`."""
        hold = self._budget.reserve(tokens, cost)
        with self._lock:
            if not self._process_state(process_name).lost:
                self._process_state(process_name).reservations[tokens, cost] += 1
                return
        hold.release()

    def end(
        self,
        process_name: str,
        tokens: int,
        cost: float,
        account_name: str,
        charge: tuple[float, int],
    ) -> None:
        """End a reservation, and charge `charge`.

        Args:
            process_name: The name of the process.
            tokens: The reserved tokens.
            cost: The reserved cost.
            account_name: The account to charge: ``spent``, ``presumed``, or empty for none.
            charge: The cost and the tokens to charge.
        """
        with self._lock:
            # For a lost process, `release_process` has already ended all reservations.
            if self._process_state(process_name).lost:
                return
            _decrement(self._process_state(process_name).reservations, (tokens, cost))
        accounts = {"spent": self._budget.spent, "presumed": self._budget.presumed_spending}
        self._budget._end(
            BudgetReservation(self._budget, tokens, cost), accounts.get(account_name), *charge
        )

    def acquire(self, process_name: str, tokens: int, ticket: int | None) -> tuple[float, int]:
        """Wait until a call may start; see `RateLimit.acquire`.

        Args:
            process_name: The name of the process.
            tokens: The estimated tokens of the call.
            ticket: The ticket of the call's first attempt; None: this is the first attempt.

        Returns:
            The start time of the attempt, and the call's ticket.
        """
        call_ticket = self._rate_limit.ticket() if ticket is None else ticket
        start_time = self._rate_limit.acquire(tokens, call_ticket)
        with self._lock:
            if not self._process_state(process_name).lost:
                self._process_state(process_name).start_times[start_time] += 1
                return start_time, call_ticket
        self._rate_limit.release(start_time, succeeded=False)
        return start_time, call_ticket

    def release(
        self, process_name: str, start_time: float, unused_tokens: float, succeeded: bool
    ) -> None:
        """End a call that was not refused for the rate limit; see `RateLimit.release`."""
        if self._end_call(process_name, start_time):
            self._rate_limit.release(start_time, unused_tokens=unused_tokens, succeeded=succeeded)

    def refuse(self, process_name: str, start_time: float, retry_after: float | None) -> None:
        """End a call that the model's API refused for its rate limit; see `RateLimit.refuse`."""
        if self._end_call(process_name, start_time):
            self._rate_limit.refuse(retry_after)

    def _end_call(self, process_name: str, start_time: float) -> bool:
        with self._lock:
            process_state = self._process_state(process_name)
            _decrement(process_state.start_times, start_time)
            return not process_state.lost

    def enter(self, process_name: str) -> float:
        """Wait for a free slot for a call, and return the seconds of the wait."""
        wait_seconds = self._calls.__enter__()
        with self._lock:
            if not self._process_state(process_name).lost:
                self._process_state(process_name).permits += 1
                return wait_seconds
        self._calls.__exit__(None, None, None)
        return wait_seconds

    def leave(self, process_name: str) -> None:
        """Free the slot of a call."""
        with self._lock:
            if self._process_state(process_name).lost:
                return
            self._process_state(process_name).permits -= 1
        self._calls.__exit__(None, None, None)

    def release_process(self, process_name: str) -> None:
        """Release everything that a lost process holds.

        The process's reservations become presumed spending, because its calls may have been
        charged.
        """
        with self._lock:
            process_state = self._process_state(process_name)
            if process_state.lost:
                return
            process_state.lost = True
        for token_count, cost in process_state.reservations.elements():
            BudgetReservation(self._budget, token_count, cost).presume()
        for start_time in process_state.start_times.elements():
            self._rate_limit.release(start_time, succeeded=False)
        for _ in range(process_state.permits):
            self._calls.__exit__(None, None, None)

    def read_spending(self) -> tuple[SpendingAmounts, SpendingAmounts]:
        """Return the known spending, and the presumed spending of calls whose end is unknown."""
        return self._budget.spent, self._budget.presumed_spending


def _decrement(counter: Counter[Any], key: Any) -> None:
    """Subtract 1 from a count, and remove the key at 0: a run may have millions of keys."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class SharedLimitsConnection:
    """The connection of a process to the ledger, with a queue of posts.

    Args:
        ledger: The actor with the ledger.
        process_name: The name of this process.
    """

    def __init__(self, ledger: Any, process_name: str) -> None:
        self._ledger, self._process_name = ledger, process_name
        self._lock = threading.Lock()
        self._posts: list[tuple[Any, ...]] = []

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the ledger; return its result, or raise its exception unchanged."""
        import ray

        try:
            return ray.get(
                self._ledger.handle.remote(
                    self._process_name, self._take_posts(), method, *arguments
                )
            )
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def post(self, method: str, *arguments: Any) -> None:
        """Queue a call of a method that does not wait and whose result is not needed."""
        with self._lock:
            self._posts.append((method, *arguments))
            is_first = len(self._posts) == 1
        if is_first:
            timer = threading.Timer(_MAX_POST_DELAY, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Send the queued calls now."""
        if posts := self._take_posts():
            self._ledger.handle.remote(self._process_name, posts)

    def _take_posts(self) -> list[tuple[Any, ...]]:
        with self._lock:
            posts, self._posts = self._posts, []
        return posts


class SharedBudget(Budget):
    """The proxy of the shared budget, in a process other than the ledger's.

    Args:
        outbox: The connection to the ledger.
        max_cost: The same as for the ledger.
        max_tokens: The same as for the ledger.
    """

    def __init__(
        self, outbox: SharedLimitsConnection, max_cost: float | None, max_tokens: int | None
    ) -> None:
        super().__init__(max_cost, max_tokens)
        self._outbox = outbox

    def reserve(self, tokens: int, cost: float) -> BudgetReservation:
        """Reserve a part of the shared budget; see `Budget.reserve`."""
        if self.max_cost is not None or self.max_tokens is not None:
            self._outbox.ask("reserve", tokens, cost)
        else:  # without limits the ledger never refuses, so no answer is needed
            self._outbox.post("reserve", tokens, cost)
        return BudgetReservation(self, tokens, cost)

    def _end(
        self, hold: BudgetReservation, to: SpendingAmounts | None, cost: float, tokens: int
    ) -> None:
        account_name = "" if to is None else "presumed" if to is self.presumed_spending else "spent"
        self._outbox.post("end", hold.tokens, hold.cost, account_name, (cost, tokens))


class _CurrentModelCall(threading.local):
    """The current model call of a thread, including all its attempts."""

    ticket: int | None = None
    """Ticket that the local rate limit gave the call."""
    ledger_ticket: int | None = None
    """Ticket that the ledger gave the call."""
    start_time = 0.0


class SharedRateLimit(RateLimit):
    """The proxy of the shared rate limit. Each thread of the process makes one call at a time."""

    def __init__(self, outbox: SharedLimitsConnection) -> None:
        super().__init__()
        self._outbox = outbox
        self._thread_call = _CurrentModelCall()

    def acquire(
        self, tokens: int, ticket: int | None = None, drain: RunInterruptState | None = None
    ) -> float:
        """Wait until the shared rate limit permits a call; see `RateLimit.acquire`."""
        (drain or current_drain()).check()
        thread_call = self._thread_call
        ledger_ticket = (
            thread_call.ledger_ticket
            if ticket is not None and ticket == thread_call.ticket
            else None
        )
        thread_call.start_time, thread_call.ledger_ticket = self._outbox.ask(
            "acquire", tokens, ledger_ticket
        )
        thread_call.ticket = ticket
        return thread_call.start_time

    def release(
        self, start_time: float, *, unused_tokens: float = 0, succeeded: bool = True
    ) -> None:
        """Report the end of a call to the ledger; see `RateLimit.release`."""
        self._outbox.post("release", start_time, unused_tokens, succeeded)

    def refuse(self, retry_after: float | None) -> None:
        """Report a refused call to the ledger; see `RateLimit.refuse`."""
        self._outbox.post("refuse", self._thread_call.start_time, retry_after)
        self._outbox.flush()  # at once, because other processes are about to ask


class SharedCallSemaphore(FifoSemaphore):
    """The proxy of the shared limit on concurrent calls."""

    def __init__(self, outbox: SharedLimitsConnection) -> None:
        super().__init__()
        self._outbox = outbox

    def __enter__(self) -> float:
        start_time = time.monotonic()
        self._outbox.ask("enter")
        return time.monotonic() - start_time

    def __exit__(self, *exception: object) -> None:
        self._outbox.post("leave")
        self._outbox.flush()  # at once, because other calls wait for the slot
