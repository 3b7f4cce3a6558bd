"""Reads what background jobs print while their shell waits for its next action.

A pipe holds at most 1 MiB: without a reader a job that prints more would stand still between two
actions. One thread serves all shells of a process; it sleeps while nothing is printed.
"""

from __future__ import annotations

import os
import select
import threading

from intercode.sandbox.base import OutputBuffer

_CHUNK = 1 << 18


class Drain:
    """The pipes of idle shells, each with the buffer that its output goes to."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._buffers: dict[int, tuple[OutputBuffer, int]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, fd: int, buffer: OutputBuffer, limit: int) -> None:
        """Read `fd`, which does not block, into `buffer`, until that has taken `limit` bytes."""
        if self._owner != os.getpid():
            self._forget()  # a fork has no thread
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(
                    target=self._serve, args=(self._epoll,), name="intercode-drain", daemon=True
                ).start()
            self._buffers[fd] = buffer, limit
            self._epoll.register(fd, select.EPOLLIN)

    def release(self, fd: int) -> None:
        """Leave `fd` alone from now on. Idempotent."""
        if self._owner == os.getpid():
            with self._lock:
                self._drop(fd)

    def _drop(self, fd: int) -> None:
        if self._buffers.pop(fd, None) is not None and self._epoll is not None:
            self._epoll.unregister(fd)

    def _serve(self, epoll: select.epoll) -> None:
        while True:
            for fd, _ in epoll.poll():
                with self._lock:
                    if fd in self._buffers and not self._take(fd):
                        self._drop(fd)

    def _take(self, fd: int) -> bool:
        buffer, limit = self._buffers[fd]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        buffer.add(data)
        return bool(data) and buffer.total < limit
