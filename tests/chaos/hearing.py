"""Hear every fork, exec and exit on the machine from the kernel: its process connector."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

NETLINK_CONNECTOR = 11
PROCESSES = 1
"""Index and value of the connector of processes (CN_IDX_PROC, CN_VAL_PROC)."""
LISTEN = 1
ACKNOWLEDGED, FORK, EXEC, EXIT = 0, 1, 2, 0x80000000
KINDS = {FORK: "fork", EXEC: "exec", EXIT: "exit"}
HEADER = struct.Struct("=IHHII")  # nlmsghdr
CONNECTOR = struct.Struct("=IIIIHH")  # cn_msg
EVENT = struct.Struct("=IIQ")  # what, processor, nanoseconds of the monotonic clock
NUMBERS = struct.Struct("=IIII")
BUFFER = 64 << 20
SO_RCVBUFFORCE = 33


class Event(NamedTuple):
    """A fork, exec or exit; of a thread if `thread` differs from `process`."""

    kind: str
    thread: int
    process: int
    parent: int
    """The process that forked; 0 if this is no fork."""
    time: int
    """Nanoseconds of `time.monotonic_ns`."""


class HearingError(Exception):
    """The kernel does not tell, and why."""


class Ear:
    """A subscription to the kernel's events; to be closed."""

    def __init__(self) -> None:
        self.lost = 0
        """How often events came too fast, and some were dropped."""
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_CONNECTOR
            )
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
            self._socket.bind((0, PROCESSES))
            wish = struct.pack("=I", LISTEN)
            message = CONNECTOR.pack(PROCESSES, PROCESSES, 0, 0, len(wish), 0) + wish
            self._socket.send(HEADER.pack(HEADER.size + len(message), 3, 0, 0, 0) + message)
            self._socket.settimeout(60)
            while (found := self._receive())[0] != ACKNOWLEDGED:
                pass
        except OSError as error:
            raise HearingError(
                f"the kernel's process connector (CONFIG_PROC_EVENTS): {error}"
            ) from None
        if found[2][0]:
            reason = os.strerror(found[2][0])
            raise HearingError(f"the process connector refuses: {reason} (inside a container?)")
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are events."""
        return self._socket.fileno()

    def _receive(self) -> tuple[int, int, tuple[int, ...]]:
        data = self._socket.recv(4096)
        what, _, time = EVENT.unpack_from(data, HEADER.size + CONNECTOR.size)
        return what, time, NUMBERS.unpack_from(data, HEADER.size + CONNECTOR.size + EVENT.size)

    def events(self) -> Iterator[Event]:
        """Return what was heard until now."""
        while True:
            try:
                what, time, (first, second, third, fourth) = self._receive()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost += 1
                continue
            if what == FORK:  # parent's thread and process, child's thread and process
                yield Event("fork", third, fourth, second, time)
            elif what in KINDS:
                yield Event(KINDS[what], first, second, 0, time)

    def close(self) -> None:
        """Listen no longer."""
        with contextlib.suppress(OSError):
            self._socket.close()
