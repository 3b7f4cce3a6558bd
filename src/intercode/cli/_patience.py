"""What is built is told of only if it takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS = 1.0


class Patience:
    """Passes lines on, but none of work that is done within a second.

    Args:
        say: Is told the lines.
        seconds: How long they are held back.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = SECONDS) -> None:
        self._say = say
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: list[str] = []
        self._due = 0.0
        self._timer: threading.Timer | None = None

    def __call__(self, line: str) -> None:
        """Tell a line, now or when the work has taken long."""
        with self._lock:
            self._held.append(line)
            if self._timer is None:
                self._due = time.monotonic() + self._seconds
                self._timer = threading.Timer(self._seconds, self._release)
                self._timer.daemon = True
                self._timer.start()
            if time.monotonic() >= self._due:  # by the clock: the timer's thread may be late
                self._tell()

    def done(self) -> None:
        """The work is done: what is still held back is forgotten."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            self._held.clear()

    def _release(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():  # else it was done meanwhile
                self._tell()

    def _tell(self) -> None:
        for line in self._held:
            self._say(line)
        self._held.clear()
