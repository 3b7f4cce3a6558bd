"""The caller's objects for processes of a sandbox: programs, workers and process 1."""

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

from intercode_sandbox.base import Completed, FailureEvidence, HeadTailBuffer, Process
from intercode_sandbox.errors import SandboxError
from intercode_sandbox.native import wire
from intercode_sandbox.native.frozen_layers import FrozenLayer
from intercode_sandbox.native.pipes import channel, close_all
from intercode_sandbox.native.zygote import encode_request
from intercode_sandbox.ownership import disown_in_forks, register_release

HARD_OUTPUT_FACTOR = 64
"""A program is killed as soon as one of its streams exceeds the output limit this many times. After
its end about `_DRAIN` further bytes of each stream are read."""
_CHUNK = 1 << 18
_DRAIN = 1 << 20
"""Maximum of bytes that are read from a stream after the program has ended."""
END_SECONDS = 5.0
"""Seconds for which a caller waits for the end of killed processes. Afterwards only the spawner
waits for them."""


class NativeProcess:
    """A running program; the native implementation of `Process`.

    Args:
        pid: The process id inside the sandbox.
        fds: The program's descriptor → the caller's end, for each channel.
        exit_fd: The caller's end of the pipe to which process 1 writes the exit code.
        send_signal: A function that sends a signal: its arguments are the pid and the signal's
            number.
    """

    def __init__(
        self,
        pid: int,
        fds: Mapping[int, int],
        exit_fd: int,
        send_signal: Callable[[int, int], None],
    ) -> None:
        self.pid = pid
        self._fds = dict(fds)
        self._exit_fd = exit_fd
        self._send = send_signal
        self._code: int | None = None
        self.lost = False
        """Whether the sandbox ended before it reported this program's exit code."""
        self._finalizer = register_release(self, close_all, *self._fds.values(), exit_fd)
        disown_in_forks(self)

    @property
    def fds(self) -> Mapping[int, int]:
        """The program's descriptor → the caller's end, for each channel."""
        return self._fds

    @property
    def exit_fd(self) -> int:
        """A descriptor that becomes readable as soon as the process has ended."""
        return self._exit_fd

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs.

        The exit code is 128 + N if signal N killed the program. If the sandbox has ended before the
        program, the exit code is that of SIGKILL.
        """
        if self._code is None:
            try:
                code_bytes = os.read(self._exit_fd, 4)
            except BlockingIOError:
                return None
            self.lost = len(code_bytes) < 4
            exit_code = -signal.SIGKILL if self.lost else struct.unpack("=i", code_bytes)[0]
            self._code = exit_code if exit_code >= 0 else 128 - exit_code
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            self._send(self.pid, number)

    def close(self) -> None:
        """Kill the process if it runs, and close the caller's ends of its channels."""
        if not self._finalizer.alive:
            return
        with suppress(OSError, SandboxError):  # the sandbox has ended, and the process with it
            self.signal(signal.SIGKILL)
        self._finalizer()

    def disown(self) -> None:
        """Replace the inherited descriptors in a fork of this process: see `SupportsDisown`.

        The numbers then belong to an empty file. Closed numbers could be assigned to other files,
        which later uses of this object would hit.
        """
        if self._finalizer.alive:
            empty_fd = os.memfd_create("nothing", os.MFD_CLOEXEC)
            for fd in (*self._fds.values(), self._exit_fd):
                os.dup2(empty_fd, fd, inheritable=False)
            os.close(empty_fd)


class NativeWorker(NativeProcess):
    """A running worker; the native implementation of `Worker`.

    Args:
        pid: See `NativeProcess`.
        caller_socket: The caller's end of the worker's socket.
        error_fd: The caller's end of the worker's error output.
        exit_fd: See `NativeProcess`.
        send_signal: See `NativeProcess`.
    """

    def __init__(
        self,
        pid: int,
        caller_socket: socket.socket,
        error_fd: int,
        exit_fd: int,
        send_signal: Callable[[int, int], None],
    ) -> None:
        super().__init__(pid, {2: error_fd}, exit_fd, send_signal)
        self.socket = caller_socket
        register_release(self, caller_socket.close)

    def errors(self) -> str:
        """Return the worker's error output since the last call, for a diagnosis."""
        try:
            return os.read(self.fds[2], _CHUNK).decode(errors="replace")
        except BlockingIOError:
            return ""

    def close(self) -> None:
        """Kill the worker if it runs, and close the caller's ends of its streams."""
        self.socket.close()
        super().close()

    def disown(self) -> None:
        """Close the inherited socket in a fork of this process: see `SupportsDisown`."""
        self.socket.close()
        super().disown()


@dataclass(frozen=True, slots=True)
class PreparedProgram:
    """A program that was started together with its slot, because a sandbox may soon request it."""

    program: dict[str, Any]
    """The request for the program, with its channels."""
    pid: int
    """Process id inside the sandbox."""
    fds: list[int]
    """The caller's ends of the program's channels, then the caller's end of its exit pipe."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class SandboxSlot:
    """The namespaces, or the container, in which a sandbox runs, with process 1.

    A slot has one life: a sandbox that was frozen continues with the same files in a new slot.
    """

    control: socket.socket
    """The caller's socket to process 1."""
    process: InitProcess | None
    """Process 1; None for a container whose processes this process cannot see."""
    forget: Callable[[Path], None] = lambda _: None
    """A function that is called with the folder of a layer that is about to be deleted. For a
    native slot, the function makes the spawner unmount the layer."""
    freeze: Callable[[], FrozenLayer | None] = lambda: None
    """A function that freezes the slot's files, called while only process 1 runs. The result is
    None if the kernel does not permit the freezing."""
    on_slow_end: Callable[[], None] = lambda: None
    """A function that reports to the spawner that the kernel takes long to end this slot."""
    prepared_program: PreparedProgram | None = None
    """The program that was started with the slot, until a request takes it."""
    ids: int = 1
    """The number of user ids in the sandbox."""
    workers: tuple[str, ...] = ()
    """The names of the modules that the slot can start as workers."""
    _program_finalizer: weakref.finalize[..., Any] | None = field(init=False, default=None)
    """The finalizer that closes the descriptors of the prepared program. The finalizer is called by
    `end`, or when the slot is freed without `end`."""

    def __post_init__(self) -> None:
        if self.prepared_program is not None:
            self._program_finalizer = register_release(self, close_all, *self.prepared_program.fds)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request to process 1."""
        wire.send(self.control, encode_request(message), fds, packed=True)

    def take(self, program: dict[str, Any]) -> PreparedProgram | None:
        """Take the prepared program if it was started for the same request; otherwise return None.

        Args:
            program: The request for a program, with its channels.
        """
        if self.prepared_program is None or self.prepared_program.program != program:
            return None
        prepared_program, self.prepared_program = self.prepared_program, None
        if self._program_finalizer is not None:
            self._program_finalizer.detach()
        return prepared_program

    def end(self) -> None:
        """End all processes of the slot, and wait for their end, but at most `END_SECONDS`."""
        self.prepared_program = None
        if self._program_finalizer is not None:
            self._program_finalizer()
        self.control.close()
        if self.process is not None and not self.process.end():
            self.on_slow_end()


class InitProcess:
    """The process 1 of a sandbox, as the caller sees it.

    The process is identified by a descriptor (pidfd), which never denotes another process.

    Args:
        pidfd: The descriptor of the process, owned by this object from now on.
        request_evidence: A function that returns evidence about the end of the process, or about
            its failure to answer.
    """

    def __init__(
        self,
        pidfd: int,
        request_evidence: Callable[[], FailureEvidence] = lambda: FailureEvidence(
            is_keeper_alive=False
        ),
    ) -> None:
        self._file = FileIO(pidfd)
        register_release(self, self._file.close)
        self.evidence = request_evidence
        self._kill_time: float | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill process 1, and thereby all processes of the sandbox. Does not wait. Idempotent."""
        with self._lock:
            if not self._file.closed:
                self._kill_time = self._kill_time or time.monotonic()
                # Process 1 also ends when the caller closes the socket. The closing must suffice if
                # this process lacks the privilege to send the signal.
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(self._file.fileno(), signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id in the pid namespace of this process; -1: the sandbox has ended.

        The value is -1 even if the kernel has not yet ended the sandbox after `end`.
        """
        with self._lock:
            fd_info = (
                ""
                if self._file.closed
                else read_if_there(f"/proc/self/fdinfo/{self._file.fileno()}")
            )
        return int(fd_info.partition("Pid:")[2].split()[0]) if fd_info else -1

    @property
    def stopped(self) -> bool:
        """Whether a process outside the sandbox has stopped process 1 by a signal.

        No process of the sandbox can stop process 1.
        """
        return read_if_there(f"/proc/{self.pid}/stat").rpartition(")")[2].lstrip()[:1] in ("T", "t")

    def wait(self, seconds: float) -> bool:
        """Wait until all processes of the sandbox have ended.

        Args:
            seconds: Maximum of seconds to wait.

        Returns:
            Whether all processes have ended; True without a test if the descriptor is closed.
        """
        with self._lock:
            if self._file.closed:
                return True
            pidfd_copy = os.dup(self._file.fileno())
        try:  # this thread waits without the lock, because `kill` and `end` need it
            poller = select.poll()
            poller.register(pidfd_copy, select.POLLIN)
            # The kernel reports the end of a pid namespace's first process only after all other
            # processes of the namespace have ended.
            return bool(poller.poll(max(0.0, seconds) * 1000))
        finally:
            os.close(pidfd_copy)

    def end(self, seconds: float | None = None) -> bool:
        """Kill process 1, and wait until all processes of the sandbox have ended. Idempotent.

        Args:
            seconds: Seconds to wait. None: wait until `END_SECONDS` after the first kill, and then
                close the descriptor.

        Returns:
            Whether all processes have ended. Programs can make the kernel take minutes to end them.
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
        """Close the inherited descriptor in a fork of this process: see `SupportsDisown`."""
        self._lock = threading.Lock()
        self._file.close()


def run_to_end(
    process: Process,
    timeout: float,
    output_limit: int,
    kill: Callable[[], None],
    stop_fd: int | None = None,
) -> Completed:
    """Collect the output of a program until the program ends, and return the result.

    The call does not wait for children of the program that still hold its output open.

    Args:
        process: The program.
        timeout: Seconds until the program is killed.
        output_limit: Bytes retained of each stream. A program whose stream exceeds the limit
            `HARD_OUTPUT_FACTOR` times is killed.
        kill: A function that kills the program.
        stop_fd: A descriptor; the program is killed as soon as the descriptor is readable.
    """
    buffers = {
        fd: HeadTailBuffer(output_limit)
        for fd_number, fd in process.fds.items()
        if fd_number in (1, 2)
    }
    poller = select.poll()
    poller.register(process.exit_fd, select.POLLIN)
    for fd in buffers:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    if stop_fd is not None:
        poller.register(stop_fd, select.POLLIN)
    deadline = time.monotonic() + timeout
    timed_out = stopped = False
    while process.poll() is None:
        remaining_seconds = deadline - time.monotonic()
        exceeds_limit = any(
            output_buffer.total > output_limit * HARD_OUTPUT_FACTOR
            for output_buffer in buffers.values()
        )
        if remaining_seconds <= 0 or exceeds_limit or stopped:
            timed_out = not exceeds_limit and not stopped
            kill()
            break
        for fd, event_mask in poller.poll(remaining_seconds * 1000 + 1):
            stopped = stopped or fd == stop_fd
            if fd in buffers and not _read_into(buffers[fd], fd) and event_mask & select.POLLHUP:
                poller.unregister(fd)
    for fd, buffer in buffers.items():
        # A background child may continue to print. Only the bytes that are available now count as
        # output of the program.
        drain_limit = buffer.total + _DRAIN
        while buffer.total < drain_limit and _read_into(buffer, fd):
            pass
    buffers_by_number = {
        fd_number: buffers[fd] for fd_number, fd in process.fds.items() if fd in buffers
    }
    exit_code = process.poll()
    return Completed(
        exit_code=128 + signal.SIGKILL if exit_code is None else exit_code,
        stdout=buffers_by_number[1].getvalue(),
        stderr=buffers_by_number[2].getvalue() if 2 in buffers_by_number else b"",
        timed_out=timed_out,
        truncated=any(output_buffer.truncated for output_buffer in buffers.values()),
    )


def _read_into(buffer: HeadTailBuffer, fd: int) -> bool:
    """Read from a descriptor into a buffer, once; return whether any bytes were read."""
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
    """Return a read-only descriptor of a memory file with these bytes.

    The file serves as the whole input of a program. A pipe would need a thread that writes.
    """
    write_end, read_end = channel("text")
    with open(write_end, "wb") as file:
        file.write(data)
    return read_end


def error_pipe() -> tuple[int, int]:
    """Return the caller's end and a worker's end of a pipe for the worker's error output.

    Neither end blocks. If the pipe is full, further output is lost, and the worker does not wait.
    """
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
