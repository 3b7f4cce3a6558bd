"""Ctrl-C as a message instead of an exception at an arbitrary place."""

from __future__ import annotations

import queue
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """While entered, SIGINT and SIGTERM are counted and put into `messages`.

    `SimpleQueue.put` is the one way to wake the main thread that may be called from a signal
    handler at any moment. In a thread that is not the main one nothing is caught.
    """

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.count = 0
        self._previous: dict[int, Any] = {}

    def _caught(self, number: int, frame: FrameType | None) -> None:
        # SIGTERM does not ask twice: whoever sends it will send SIGKILL next.
        self.count += 2 if number == signal.SIGTERM else 1
        self.messages.put(None)
        if self.count > 2:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
