"""Interrupts statements at their time limit: one thread for all sessions of an engine.

A timer of its own for each statement would cost more than the statement. Here a statement costs
setting a deadline; the thread wakes at the earliest deadline that it knows of.
"""

from __future__ import annotations

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
        deadline: When the running statement is to be interrupted; infinite between statements.
        cancelled: Whether the last statement was interrupted before its time limit.
    """

    def __init__(self, watchdog: Watchdog, interrupt: Interrupt) -> None:
        self.fired = 0
        self.cancelled = False
        self.deadline = math.inf
        self._watchdog = watchdog
        self._interrupt = interrupt
        self._lock = threading.Lock()

    def start(self, seconds: float) -> None:
        """Begin a statement."""
        with self._lock:
            self.fired = 0
            self.cancelled = False
            self.deadline = time.monotonic() + seconds
        self._watchdog.watch(self)

    def stop(self) -> int:
        """End the statement, which is not interrupted any more; return how often it was."""
        with self._lock:
            self.deadline = math.inf
            return self.fired

    def interrupt(self) -> None:
        """Interrupt the statement now, if one runs."""
        with self._lock:
            if self.deadline < math.inf:
                self.cancelled = True
                self._call()

    def check(self) -> None:
        """Interrupt, if it is time."""
        with self._lock:
            if self.deadline <= time.monotonic():
                self.fired += 1
                self.deadline = time.monotonic() + _AGAIN_SECONDS if self.fired == 1 else math.inf
                self._call()

    def _call(self) -> None:
        try:
            self._interrupt(self.fired)
        except Exception:  # noqa: BLE001 - the other sessions' limits must hold nevertheless
            _LOG.warning("a statement could not be interrupted", exc_info=True)


class Watchdog:
    """Enforces the limits, until it is closed."""

    def __init__(self) -> None:
        self._watched: set[Limit] = set()
        self._wakes = math.inf
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="intercode-watchdog", daemon=True)
        self._thread.start()

    def limit(self, interrupt: Interrupt) -> Limit:
        """Return a limit for a session."""
        return Limit(self, interrupt)

    def watch(self, limit: Limit) -> None:
        """Add a limit, to be checked at its deadline."""
        with self._changed:
            self._watched.add(limit)
            if limit.deadline < self._wakes:
                self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                # A statement that begins now is watched again after this.
                self._watched = {limit for limit in self._watched if limit.deadline < math.inf}
                self._wakes = min((limit.deadline for limit in self._watched), default=math.inf)
                left = self._wakes - time.monotonic()
                if self._closed:
                    return
                if left > 0:
                    self._changed.wait(None if left == math.inf else left)
                    continue
                due = list(self._watched)
            for limit in due:
                limit.check()
