"""Admission control: limits on connections whose client has not yet sent the server's token.

A server adds each new connection to an `ConnectionQueue`, and removes the connection when its
client has sent the token. Until then the connection is pending. The number and the age of pending
connections are limited, so clients without a token cannot use up the descriptors and threads of the
server. Any thread, also one that runs an event loop, may add a connection.
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
"""Seconds in which a client must send a complete request head with the token. A regular client
sends the head at once."""
MAX_PENDING = 256
"""The maximum number of pending connections."""
_SHARE = 8
"""Divisor of the process's descriptor limit: pending connections take at most one eighth of it."""


@dataclass(frozen=True, slots=True)
class _PendingConnection:
    """A pending connection, the deadline of its admission, and the function that closes it."""

    deadline: float
    connection: socket.socket
    drop: Callable[[], None]


class ConnectionQueue:
    """A bounded queue of pending connections.

    If the queue is full, a new connection evicts the oldest connection without unread data from its
    client. If all connections have unread data, the oldest connection is evicted.

    Args:
        max_pending: The maximum number of pending connections; None: the lower of `MAX_PENDING` and
            one eighth of the descriptor limit.
        seconds: The seconds until a pending connection is dropped.
    """

    def __init__(self, max_pending: int | None = None, seconds: float = SECONDS) -> None:
        self._max_pending = _default_max_pending() if max_pending is None else max_pending
        self._seconds = seconds
        self._entries: dict[Hashable, _PendingConnection] = {}
        """Pending connections in the order of their deadlines."""
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def pending_count(self) -> int:
        """The number of connections that wait for admission."""
        with self._condition:
            return len(self._entries)

    @contextmanager
    def pending_entry(self, connection: socket.socket) -> Iterator[Callable[[], None]]:
        """Add a connection to the queue, and remove the connection at the end of the block.

        Args:
            connection: The socket that the calling thread serves within the block.

        Yields:
            A function that admits the connection: it removes the connection from the queue.
        """

        def drop() -> None:
            with suppress(OSError):  # the connection has already ended
                # `shutdown` wakes the thread that serves the connection; `close` would not.
                connection.shutdown(socket.SHUT_RDWR)

        self.enter(connection, connection, drop)
        try:
            yield lambda: self.leave(connection)
        finally:
            self.leave(connection)

    def enter(self, key: Hashable, connection: socket.socket, drop: Callable[[], None]) -> None:
        """Add a connection to the pending connections; at the maximum, drop another one.

        Args:
            key: The connection's key for `leave`.
            connection: The socket, or asyncio's transport socket.
            drop: A function that ends the connection. Any thread may call the function.
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
        """Remove a connection that was admitted or has ended. The method is idempotent."""
        with self._condition:
            self._entries.pop(key, None)

    def _pop_silent(self) -> _PendingConnection:
        """Remove and return the oldest connection without readable data.

        If all connections have readable data, the oldest connection is removed.
        """
        poll, keys = select.poll(), dict[int, Hashable]()
        for key, entry in self._entries.items():
            if (number := entry.connection.fileno()) >= 0:
                poll.register(number, select.POLLIN)
                keys[number] = key
        readable_keys = {keys[number] for number, _ in poll.poll(0)}
        silent_keys = (key for key in self._entries if key not in readable_keys)
        return self._entries.pop(next(silent_keys, next(iter(self._entries))))

    def _expire(self) -> None:
        """Drop each connection at its deadline, in a thread that ends when the queue is empty."""
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
