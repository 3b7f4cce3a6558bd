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

from intercode.evaluate.loop import Semaphore
from intercode.models.drain import Drain, current_drain
from intercode.models.limits import Budget, Hold, RateLimit, Spending

_LONGEST = 0.05
"""Seconds after which posts are sent without a question."""


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

    def tell(
        self, who: str, posts: Sequence[tuple[Any, ...]], name: str = "", *arguments: Any
    ) -> Any:
        """Do what a process has posted; then answer its question, if it has one.

        Args:
            who: The process.
            posts: Names of methods that do not wait, with their arguments.
            name: That of a method.
            arguments: Its arguments.
        """
        for post, *given in posts:
            getattr(self, post)(who, *given)
        return getattr(self, name)(who, *arguments) if name else None

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


class Outbox:
    """The way from a process to the ledger.

    Args:
        ledger: The actor.
        who: This process's name.
    """

    def __init__(self, ledger: Any, who: str) -> None:
        self._ledger, self._who = ledger, who
        self._lock = threading.Lock()
        self._posts: list[tuple[Any, ...]] = []

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the ledger; what it raises is raised as it is."""
        import ray

        try:
            return ray.get(self._ledger.tell.remote(self._who, self._taken(), name, *arguments))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None

    def post(self, name: str, *arguments: Any) -> None:
        """Call one that does not wait, soon."""
        with self._lock:
            self._posts.append((name, *arguments))
            first = len(self._posts) == 1
        if first:
            timer = threading.Timer(_LONGEST, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Send what was posted."""
        if posts := self._taken():
            self._ledger.tell.remote(self._who, posts)

    def _taken(self) -> list[tuple[Any, ...]]:
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
    place: int | None = None
    """The ticket of the call in the ledger."""
    started = 0.0


class SharedPace(RateLimit):
    """The pace of calls, in another process than the ledger's; a thread makes one at a time."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._mine = _Call()

    def acquire(self, tokens: int, ticket: int | None = None, drain: Drain | None = None) -> float:
        """See `RateLimit.acquire`."""
        (drain or current_drain()).check()
        mine = self._mine
        place = mine.place if ticket is not None and ticket == mine.ticket else None
        mine.started, mine.place = self._outbox.ask("acquire", tokens, place)
        mine.ticket = ticket
        return mine.started

    def release(self, started: float, *, unused: float = 0, succeeded: bool = True) -> None:
        """See `RateLimit.release`."""
        self._outbox.post("release", started, unused, succeeded)

    def refuse(self, retry_after: float | None) -> None:
        """See `RateLimit.refuse`."""
        self._outbox.post("refuse", self._mine.started, retry_after)
        self._outbox.flush()  # others are about to ask


class SharedCalls(Semaphore):
    """The calls at a time, in another process than the ledger's."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def __enter__(self) -> float:
        began = time.monotonic()
        self._outbox.ask("enter")
        return time.monotonic() - began

    def __exit__(self, *exception: object) -> None:
        self._outbox.post("leave")
        self._outbox.flush()  # others wait for it
