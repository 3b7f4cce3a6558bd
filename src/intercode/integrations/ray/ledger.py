"""The ledger of what a run's processes share: budget, pace of calls, calls at a time.

One actor keeps them, on the driver's machine; in every other process stand-ins ask it. What a
process holds when it is lost is given back, and its calls count as paid.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from intercode.evaluate.loop import Semaphore
from intercode.models.limits import Budget, Hold, RateLimit, Spending


@dataclass
class _Held:
    """The reservations, the calls under way and the permits of one process."""

    reserved: Counter[tuple[int, float]] = field(default_factory=Counter)
    started: Counter[float] = field(default_factory=Counter)
    permits: int = 0
    lost: bool = False


class Ledger:
    """The actor. Each call waits in a thread of its own.

    Args:
        max_cost: US dollars that models may take.
        max_tokens: Tokens that they may take.
        before: What was spent before.
        connections: Calls at a time.
    """

    def __init__(
        self,
        max_cost: float | None,
        max_tokens: int | None,
        before: Spending,
        connections: int | None,
    ) -> None:
        self._budget = Budget(max_cost, max_tokens, before=before)
        self._pace = RateLimit()
        self._calls = Semaphore(connections)
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def _of(self, who: str) -> _Held:
        return self._held.setdefault(who, _Held())

    def reserve(self, who: str, tokens: int, cost: float) -> None:
        """Set a part of the budget aside: `Budget.reserve`."""
        hold = self._budget.reserve(tokens, cost)
        with self._lock:
            if not self._of(who).lost:
                self._of(who).reserved[tokens, cost] += 1
                return
        hold.release()

    def end(self, who: str, tokens: int, cost: float, to: str, paid: tuple[float, int]) -> None:
        """End a part that was set aside: count `paid` as ``spent`` or ``presumed``, or nothing."""
        with self._lock:
            if self._of(who).lost:
                return  # all that it held has ended
            _less(self._of(who).reserved, (tokens, cost))
        account = getattr(self._budget, to) if to else None
        self._budget._end(Hold(self._budget, tokens, cost), account, *paid)

    def acquire(self, who: str, tokens: int, ticket: int | None) -> tuple[float, int]:
        """Wait until a call may start: `RateLimit.acquire`; return its ticket, too.

        Args:
            who: The process.
            tokens: The estimated tokens of the call.
            ticket: That of its first try; None: this is the first.
        """
        own = self._pace.ticket() if ticket is None else ticket
        started = self._pace.acquire(tokens, own)
        with self._lock:
            if not self._of(who).lost:
                self._of(who).started[started] += 1
                return started, own
        self._pace.release(started, succeeded=False)
        return started, own

    def release(self, who: str, started: float, unused: float, succeeded: bool) -> None:
        """End a call: `RateLimit.release`."""
        if self._ended(who, started):
            self._pace.release(started, unused=unused, succeeded=succeeded)

    def refuse(self, who: str, started: float, retry_after: float | None) -> None:
        """End a call that was refused: `RateLimit.refuse`."""
        if self._ended(who, started):
            self._pace.refuse(retry_after)

    def _ended(self, who: str, started: float) -> bool:
        with self._lock:
            held = self._of(who)
            _less(held.started, started)
            return not held.lost

    def enter(self, who: str) -> float:
        """Wait for one of the calls at a time; return the seconds."""
        waited = self._calls.__enter__()
        with self._lock:
            if not self._of(who).lost:
                self._of(who).permits += 1
                return waited
        self._calls.__exit__(None, None, None)
        return waited

    def leave(self, who: str) -> None:
        """Give it back."""
        with self._lock:
            if self._of(who).lost:
                return
            self._of(who).permits -= 1
        self._calls.__exit__(None, None, None)

    def lost(self, who: str) -> None:
        """Give back what a process holds that was lost. Its calls may have been charged."""
        with self._lock:
            held = self._of(who)
            if held.lost:
                return
            held.lost = True
        for tokens, cost in held.reserved.elements():
            Hold(self._budget, tokens, cost).presume()
        for started in held.started.elements():
            self._pace.release(started, succeeded=False)
        for _ in range(held.permits):
            self._calls.__exit__(None, None, None)

    def spending(self) -> tuple[Spending, Spending]:
        """Return what was spent, and what was presumed."""
        return self._budget.spent, self._budget.presumed


def _less(counter: Counter[Any], key: Any) -> None:
    """Count one less, and keep no zeros: a run may have millions of calls."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class SharedBudget(Budget):
    """The budget, in another process than the ledger's.

    Args:
        ledger: The actor.
        who: This process's name.
        max_cost: As in the ledger.
        max_tokens: As in the ledger.
    """

    def __init__(
        self, ledger: Any, who: str, max_cost: float | None, max_tokens: int | None
    ) -> None:
        super().__init__(max_cost, max_tokens)
        self._ledger, self._who = ledger, who

    def reserve(self, tokens: int, cost: float) -> Hold:
        """See `Budget.reserve`."""
        if self.max_cost is not None or self.max_tokens is not None:
            _ask(self._ledger.reserve, self._who, tokens, cost)
        else:  # nothing to wait for
            self._ledger.reserve.remote(self._who, tokens, cost)
        return Hold(self, tokens, cost)

    def _end(self, hold: Hold, to: Spending | None, cost: float, tokens: int) -> None:
        name = "" if to is None else "presumed" if to is self.presumed else "spent"
        self._ledger.end.remote(self._who, hold.tokens, hold.cost, name, (cost, tokens))


class _Call(threading.local):
    """The call that a thread makes, with all of its tries."""

    ticket: int | None = None
    """The one that this process gave it."""
    place: int | None = None
    """The ticket of the call in the ledger."""
    started = 0.0


class SharedPace(RateLimit):
    """The pace of calls, in another process than the ledger's; a thread makes one at a time."""

    def __init__(self, ledger: Any, who: str) -> None:
        super().__init__()
        self._ledger, self._who = ledger, who
        self._mine = _Call()

    def acquire(self, tokens: int, ticket: int | None = None) -> float:
        """See `RateLimit.acquire`."""
        mine = self._mine
        place = mine.place if ticket is not None and ticket == mine.ticket else None
        mine.started, mine.place = _ask(self._ledger.acquire, self._who, tokens, place)
        mine.ticket = ticket
        return mine.started

    def release(self, started: float, *, unused: float = 0, succeeded: bool = True) -> None:
        """See `RateLimit.release`."""
        self._ledger.release.remote(self._who, started, unused, succeeded)

    def refuse(self, retry_after: float | None) -> None:
        """See `RateLimit.refuse`."""
        self._ledger.refuse.remote(self._who, self._mine.started, retry_after)


class SharedCalls(Semaphore):
    """The calls at a time, in another process than the ledger's."""

    def __init__(self, ledger: Any, who: str) -> None:
        super().__init__()
        self._ledger, self._who = ledger, who

    def __enter__(self) -> float:
        began = time.monotonic()
        _ask(self._ledger.enter, self._who)
        return time.monotonic() - began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ledger.leave.remote(self._who)


def _ask(method: Any, *arguments: Any) -> Any:
    """Call the ledger; what it raises is raised as it is."""
    import ray

    try:
        return ray.get(method.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
