"""The caller's ends of a sandbox's processes: of its programs, and of its process 1."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from intercode_sandbox.base import Completed, Evidence, OutputBuffer, Process
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native import wire
from intercode_sandbox.native.frozen_layers import FrozenLayer
from intercode_sandbox.native.pipes import channel, close_all
from intercode_sandbox.native.zygote import encode_request
from intercode_sandbox.ownership import disown_in_forks, register_release

HARD_OUTPUT_FACTOR = 64
"""A program that prints more than this many times its limit is killed: the rest is not read."""
_CHUNK = 1 << 18
_DRAIN = 1 << 20
END_SECONDS = 5.0
"""Seconds to wait for the end of killed processes; later their keeper alone waits."""


class NativeProcess:
    """A running program; the native implementation of `Process`."""

    def __init__(
        self, pid: int, fds: Mapping[int, int], exit_fd: int, send: Callable[[int, int], None]
    ) -> None:
        self.pid = pid
        self._fds = dict(fds)
        self._exit_fd = exit_fd
        self._send = send
        self._code: int | None = None
        self.lost = False
        """Whether the sandbox ended before it reported this program's exit code."""
        self._finalizer = register_release(self, close_all, *self._fds.values(), exit_fd)
        disown_in_forks(self)

    @property
    def fds(self) -> Mapping[int, int]:
        """The caller's end of each channel."""
        return self._fds

    @property
    def exit_fd(self) -> int:
        """A descriptor that becomes readable as soon as the process has ended."""
        return self._exit_fd

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs. A program of a lost sandbox was killed."""
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
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            self._send(self.pid, number)

    def close(self) -> None:
        """Kill the process if it runs, and close the caller's ends."""
        if not self._finalizer.alive:
            return
        with suppress(OSError, SandboxError):  # the sandbox may end now, with the process
            self.signal(signal.SIGKILL)
        self._finalizer()

    def disown(self) -> None:
        """Detach the descriptors (`SupportsDisown`): their numbers stay valid, on an empty file."""
        if self._finalizer.alive:
            empty_file = os.memfd_create("nothing", os.MFD_CLOEXEC)
            for fd in (*self._fds.values(), self._exit_fd):
                os.dup2(empty_file, fd, inheritable=False)
            os.close(empty_file)


class NativeWorker(NativeProcess):
    """A running worker; the native implementation of `Worker`."""

    def __init__(
        self,
        pid: int,
        caller_socket: socket.socket,
        errors: int,
        exit_fd: int,
        send: Callable[[int, int], None],
    ) -> None:
        super().__init__(pid, {2: errors}, exit_fd, send)
        self.socket = caller_socket
        register_release(self, caller_socket.close)

    def errors(self) -> str:
        """Read the worker's error output, for a diagnosis; each byte is returned once."""
        try:
            return os.read(self.fds[2], _CHUNK).decode(errors="replace")
        except BlockingIOError:
            return ""

    def close(self) -> None:
        """Kill the worker if it runs, and close the caller's ends."""
        self.socket.close()
        super().close()

    def disown(self) -> None:
        """Close the inherited socket (`SupportsDisown`)."""
        self.socket.close()
        super().disown()


@dataclass(frozen=True, slots=True)
class PreparedProgram:
    """A program that was started together with its slot, before any request for it."""

    program: dict[str, Any]
    """The request that starts it, with its channels."""
    pid: int
    fds: list[int]
    """The caller's ends of its channels, then the caller's end of its exit pipe."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class SandboxSlot:
    """The namespaces or container of a sandbox. A sandbox that was frozen gets a new slot."""

    control: socket.socket
    """The socket of its process 1."""
    process: InitProcess | None
    """Process 1, if it is known."""
    forget: Callable[[Path], None] = lambda _: None
    """Announces to the keeper a layer that is about to be deleted."""
    freeze: Callable[[], FrozenLayer | None] = lambda: None
    """Freezes its files if only process 1 runs; None: the kernel does not permit it."""
    on_slow_end: Callable[[], None] = lambda: None
    """Leaves the end of the sandbox to its spawner, if the kernel takes long for it."""
    prepared_program: PreparedProgram | None = None
    """The program that was started with the slot."""
    ids: int = 1
    """The number of user ids in the sandbox."""
    workers: tuple[str, ...] = ()
    """The modules of workers that the slot can start."""
    _program_finalizer: weakref.finalize[..., Any] | None = field(init=False, default=None)
    """Closes the descriptors of the prepared program, even if the slot is dropped without `end`."""

    def __post_init__(self) -> None:
        if self.prepared_program is not None:
            self._program_finalizer = register_release(self, close_all, *self.prepared_program.fds)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request to process 1."""
        wire.send(self.control, encode_request(message), fds, packed=True)

    def take(self, program: dict[str, Any]) -> PreparedProgram | None:
        """Return the prepared program, if its request equals `program`; else None."""
        if self.prepared_program is None or self.prepared_program.program != program:
            return None
        prepared_program, self.prepared_program = self.prepared_program, None
        if self._program_finalizer is not None:
            self._program_finalizer.detach()
        return prepared_program

    def end(self) -> None:
        """End all processes, or leave them to the keeper if the kernel takes long."""
        self.prepared_program = None
        if self._program_finalizer is not None:
            self._program_finalizer()
        self.control.close()
        if self.process is not None and not self.process.end():
            self.on_slow_end()


class InitProcess:
    """A sandbox's process 1, by a descriptor that cannot denote another process.

    Args:
        fd: A descriptor of the process, owned by this object from now on.
        evidence: Returns the outside evidence of its end, or of its silence.
    """

    def __init__(
        self, fd: int, evidence: Callable[[], Evidence] = lambda: Evidence(is_keeper_alive=False)
    ) -> None:
        self._file = FileIO(fd)
        register_release(self, self._file.close)
        self.evidence = evidence
        self._kill_time: float | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill process 1, and thereby all processes of the sandbox. Does not wait. Idempotent."""
        with self._lock:
            if not self._file.closed:
                self._kill_time = self._kill_time or time.monotonic()
                # Without the privilege, the end of the socket must suffice.
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(self._file.fileno(), signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id on the machine; -1: the process has ended."""
        with self._lock:
            text = (
                ""
                if self._file.closed
                else read_if_there(f"/proc/self/fdinfo/{self._file.fileno()}")
            )
        return int(text.partition("Pid:")[2].split()[0]) if text else -1

    @property
    def stopped(self) -> bool:
        """Whether it was stopped from outside: no process of the sandbox can stop it."""
        return read_if_there(f"/proc/{self.pid}/stat").rpartition(")")[2].lstrip()[:1] in ("T", "t")

    def wait(self, seconds: float) -> bool:
        """Wait until all processes of the sandbox have ended; return whether they have."""
        with self._lock:
            if self._file.closed:
                return True
            copy = os.dup(self._file.fileno())
        try:  # without the lock, which `kill` and `end` need
            poll = select.poll()
            poll.register(copy, select.POLLIN)
            # The kernel reports the end of a namespace's first process after all others have ended.
            return bool(poll.poll(max(0.0, seconds) * 1000))
        finally:
            os.close(copy)

    def end(self, seconds: float | None = None) -> bool:
        """Kill process 1, and wait until all processes of the sandbox have ended. Idempotent.

        Args:
            seconds: Seconds to wait; None: until `END_SECONDS` after the first kill. Then this
                object closes its descriptor.

        Returns:
            Whether all have ended. Programs can make the kernel take minutes to end them.
        """
        self.kill()
        if seconds is not None:
            return self.wait(seconds)
        elapsed_seconds = 0.0 if self._kill_time is None else time.monotonic() - self._kill_time
        has_ended = self.wait(END_SECONDS - elapsed_seconds)
        with self._lock:
            self._file.close()
        return has_ended

    def disown(self) -> None:
        """Close the inherited descriptor (`SupportsDisown`)."""
        self._lock = threading.Lock()
        self._file.close()


def run_to_end(
    process: Process,
    timeout: float,
    output_limit: int,
    kill: Callable[[], None],
    stop: int | None = None,
) -> Completed:
    """Collect a program's output until *it* ends, even if its children hold the output open.

    Args:
        process: The program.
        timeout: Seconds until the program is killed.
        output_limit: Bytes retained of each stream.
        kill: Kills the program.
        stop: A descriptor; the program is killed as soon as the descriptor is readable.
    """
    buffers = {
        fd: OutputBuffer(output_limit)
        for fd_number, fd in process.fds.items()
        if fd_number in (1, 2)
    }
    poll = select.poll()
    poll.register(process.exit_fd, select.POLLIN)
    for fd in buffers:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    deadline = time.monotonic() + timeout
    timed_out = stopped = False
    while process.poll() is None:
        remaining_seconds = deadline - time.monotonic()
        too_much = any(
            output_buffer.total > output_limit * HARD_OUTPUT_FACTOR
            for output_buffer in buffers.values()
        )
        if remaining_seconds <= 0 or too_much or stopped:
            timed_out = not too_much and not stopped
            kill()
            break
        for fd, event in poll.poll(remaining_seconds * 1000 + 1):
            stopped = stopped or fd == stop
            if fd in buffers and not _read_into(buffers[fd], fd) and event & select.POLLHUP:
                poll.unregister(fd)
    for fd, buffer in buffers.items():
        # A background child may print on: only the bytes available now count as the program's.
        limit = buffer.total + _DRAIN
        while buffer.total < limit and _read_into(buffer, fd):
            pass
    buffers_by_number = {
        fd_number: buffers[fd] for fd_number, fd in process.fds.items() if fd in buffers
    }
    code = process.poll()
    return Completed(
        exit_code=128 + signal.SIGKILL if code is None else code,
        stdout=buffers_by_number[1].getvalue(),
        stderr=buffers_by_number[2].getvalue() if 2 in buffers_by_number else b"",
        timed_out=timed_out,
        truncated=any(output_buffer.truncated for output_buffer in buffers.values()),
    )


def _read_into(buffer: OutputBuffer, fd: int) -> bool:
    """Read once; return whether any bytes were read."""
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    buffer.add(data)
    return bool(data)


def read_if_there(path: str) -> str:
    """Return a file's text without surrounding whitespace; empty if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def memory_file(data: bytes) -> int:
    """Return a read-only descriptor of these bytes: a program's whole input, without a feeder."""
    write_end, read_end = channel("text")
    with open(write_end, "wb") as file:
        file.write(data)
    return read_end


def error_pipe() -> tuple[int, int]:
    """Return the caller's end and a worker's end. A full pipe loses output; no writer waits."""
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
