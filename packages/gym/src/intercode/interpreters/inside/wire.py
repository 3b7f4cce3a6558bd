"""Message frames between the host and a Python worker: a length, a kind, a number, then bytes.

Both ends import this module. An action of the agent runs in the worker's process, and may replace
`len` or `os.read`. All functions that a response needs are therefore names of this module, bound at
its import.
"""

from __future__ import annotations

import builtins
import fcntl
import struct
from os import close, read, set_blocking, write
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Frame = tuple[int, int, bytes]
    """The kind, the number and the payload of a message."""

# The functions below use this copy, which an action that replaces a builtin does not change.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

STARTED = 255
"""The kind of a worker's first message, which is sent before any code of the agent runs."""
_HEADER = struct.Struct("=IBI")
_CHUNK = 1 << 18
_MAX_LENGTH = (1 << 32) - 1
_HIGH_FD = 960
"""A descriptor number that programs are unlikely to use or close.

The number is below the usual limit of 1024. Programs that close "all" descriptors often close only
lower numbers.
"""


def keep(fd: int) -> int:
    """Duplicate a descriptor to a number that an action is unlikely to use."""
    for min_fd in (_HIGH_FD, 3):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, min_fd)
        except (OSError, ValueError):  # the process's limit of descriptors is below this number
            continue
    return fd


def frame(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    """Return a message as bytes: the header, then the payload."""
    return _HEADER.pack(len(payload), kind, number) + payload


def write_all(fd: int, content: bytes) -> None:
    """Write all bytes, even if an action has made the descriptor non-blocking."""
    view = memoryview(content)
    while view:
        try:
            view = view[write(fd, view) :]
        except BlockingIOError:
            set_blocking(fd, True)


class MessageStreamParser:
    """Parser of a stream of messages.

    Args:
        limit: Maximum bytes of a message's payload.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Add data, and return the messages that are now complete.

        Raises:
            ValueError: A message exceeds the limit.
        """
        self._buffer += chunk
        frames = []
        while len(self._buffer) >= _HEADER.size:
            length, kind, request_number = _HEADER.unpack_from(self._buffer)
            if length > self._limit:
                raise ValueError(f"a message of {length} bytes, above {self._limit}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, request_number, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return frames


class HostChannel:
    """The worker's end of the channel to the host."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read, self._write = keep(read_fd), keep(write_fd)
        for fd in {read_fd, write_fd}:
            close(fd)
        self._frames = MessageStreamParser(_MAX_LENGTH)
        self._waiting_frames: list[Frame] = []

    def send(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Send a message to the host."""
        write_all(self._write, frame(kind, number, payload))

    def receive(self) -> Frame:
        """Wait for a message, return it, and remove it from the queue.

        Raises:
            EOFError: The host has closed its end.
        """
        message = self.peek()
        self.drop()
        return message

    def peek(self) -> Frame:
        """Wait for a message, and return it; it remains the first of the queue until `drop`.

        Raises:
            EOFError: The host has closed its end.
        """
        while not self._waiting_frames:
            try:
                chunk = read(self._read, _CHUNK)
            except OSError as error:
                if error.errno is None:  # an action's alarm has raised TimeoutError, for example
                    raise
                chunk = b""  # an action closed the descriptor
            if not chunk:
                raise EOFError
            self._waiting_frames += self._frames.feed(chunk)
        return self._waiting_frames[0]

    def drop(self) -> None:
        """Remove the first message from the queue."""
        del self._waiting_frames[:1]
