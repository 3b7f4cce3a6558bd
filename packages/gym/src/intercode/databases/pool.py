"""A pool of things that are slow to make, such as worker processes and clones of databases.

A thing that is still as good as new goes back and is given to the next session. A used one is
thrown away and another one is made in the background, so that the next session finds one ready.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from intercode.errors import DatabaseError, InterCodeError

_LOG = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
ThingT = TypeVar("ThingT")


class Pool(Generic[KeyT, ThingT]):
    """Idle things by key. Thread-safe.

    Args:
        discard: Throws a thing away. Called from any thread.
        idle: How many things are kept at most. The oldest of more are thrown away.
        usable: Tells whether an idle thing can still be used.
    """

    def __init__(
        self,
        discard: Callable[[ThingT], None],
        idle: int,
        usable: Callable[[ThingT], bool] = lambda thing: True,
    ) -> None:
        self._discard = discard
        self._limit = idle
        self._usable = usable
        self._idle: OrderedDict[int, tuple[KeyT, ThingT]] = OrderedDict()
        self._numbers = count()
        self._jobs: deque[Callable[[], None]] = deque()
        self._wanted: Counter[KeyT] = Counter()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._owner = os.getpid()

    def take(self, key: KeyT, make: Callable[[], ThingT]) -> ThingT:
        """Take an idle thing of a key, or make one.

        Raises:
            DatabaseError: The pool is closed.
        """
        while (found := self._waiting(key)) is not None:
            if self._usable(found[0]):
                return found[0]
            self._discard(found[0])
        return make()

    def _waiting(self, key: KeyT) -> tuple[ThingT] | None:
        with self._changed:
            if self._closed:
                raise DatabaseError("the engine is closed")
            if self._owner != os.getpid():  # forked: the idle ones are the parent's
                self._owner, self._idle = os.getpid(), OrderedDict()
            for number in reversed(self._idle):
                if self._idle[number][0] == key:
                    return (self._idle.pop(number)[1],)
            # The caller makes what the thread has not begun to make.
            if self._wanted[key] > 0:
                self._wanted[key] -= 1
        return None

    def give_back(self, key: KeyT, thing: ThingT) -> None:
        """Take back a thing that is as good as new."""
        surplus: ThingT | None = thing
        with self._changed:
            if not self._closed:
                self._idle[next(self._numbers)] = (key, thing)
                full = len(self._idle) > self._limit
                surplus = self._idle.popitem(last=False)[1][1] if full else None
        if surplus is not None:
            self._discard(surplus)

    def replace(self, key: KeyT, thing: ThingT, make: Callable[[], ThingT]) -> None:
        """Throw a used thing away and make another one, in the background."""
        with self._changed:
            queued = not self._closed
            if queued:
                self._wanted[key] += 1
                # First the new one: a session may wait for it, and none waits for the old one.
                self._jobs.append(partial(self._refill, key, make))
                self._jobs.append(partial(self._discard, thing))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="intercode-pool", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()
        if not queued:
            self._discard(thing)

    def clear(self) -> list[ThingT]:
        """Forget all idle things and pending jobs; return the things."""
        with self._changed:
            things = [thing for _, thing in self._idle.values()]
            self._idle.clear()
            self._wanted.clear()
            self._jobs.clear()
        return things

    def close(self) -> None:
        """Finish what was begun, then throw all idle things away. Idempotent."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for thing in self.clear():
            self._discard(thing)

    def _refill(self, key: KeyT, make: Callable[[], ThingT]) -> None:
        with self._changed:
            if self._wanted[key] < 1:
                return
            self._wanted[key] -= 1
        self.give_back(key, make())

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
        # The next session makes its own, and reports why that fails.
        _LOG.info("nothing was made ready: %s", error)
