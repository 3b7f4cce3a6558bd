"""The ledger of what a run's processes share: budget, pace of calls, calls at a time.

One actor keeps them, on the driver's machine; in every other process stand-ins ask it, and post
what needs no answer along with the next question. What a process holds when it is lost is given
back, and its calls count as paid: a call begins with a question, which brings its reservation.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from intercode.evaluate.episode_loop import Semaphore
from intercode.models.drain import Drain, current_drain
from intercode.models.limits import Budget, Hold, RateLimit, Spending

_MAX_POST_DELAY = 0.05
"""Seconds after which posts are sent without a question."""


@dataclass
class _ProcessState:
    """The reservations, the calls under way and the permits of one process."""

    reservations: Counter[tuple[int, float]] = field(default_factory=Counter)
    start_time: Counter[float] = field(default_factory=Counter)
    permits: int = 0
    lost: bool = False


class SharedLedger:
    """The actor. Each call waits in a thread of its own.

    Args:
        max_cost: US dollars that models may take.
        max_tokens: Tokens that they may take.
        prior_spending: What was spent before.
        connections: Calls at a time.
    """

    def __init__(
        self,
        max_cost: float | None,
        max_tokens: int | None,
        prior_spending: Spending,
        connections: int | None,
    ) -> None:
        self._budget = Budget(max_cost, max_tokens, before=prior_spending)
        self._pace = RateLimit()
        self._calls = Semaphore(connections)
        self._lock = threading.Lock()
        self._states: dict[str, _ProcessState] = {}

    def tell(
        self, process_name: str, posts: Sequence[tuple[Any, ...]], name: str = "", *arguments: Any
    ) -> Any:
        """Do what a process has posted; then answer its question, if it has one.

        Args:
            process_name: The process.
            posts: Names of methods that do not wait, with their arguments.
            name: That of a method.
            arguments: Its arguments.
        """
        for post, *call_arguments in posts:
            getattr(self, post)(process_name, *call_arguments)
        return getattr(self, name)(process_name, *arguments) if name else None

    def _process_state(self, process_name: str) -> _ProcessState:
        return self._states.setdefault(process_name, _ProcessState())

    def reserve(self, process_name: str, tokens: int, cost: float) -> None:
        """Set a part of the budget aside: `Budget.reserve`."""
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
        costs: tuple[float, int],
    ) -> None:
        """End a part that was set aside: count `costs` as ``spent`` or ``presumed``, or nothing."""
        with self._lock:
            if self._process_state(process_name).lost:
                return  # all that it held has ended
            _decrement(self._process_state(process_name).reservations, (tokens, cost))
        account = getattr(self._budget, account_name) if account_name else None
        self._budget._end(Hold(self._budget, tokens, cost), account, *costs)

    def acquire(self, process_name: str, tokens: int, ticket: int | None) -> tuple[float, int]:
        """Wait until a call may start: `RateLimit.acquire`; return its ticket, too.

        Args:
            process_name: The process.
            tokens: The estimated tokens of the call.
            ticket: That of its first try; None: this is the first.
        """
        pace_ticket = self._pace.ticket() if ticket is None else ticket
        start_time = self._pace.acquire(tokens, pace_ticket)
        with self._lock:
            if not self._process_state(process_name).lost:
                self._process_state(process_name).start_time[start_time] += 1
                return start_time, pace_ticket
        self._pace.release(start_time, succeeded=False)
        return start_time, pace_ticket

    def release(self, process_name: str, start_time: float, unused: float, succeeded: bool) -> None:
        """End a call: `RateLimit.release`."""
        if self._end_call(process_name, start_time):
            self._pace.release(start_time, unused=unused, succeeded=succeeded)

    def refuse(self, process_name: str, start_time: float, retry_after: float | None) -> None:
        """End a call that was refused: `RateLimit.refuse`."""
        if self._end_call(process_name, start_time):
            self._pace.refuse(retry_after)

    def _end_call(self, process_name: str, start_time: float) -> bool:
        with self._lock:
            state = self._process_state(process_name)
            _decrement(state.start_time, start_time)
            return not state.lost

    def enter(self, process_name: str) -> float:
        """Wait for one of the calls at a time; return the seconds."""
        wait_seconds = self._calls.__enter__()
        with self._lock:
            if not self._process_state(process_name).lost:
                self._process_state(process_name).permits += 1
                return wait_seconds
        self._calls.__exit__(None, None, None)
        return wait_seconds

    def leave(self, process_name: str) -> None:
        """Give it back."""
        with self._lock:
            if self._process_state(process_name).lost:
                return
            self._process_state(process_name).permits -= 1
        self._calls.__exit__(None, None, None)

    def lost(self, process_name: str) -> None:
        """Give back what a process holds that was lost. Its calls may have been charged."""
        with self._lock:
            state = self._process_state(process_name)
            if state.lost:
                return
            state.lost = True
        for tokens, cost in state.reservations.elements():
            Hold(self._budget, tokens, cost).presume()
        for start_time in state.start_time.elements():
            self._pace.release(start_time, succeeded=False)
        for _ in range(state.permits):
            self._calls.__exit__(None, None, None)

    def read_spending(self) -> tuple[Spending, Spending]:
        """Return what was spent, and what was presumed."""
        return self._budget.spent, self._budget.presumed


def _decrement(counter: Counter[Any], key: Any) -> None:
    """Count one less, and keep no zeros: a run may have millions of calls."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class Outbox:
    """The way from a process to the ledger.

    Args:
        ledger: The actor.
        process_name: This process's name.
    """

    def __init__(self, ledger: Any, process_name: str) -> None:
        self._ledger, self._process_name = ledger, process_name
        self._lock = threading.Lock()
        self._posts: list[tuple[Any, ...]] = []

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the ledger; what it raises is raised as it is."""
        import ray

        try:
            return ray.get(
                self._ledger.tell.remote(self._process_name, self._take_posts(), name, *arguments)
            )
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def post(self, name: str, *arguments: Any) -> None:
        """Call one that does not wait, soon."""
        with self._lock:
            self._posts.append((name, *arguments))
            is_first = len(self._posts) == 1
        if is_first:
            timer = threading.Timer(_MAX_POST_DELAY, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Send what was posted."""
        if posts := self._take_posts():
            self._ledger.tell.remote(self._process_name, posts)

    def _take_posts(self) -> list[tuple[Any, ...]]:
        with self._lock:
            posts, self._posts = self._posts, []
        return posts


class SharedBudget(Budget):
    """The budget, in another process than the ledger's.

    Args:
        outbox: To the ledger.
        max_cost: As in the ledger.
        max_tokens: As in the ledger.
    """

    def __init__(self, outbox: Outbox, max_cost: float | None, max_tokens: int | None) -> None:
        super().__init__(max_cost, max_tokens)
        self._outbox = outbox

    def reserve(self, tokens: int, cost: float) -> Hold:
        """See `Budget.reserve`."""
        if self.max_cost is not None or self.max_tokens is not None:
            self._outbox.ask("reserve", tokens, cost)
        else:  # nothing to wait for
            self._outbox.post("reserve", tokens, cost)
        return Hold(self, tokens, cost)

    def _end(self, hold: Hold, to: Spending | None, cost: float, tokens: int) -> None:
        name = "" if to is None else "presumed" if to is self.presumed else "spent"
        self._outbox.post("end", hold.tokens, hold.cost, name, (cost, tokens))


class _Call(threading.local):
    """The call that a thread makes, with all of its tries."""

    ticket: int | None = None
    """The one that this process gave it."""
    ledger_ticket: int | None = None
    """The ticket of the call in the ledger."""
    start_time = 0.0


class SharedPace(RateLimit):
    """The pace of calls, in another process than the ledger's; a thread makes one at a time."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._thread_call = _Call()

    def acquire(self, tokens: int, ticket: int | None = None, drain: Drain | None = None) -> float:
        """See `RateLimit.acquire`."""
        (drain or current_drain()).check()
        call = self._thread_call
        ledger_ticket = call.ledger_ticket if ticket is not None and ticket == call.ticket else None
        call.start_time, call.ledger_ticket = self._outbox.ask("acquire", tokens, ledger_ticket)
        call.ticket = ticket
        return call.start_time

    def release(self, started: float, *, unused: float = 0, succeeded: bool = True) -> None:
        """See `RateLimit.release`."""
        self._outbox.post("release", started, unused, succeeded)

    def refuse(self, retry_after: float | None) -> None:
        """See `RateLimit.refuse`."""
        self._outbox.post("refuse", self._thread_call.start_time, retry_after)
        self._outbox.flush()  # others are about to ask


class SharedCalls(Semaphore):
    """The calls at a time, in another process than the ledger's."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def __enter__(self) -> float:
        start_time = time.monotonic()
        self._outbox.ask("enter")
        return time.monotonic() - start_time

    def __exit__(self, *exception: object) -> None:
        self._outbox.post("leave")
        self._outbox.flush()  # others wait for it
