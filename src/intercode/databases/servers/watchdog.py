"""Interrupts statements at their time limit: one thread for all sessions of an engine.

A timer of its own for each statement would cost more than the statement. Here a statement costs
setting a deadline; the thread looks at it when an earlier one has passed.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0
Interrupt = Callable[[int], None]
"""Called with the number of its calls for this statement: 1, and after a second 2."""


class Limit:
    """The time limit of one session's statements, one after the other; `Watchdog` makes it.

    Attributes:
        fired: How often the last statement was interrupted.
    """

    def __init__(self, watchdog: Watchdog, interrupt: Interrupt) -> None:
        self.fired = 0
        self._watchdog = watchdog
        self._interrupt = interrupt
        self._deadline = math.inf
        self._queued = math.inf
        self._lock = threading.Lock()

    def start(self, seconds: float) -> None:
        """Begin a statement."""
        with self._lock:
            self.fired = 0
            self._deadline = time.monotonic() + seconds
            self._queue()

    def stop(self) -> int:
        """End the statement, which is not interrupted any more; return how often it was."""
        with self._lock:
            self._deadline = math.inf
            return self.fired

    def interrupt(self) -> None:
        """Interrupt the statement now, if one runs."""
        with self._lock:
            if self._deadline < math.inf:
                self._call()

    def check(self) -> None:
        """Interrupt, if it is time."""
        with self._lock:
            self._queued = math.inf
            if self._deadline <= time.monotonic():
                self.fired += 1
                self._deadline = time.monotonic() + _AGAIN_SECONDS if self.fired == 1 else math.inf
                self._call()
            if self._deadline < math.inf:
                self._queue()

    def _queue(self) -> None:
        # An earlier check is as good: it queues the next one.
        if self._deadline < self._queued:
            self._queued = self._deadline
            self._watchdog.visit(self._deadline, self)

    def _call(self) -> None:
        try:
            self._interrupt(self.fired)
        except Exception:  # noqa: BLE001 - the other sessions' limits must hold nevertheless
            _LOG.warning("a statement could not be interrupted", exc_info=True)


class Watchdog:
    """Enforces the limits, until it is closed."""

    def __init__(self) -> None:
        self._visits: list[tuple[float, int, Limit]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="intercode-watchdog", daemon=True)
        self._thread.start()

    def limit(self, interrupt: Interrupt) -> Limit:
        """Return a limit for a session."""
        return Limit(self, interrupt)

    def visit(self, when: float, limit: Limit) -> None:
        """Have a limit checked at a time."""
        with self._changed:
            heapq.heappush(self._visits, (when, next(self._numbers), limit))
            if self._visits[0][2] is limit:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        while limit := self._due():
            limit.check()

    def _due(self) -> Limit | None:
        """Return the next limit to be checked, when it is time; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._visits and self._visits[0][0] <= now:
                    return heapq.heappop(self._visits)[2]
                self._changed.wait(self._visits[0][0] - now if self._visits else None)
        return None
