"""The caller's end of a program in a sandbox: its pipes, and running one to its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from intercode.errors import SandboxError
from intercode.sandbox.base import Completed
from intercode.sandbox.output import OutputBuffer
from intercode.sandbox.ownership import disown_in_forks

HARD_OUTPUT_FACTOR = 64
"""A program that prints this many times its limit is killed: nobody reads on."""
_CHUNK = 1 << 18
_DRAIN = 1 << 20


class NativeProcess:
    """A running program; see `sandbox.base.Process`."""

    def __init__(
        self, pid: int, fds: Mapping[int, int], exit_fd: int, send: Callable[[int, int], None]
    ) -> None:
        self.pid = pid
        self._fds = dict(fds)
        self._exit_fd = exit_fd
        self._send = send
        self._code: int | None = None
        self._closed = False
        self.lost = False
        """Whether the sandbox has gone before it said how this ended."""
        disown_in_forks(self)

    @property
    def fds(self) -> Mapping[int, int]:
        """Our end of each channel."""
        return self._fds

    @property
    def exit_fd(self) -> int:
        """Readable as soon as the process has ended."""
        return self._exit_fd

    def poll(self) -> int | None:
        """Its exit code, or None while it runs. What is lost with its sandbox was killed."""
        if self._code is None:
            try:
                data = os.read(self._exit_fd, 4)
            except BlockingIOError:
                return None
            self.lost = len(data) < 4
            code = -signal.SIGKILL if self.lost else struct.unpack("=i", data)[0]
            self._code = code if code >= 0 else 128 - code
        return self._code

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            self._send(self.pid, number)

    def close(self) -> None:
        """Kill it, if it runs, and close our ends."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError, SandboxError):  # the sandbox may die just now, and it with it
            self.signal(signal.SIGKILL)
        for fd in (*self._fds.values(), self._exit_fd):
            os.close(fd)

    def disown(self) -> None:
        """See `ownership.Owned`. The numbers stay valid, with nothing behind them."""
        if not self._closed:
            nothing = os.memfd_create("nothing", os.MFD_CLOEXEC)
            for fd in (*self._fds.values(), self._exit_fd):
                os.dup2(nothing, fd, inheritable=False)
            os.close(nothing)


class NativeWorker(NativeProcess):
    """A running worker; see `sandbox.base.Worker`."""

    def __init__(
        self,
        pid: int,
        ours: socket.socket,
        errors: int,
        exit_fd: int,
        send: Callable[[int, int], None],
    ) -> None:
        super().__init__(pid, {2: errors}, exit_fd, send)
        self.socket = ours

    def errors(self) -> str:
        """What it wrote to its error output, for a diagnosis; what was read is gone."""
        try:
            return os.read(self.fds[2], _CHUNK).decode(errors="replace")
        except BlockingIOError:
            return ""

    def close(self) -> None:
        """Kill it, if it runs, and close our ends."""
        self.socket.close()
        super().close()

    def disown(self) -> None:
        """See `ownership.Owned`."""
        self.socket.close()
        super().disown()


def run_to_end(
    process: NativeProcess,
    timeout: float,
    output_limit: int,
    kill: Callable[[], None],
) -> Completed:
    """Collect what a program prints until *it* ends, whatever its children still hold open."""
    buffers = {
        fd: OutputBuffer(output_limit) for number, fd in process.fds.items() if number in (1, 2)
    }
    poll = select.poll()
    poll.register(process.exit_fd, select.POLLIN)
    for fd in buffers:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + timeout
    timed_out = False
    while process.poll() is None:
        left = deadline - time.monotonic()
        too_much = any(b.total > output_limit * HARD_OUTPUT_FACTOR for b in buffers.values())
        if left <= 0 or too_much:
            timed_out = not too_much
            kill()
            break
        for fd, event in poll.poll(left * 1000 + 1):
            if fd in buffers and not _read_into(buffers[fd], fd) and event & select.POLLHUP:
                poll.unregister(fd)
    for fd, buffer in buffers.items():
        # A background child may go on printing: what is there now is what the program printed.
        limit = buffer.total + _DRAIN
        while buffer.total < limit and _read_into(buffer, fd):
            pass
    by_number = {number: buffers[fd] for number, fd in process.fds.items() if fd in buffers}
    code = process.poll()
    return Completed(
        exit_code=128 + signal.SIGKILL if code is None else code,
        stdout=by_number[1].getvalue(),
        stderr=by_number[2].getvalue() if 2 in by_number else b"",
        timed_out=timed_out,
        truncated=any(b.truncated for b in buffers.values()),
    )


def _read_into(buffer: OutputBuffer, fd: int) -> bool:
    """Read once; whether there was anything."""
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    buffer.add(data)
    return bool(data)
