"""Admission: connections whose client has not shown the token of a server yet.

They are few and short-lived, so that clients without a token take no descriptors, threads or time
from those with one. Each server enters its connections here, from threads and event loops alike.
"""

from __future__ import annotations

import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

SECONDS = 5.0
"""Time for a first whole head with a token: a client sends it at once."""
MAX_PENDING = 256
_SHARE = 8
"""Pending connections take at most this part of the descriptors that the process may have."""


@dataclass(frozen=True, slots=True)
class _PendingConnection:
    """A connection, by when it must be admitted, and how it is ended."""

    deadline: float
    connection: socket.socket
    drop: Callable[[], None]


class Admission:
    """A waiting room of connections: the oldest silent one leaves for a new one.

    Args:
        max_pending: Connections at a time; None: as many as the limit of descriptors leaves room
            for.
        seconds: How long each may stay.
    """

    def __init__(self, max_pending: int | None = None, seconds: float = SECONDS) -> None:
        self._max_pending = _default_max_pending() if max_pending is None else max_pending
        self._seconds = seconds
        self._entries: dict[Hashable, _PendingConnection] = {}
        """In the order of their deadlines."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def pending_count(self) -> int:
        """The number of connections that wait to be admitted."""
        with self._condition:
            return len(self._entries)

    @contextmanager
    def pending_entry(self, connection: socket.socket) -> Iterator[Callable[[], None]]:
        """Enter a connection that a thread serves while the block runs; give what admits it."""

        def drop() -> None:
            with suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that has it

        self.enter(connection, connection, drop)
        try:
            yield lambda: self.leave(connection)
        finally:
            self.leave(connection)

    def enter(self, key: Hashable, connection: socket.socket, drop: Callable[[], None]) -> None:
        """Let a connection wait for its admission.

        Args:
            key: Names it for `leave`.
            connection: Its socket, or asyncio's view of that.
            drop: Ends it; called from any thread.
        """
        with self._condition:
            evicted_entry = self._pop_silent() if len(self._entries) >= self._max_pending else None
            entry = _PendingConnection(time.monotonic() + self._seconds, connection, drop)
            self._entries[key] = entry
            if self._thread is None:
                self._thread = threading.Thread(target=self._expire, daemon=True)
                self._thread.start()
            self._condition.notify_all()
        if evicted_entry is not None:
            evicted_entry.drop()

    def leave(self, key: Hashable) -> None:
        """Take out a connection that was admitted, or has ended. Idempotent."""
        with self._condition:
            self._entries.pop(key, None)

    def _pop_silent(self) -> _PendingConnection:
        """Take out the oldest connection of which nothing waits to be read; else the oldest."""
        poll, keys = select.poll(), dict[int, Hashable]()
        for key, entry in self._entries.items():
            if (number := entry.connection.fileno()) >= 0:
                poll.register(number, select.POLLIN)
                keys[number] = key
        readable_keys = {keys[number] for number, _ in poll.poll(0)}
        silent_keys = (key for key in self._entries if key not in readable_keys)
        return self._entries.pop(next(silent_keys, next(iter(self._entries))))

    def _expire(self) -> None:
        """Drop each connection at its deadline, on a thread that ends when none is left."""
        while True:
            with self._condition:
                oldest_key = next(iter(self._entries), None)
                if oldest_key is None:
                    self._thread = None
                    return
                remaining_seconds = self._entries[oldest_key].deadline - time.monotonic()
                if remaining_seconds > 0:
                    self._condition.wait(remaining_seconds)
                    continue
                entry = self._entries.pop(oldest_key)
            entry.drop()


def _default_max_pending() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MAX_PENDING, limit // _SHARE))
