"""Interruption of statements at their time limits, by one thread for all sessions of an engine.

A separate timer for each statement would cost more time than the statement. With one thread, each
statement only sets its deadline. The thread sleeps until the earliest known deadline.
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
"""Function that interrupts a statement.

The argument counts the interrupts of this statement by its time limit. The number is 0 if a caller
interrupts before the limit, 1 at the limit, and 2 a second later.
"""


class StatementTimeout:
    """The time limit of the statements of one session; `StatementWatchdog.limit` creates it.

    Attributes:
        strike_count: Number of interrupts of the last statement by its time limit: 0 to 2.
        deadline: Time of the next interrupt, by `time.monotonic`; infinite between statements.
        cancelled: Whether a caller interrupted the last statement before its time limit.
    """

    def __init__(self, watchdog: StatementWatchdog, interrupt: Interrupt) -> None:
        self.strike_count = 0
        self.cancelled = False
        self.deadline = math.inf
        self._watchdog = watchdog
        self._interrupt = interrupt
        self._lock = threading.Lock()

    def start(self, seconds: float) -> None:
        """Start the time limit of a statement."""
        with self._lock:
            self.strike_count = 0
            self.cancelled = False
            self.deadline = time.monotonic() + seconds
        self._watchdog.watch(self)

    def stop(self) -> int:
        """End the time limit of a statement; return how often the limit has interrupted it."""
        with self._lock:
            self.deadline = math.inf
            return self.strike_count

    def interrupt(self) -> None:
        """Interrupt the statement now, if one runs."""
        with self._lock:
            if self.deadline < math.inf:
                self.cancelled = True
                self._call()

    def check(self) -> None:
        """Interrupt the statement if its deadline has passed."""
        with self._lock:
            if self.deadline <= time.monotonic():
                self.strike_count += 1
                self.deadline = (
                    time.monotonic() + _AGAIN_SECONDS if self.strike_count == 1 else math.inf
                )
                self._call()

    def _call(self) -> None:
        try:
            self._interrupt(self.strike_count)
        except Exception:  # noqa: BLE001 - the other sessions' limits must hold nevertheless
            _LOG.warning("a statement could not be interrupted", exc_info=True)


class StatementWatchdog:
    """The thread that interrupts statements at their deadlines, until the watchdog is closed."""

    def __init__(self) -> None:
        self._watched_limits: set[StatementTimeout] = set()
        self._wake_time = math.inf
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="intercode-watchdog", daemon=True)
        self._thread.start()

    def limit(self, interrupt: Interrupt) -> StatementTimeout:
        """Return a new time limit for the statements of a session."""
        return StatementTimeout(self, interrupt)

    def watch(self, limit: StatementTimeout) -> None:
        """Let the thread check a limit at its deadline."""
        with self._condition:
            self._watched_limits.add(limit)
            if limit.deadline < self._wake_time:
                self._condition.notify()

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with self._condition:
                # The limit of a statement that starts after this line is added again by `watch`.
                self._watched_limits = {
                    limit for limit in self._watched_limits if limit.deadline < math.inf
                }
                self._wake_time = min(
                    (limit.deadline for limit in self._watched_limits), default=math.inf
                )
                remaining_seconds = self._wake_time - time.monotonic()
                if self._closed:
                    return
                if remaining_seconds > 0:
                    self._condition.wait(
                        None if remaining_seconds == math.inf else remaining_seconds
                    )
                    continue
                due = list(self._watched_limits)
            for limit in due:
                limit.check()
