"""Clones of databases, ready before they are asked for.

A clone that was only read goes back and is given to the next session. One that was written is
thrown away, and another made, by a thread of the pool's: so the next session finds one ready.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from intercode.databases.base import Role
from intercode.databases.source import Source
from intercode.errors import InterCodeError

_LOG = logging.getLogger(__name__)
Key = tuple[str, Role]
IDLE = 128
"""How many clones are kept ready at most."""


class Clone(Protocol):
    """A database made from a template, with a connection to it."""

    generation: int  # which start of the server it is on


CloneT = TypeVar("CloneT", bound=Clone)


class ClonePool(Generic[CloneT]):
    """Idle clones by content and role: a grader never gets what an agent has had.

    Args:
        make: Makes one. Called from any thread, in several at once.
        discard: Throws one away; likewise.
        idle: How many are kept ready at most; of more, those that nobody has asked for longest
            are thrown away.
    """

    def __init__(
        self,
        make: Callable[[Source], CloneT],
        discard: Callable[[CloneT], None],
        idle: int = IDLE,
    ) -> None:
        self._make = make
        self._discard = discard
        self._limit = idle
        self._idle: OrderedDict[Key, list[CloneT]] = OrderedDict()
        self._jobs: deque[Callable[[], None]] = deque()
        self._wanted: dict[Key, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="intercode-clones", daemon=True)
        self._thread.start()

    def take(self, source: Source, role: Role) -> CloneT:
        """A pristine clone: an idle one, else a new one."""
        key = (source.digest, role)
        with self._changed:
            if clones := self._idle.get(key):
                self._idle.move_to_end(key)
                return clones.pop()
            # What the thread has not begun yet is made here instead.
            self._wanted[key] = max(0, self._wanted.get(key, 0) - 1)
        return self._make(source)

    def give_back(self, source: Source, role: Role, clone: CloneT) -> None:
        """A clone that is pristine."""
        with self._changed:
            keep = not self._closed
            if keep:
                key = (source.digest, role)
                self._idle.setdefault(key, []).append(clone)
                self._idle.move_to_end(key)
                self._trim()
        if not keep:
            self._discard(clone)

    def replace(self, source: Source, role: Role, clone: CloneT) -> None:
        """A clone that is not pristine any more: it goes, and another comes."""
        with self._changed:
            queue = not self._closed
            if queue:
                key = (source.digest, role)
                self._wanted[key] = self._wanted.get(key, 0) + 1
                # First the new one: somebody may wait for it, and for the old one nobody does.
                self._jobs.append(partial(self._refill, source, role))
                self._jobs.append(partial(self._discard, clone))
                self._changed.notify()
        if not queue:
            self._discard(clone)

    def clear(self) -> list[CloneT]:
        """Forget all idle clones, and what was to be done; what they were."""
        with self._changed:
            clones = [clone for kept in self._idle.values() for clone in kept]
            self._idle.clear()
            self._wanted.clear()
            self._jobs.clear()
        return clones

    def close(self) -> None:
        """Finish what was begun, then throw all idle clones away. Idempotent."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify()
        self._thread.join()
        for clone in self.clear():
            self._discard(clone)

    def _trim(self) -> None:
        while sum(map(len, self._idle.values())) > self._limit:
            key, clones = next(iter(self._idle.items()))
            if not clones:
                del self._idle[key]
                continue
            self._jobs.append(partial(self._discard, clones.pop(0)))
            self._changed.notify()

    def _refill(self, source: Source, role: Role) -> None:
        key = (source.digest, role)
        with self._changed:
            if self._wanted.get(key, 0) < 1:
                return
            self._wanted[key] -= 1
        self.give_back(source, role, self._make(source))

    def _work(self) -> None:
        while job := self._next():
            _try(job)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            return self._jobs.popleft() if self._jobs else None


def _try(job: Callable[[], None]) -> None:
    try:
        job()
    except InterCodeError as error:
        # Who needs a clone will make it, and be told why that fails.
        _LOG.info("a clone was not made ready: %s", error)
