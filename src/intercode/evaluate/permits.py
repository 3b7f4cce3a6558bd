"""So many at a time, first come, first served: of calls to a model, of busy sandboxes."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from types import TracebackType

SANDBOXES_PER_CORE = 2
"""Enough to keep every core busy while others wait for the kernel."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was told to stop at once; this episode has no end."""


class Permits:
    """What at most `count` threads hold at a time; who comes first gets one first.

    Entered, it gives the seconds that were waited::

        with permits as waited:
            ...

    Args:
        count: How many there are; None: any number.
    """

    def __init__(self, count: int | None = None) -> None:
        self._count: float = math.inf if count is None else count
        self._held = 0
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._closed = False

    def __enter__(self) -> float:
        with self._lock:
            if self._closed:
                raise Stopped
            if self._held < self._count:
                self._held += 1
                return 0.0
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        start = time.monotonic()
        turn.acquire()
        if self._closed:
            self.__exit__(None, None, None)
            raise Stopped
        return time.monotonic() - start

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._waiting:
                # Handed on, never put back in between: nobody who comes later can snatch it.
                self._waiting.popleft().release()
            else:
                self._held -= 1

    @property
    def held(self) -> int:
        """How many are held."""
        return self._held

    def close(self) -> None:
        """Nobody gets one any more, and who waits waits no longer: they are `Stopped`."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._held += 1  # as if it had been handed on: who wakes gives it back
                self._waiting.popleft().release()


def default_sandboxes() -> int:
    """How many sandboxes this machine's cores keep up with."""
    return SANDBOXES_PER_CORE * len(os.sched_getaffinity(0))
