"""`NativeSandbox`: the caller's object for one native sandbox.

The object sends requests to the sandbox's process 1 by a socket. Process 1 executes them inside the
sandbox, and sends a reply.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from intercode_sandbox import proxy
from intercode_sandbox.base import (
    Change,
    Completed,
    FailureEvidence,
    FreeSpace,
    Limits,
    Program,
    ResultT,
    SandboxBackend,
    Snapshot,
    was_caused_inside,
)
from intercode_sandbox.errors import (
    ActionError,
    CausedInsideError,
    OutputLimitError,
    SandboxClosedError,
    SandboxEndedError,
    SandboxError,
    SandboxTimeoutError,
    UsageError,
)
from intercode_sandbox.forwarding import (
    CONNECTIONS,
    IDLE_SECONDS,
    Forward,
    Handler,
    adopt_socket,
    checked_port,
    handler,
)
from intercode_sandbox.image_accounts import look_up_user
from intercode_sandbox.images import Image
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.native import wire
from intercode_sandbox.native.pipes import Channel, close_all, exit_pipe, open_channels
from intercode_sandbox.native.process import (
    END_SECONDS,
    InitProcess,
    NativeProcess,
    NativeWorker,
    PreparedProgram,
    SandboxSlot,
    error_pipe,
    memory_file,
    run_to_end,
)
from intercode_sandbox.native.snapshot import NativeSnapshot, SandboxStartFiles, SnapshotLayer
from intercode_sandbox.network import (
    NetworkGate,
    NetworkPolicy,
    Resolve,
    free_port,
    handlers,
    proxy_variables,
)
from intercode_sandbox.ownership import disown_in_forks, register_release
from intercode_sandbox.units import MIB

_ANSWER_SECONDS = 30.0
"""Time limit for the reply to most requests."""
_ENDED_SECONDS = END_SECONDS
_FILES_SECONDS = 60.0
"""Time limit within which process 1 lists or streams the changed files."""
_HIGHEST_CHANNEL = 240
_MODES = 0o7777
"""The bits that the mode of a file may have."""
_FILE_ERRORS = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EINVAL, errno.ENXIO, errno.EBUSY, errno.ETXTBSY, errno.ENOTEMPTY, errno.EPIPE),
}
"""Errors caused by a path or a descriptor in the caller's request."""
_MACHINE_ERRORS = {errno.ENFILE, errno.EIO, errno.ENOSYS, errno.ETOOMANYREFS}
"""Errors of the machine, or of a resource that all sandboxes of the machine share. An error in
neither set means that the sandbox's own programs have used up a resource of the sandbox."""


class NativeSandbox:
    """The native implementation of `SandboxBackend`.

    Args:
        slot: The started slot in which the sandbox runs.
        image: The image, the baseline of changes.
        limits: The sandbox's limits.
        on_close: A function that is called with this object when it is closed.
    """

    files: SandboxStartFiles
    """The files at the start of the present slot."""
    begin: Callable[[SandboxStartFiles, bool], SandboxSlot]
    """A function that starts another slot with some files. If its second argument is True, the slot
    has no prepared program."""
    start_sibling: Callable[[str | Snapshot], SandboxBackend]
    """A function that starts another sandbox: see `SupportsFork.start_sibling`."""

    def __init__(
        self,
        slot: SandboxSlot,
        image: Image,
        limits: Limits,
        on_close: Callable[[NativeSandbox], None],
    ) -> None:
        self.image = image
        self.limits = limits
        self.env: Mapping[str, str] = {**image.env, "PWD": image.cwd}
        self.cwd = image.cwd
        self._slot = slot
        self.resting = False
        """Whether the sandbox has no processes: `freeze` was called, and no request has followed.
        """
        self.on_first_program: Callable[[dict[str, Any] | None], None] = lambda _: None
        """A function that is called at the first request of each slot. Its argument is the program
        if `popen` starts one, and None for any other request."""
        self._was_requested = False
        """Whether the present slot has had a request."""
        self._on_close = on_close
        self._lock = threading.Lock()
        self._forwards: list[Forward] = []
        self.gate: NetworkGate | None = None
        """The gate that opens the connections of a network policy; None: no policy needs a gate."""
        self._end: SandboxError | None = None
        """The error that all further requests raise; None while the sandbox serves requests."""
        slot.control.settimeout(_ANSWER_SECONDS)
        # If this object is freed without `close`, the threads of its forwards must end, too.
        register_release(self, _hang_up, self._forwards)
        disown_in_forks(self)

    # -- programs --------------------------------------------------------------------------------

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        output_limit: int | None = None,
        merge_stderr: bool = False,
        stop: int | None = None,
    ) -> Completed:
        """Run a program, and return its result as soon as the program ends.

        `SandboxBackend.exec` describes the arguments.
        """
        program = {**self._program(argv, cwd, env, user), "track": True}
        return self._run(program, stdin, timeout, output_limit, merge_stderr, stop)

    def exec_private(
        self,
        argv: Sequence[str | bytes],
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        merge_stderr: bool = False,
    ) -> Completed:
        """Run a program that no other program can inspect: see `SupportsPrivateExec`."""
        program = {**self._program(argv, cwd, env, None), "track": True, "private": True}
        return self._run(program, stdin, timeout, None, merge_stderr)

    def _run(
        self,
        program: dict[str, Any],
        stdin: bytes | None,
        timeout: float | None,
        output_limit: int | None,
        merge_stderr: bool,
        stop_fd: int | None = None,
    ) -> Completed:
        """Run a program to its end.

        Args:
            program: The request for the program, without channels.
            stdin: See `SandboxBackend.exec`.
            timeout: See `SandboxBackend.exec`.
            output_limit: See `SandboxBackend.exec`.
            merge_stderr: See `SandboxBackend.exec`.
            stop_fd: See `SandboxBackend.exec`.
        """
        channels: dict[int, Channel] = {} if merge_stderr else {2: "w"}
        effective_timeout = self.limits.seconds(timeout)
        effective_limit = self.limits.output if output_limit is None else output_limit
        try:
            process = self._start(program, channels, merge_stderr, stdin)
        except _NoSuchProgramError as error:
            error_output = os.fsencode(f"{error}\n")
            stdout, stderr = (error_output, b"") if merge_stderr else (b"", error_output)
            return Completed(error.exit_code, stdout, stderr)
        try:
            kill = partial(self._kill_started, process.pid)
            result = run_to_end(process, effective_timeout, effective_limit, kill, stop_fd)
        finally:
            process.close()
        if process.lost or self._end is not None:
            # The end of the sandbox proves nothing about the program. If the result were the exit
            # code of a killed program, the reward would be 0. Therefore an error is raised.
            raise self._end_error(SandboxClosedError("the sandbox died while a program ran in it"))
        return result

    def popen(
        self,
        argv: Sequence[str | bytes],
        *,
        channels: Mapping[int, Channel],
        merge_stderr: bool = True,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> NativeProcess:
        """Start a program and keep its streams open.

        `SandboxBackend.popen` describes the arguments.
        """
        return self._start(self._program(argv, cwd, env, user), channels, merge_stderr)

    def _program(
        self,
        argv: Sequence[str | bytes],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
    ) -> dict[str, Any]:
        """Return the request for a program, without its channels."""
        working_directory = str(PurePosixPath(self.image.cwd, cwd or ""))
        variables = {**self.env, "PWD": working_directory, **(env or {})}
        request = {
            "op": "spawn",
            "argv": _check_arguments(argv),
            "cwd": working_directory,
            "env": variables,
        }
        return {**request, "user": self._resolve_user(user), "track": False}

    def _resolve_user(self, user: str | None) -> str | None:
        """Return a user as ``uid:gid``, the format of requests; None: the image's user."""
        if user is None:
            return None
        resolved_user = look_up_user(user, self._slot.ids, self._users)
        return f"{resolved_user.uid}:{resolved_user.gid}"

    def _users(self) -> str:
        """Return the text of the sandbox's ``/etc/passwd``, which an agent may have rewritten."""
        with suppress(OSError, OutputLimitError):
            return self.read_file("/etc/passwd", MIB).decode(errors="replace")
        return ""

    def _start(
        self,
        program: dict[str, Any],
        channels: Mapping[int, Channel],
        merge_stderr: bool,
        stdin: bytes | None = None,
    ) -> NativeProcess:
        all_channels: dict[int, Channel] = {**channels, 1: "w"}
        caller_ends: dict[int, int] = {}
        program_ends: dict[int, int] = {}
        if max(all_channels) > _HIGHEST_CHANNEL:
            raise UsageError(f"channel {max(all_channels)} is above {_HIGHEST_CHANNEL}")
        if stdin is None and not program["track"]:
            prepared_request = {
                **program,
                "channels": [[*channel] for channel in all_channels.items()],
            }
            if (
                waiting_program := self._take_first(
                    {**prepared_request, "merge_stderr": merge_stderr}
                )
            ) is not None:
                *channel_fds, exit_read = waiting_program.fds
                caller_ends = dict(zip(all_channels, channel_fds, strict=True))
                return NativeProcess(waiting_program.pid, caller_ends, exit_read, self._signal)
        with _descriptors():
            exit_read, exit_write = exit_pipe()
        try:
            with _descriptors():
                caller_ends, program_ends = open_channels(all_channels.items(), merge_stderr)
                if stdin is not None:
                    program_ends[0] = memory_file(stdin)
            request = {**program, "numbers": list(program_ends)}
            reply, _ = self._request(request, [*program_ends.values(), exit_write])
        except BaseException as error:
            close_all(*caller_ends.values(), exit_read)
            if isinstance(error, _ExecError):
                raise _NoSuchProgramError(program["argv"][0], error) from error
            raise
        finally:
            close_all(*program_ends.values(), exit_write)
        return NativeProcess(reply["pid"], caller_ends, exit_read, self._signal)

    def _take_first(self, program: dict[str, Any]) -> PreparedProgram | None:
        """Return the prepared program if this slot's first request is for the same program.

        Args:
            program: The request for a program, with its channels.
        """
        with self._lock:
            if self._was_requested or self._end is not None:
                return None
            self._resume()
            self._was_requested = True
            self.on_first_program(program)
            return self._slot.take(program)

    def worker(self, module: str) -> NativeWorker:
        """Start a process that runs a preloaded module of InterCode in the sandbox."""
        if module not in self._slot.workers:
            raise LookupError(
                f"the worker {module!r} was not preloaded: pass it to the provider as preload="
            )
        caller_socket, worker_socket = socket.socketpair()
        error_read, error_write = error_pipe()
        exit_read, exit_write = exit_pipe()
        try:
            descriptors = [worker_socket.fileno(), error_write, exit_write]
            reply, _ = self._request({"op": "worker", "module": module}, descriptors)
        except BaseException:
            caller_socket.close()
            close_all(error_read, exit_read)
            raise
        finally:
            worker_socket.close()
            close_all(error_write, exit_write)
        return NativeWorker(reply["pid"], caller_socket, error_read, exit_read, self._signal)

    def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes except those in `keep`; return the number of killed processes."""
        if self.resting:
            return 0
        reply, _ = self._request({"op": "kill", "keep": list(keep)})
        return int(reply["killed"])

    def processes(self) -> list[int]:
        """Return the pids of all running processes but process 1, as numbered in the sandbox."""
        if self.resting:
            return []
        reply, _ = self._request({"op": "processes"})
        return list(reply["pids"])

    def programs(self) -> list[Program]:
        """List the running programs except process 1, with their open descriptors."""
        if self.resting:
            return []
        reply, _ = self._request({"op": "programs"})
        return [
            Program(
                pid, name, {int(fd_number): target for fd_number, target in targets_by_fd.items()}
            )
            for pid, name, targets_by_fd in reply["programs"]
        ]

    def memory_peak(self) -> int | None:
        """Return the highest use of memory so far, in bytes; None without a cgroup."""
        reply, _ = self._request({"op": "memory"})
        peak: int | None = reply["peak"]
        return peak

    def free_space(self) -> FreeSpace:
        """Return the free space of the root file system."""
        free_counts, _ = self._request({"op": "space"})
        free_files = free_counts["free_files"] if free_counts["files"] else None
        return FreeSpace(free_counts["blocks"] * free_counts["block_bytes"], free_files)

    def _kill_started(self, pid: int) -> None:
        self._request({"op": "kill_started", "pid": pid})

    def _signal(self, pid: int, signal_number: int) -> None:
        if self._end is None:
            self._request({"op": "signal", "pid": pid, "number": signal_number})

    # -- network ---------------------------------------------------------------------------------

    def forward(
        self,
        port: int,
        to: str | Handler,
        *,
        connections: int = CONNECTIONS,
        idle: float = IDLE_SECONDS,
    ) -> Forward:
        """Forward a port of the loopback to the host: see `SupportsForwarding.forward`."""
        port, serve = checked_port(port), handler(to, idle)
        _, fds = self._request({"op": "socket"})
        forward = Forward(adopt_socket(fds), port, serve, connections)
        self._forwards.append(forward)
        return forward

    def admit(self, policy: NetworkPolicy, resolve: Resolve = socket.getaddrinfo) -> None:
        """Let the sandbox's programs reach the hosts and endpoints of a policy.

        Access that the sandbox already has is not taken away.

        Args:
            policy: The policy.
            resolve: A function that resolves host names, on this machine.

        Raises:
            SandboxError: The sandbox failed, and was closed.
        """
        if not (policy.endpoints or policy.hosts):
            return
        self.gate = NetworkGate(policy, resolve)
        if policy.hosts:
            self.env = {**self.env, **proxy_variables(free_port(policy))}
        try:
            for port, serve in handlers(self.gate, proxy.serve).items():
                self.forward(port, serve)
        except BaseException:
            self.close()
            raise

    def terminal(self) -> int:
        """Create a terminal: see `SupportsTerminals.terminal`."""
        _, (master,) = self._request({"op": "terminal"})
        return master

    # -- files -----------------------------------------------------------------------------------

    def read_file(self, path: str | PurePosixPath, limit: int = 100 * MIB) -> bytes:
        """Return the content of a regular file."""
        _, fds = self._request({"op": "open", "path": self._absolute(path)})
        with open(fds[0], "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OutputLimitError(f"{path} holds more than {limit} bytes")
        return data

    def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file, and the missing directories above it.

        Raises:
            UsageError: `mode` has bits that no file has.
            OSError: The file cannot be written: see `SandboxBackend.write_file`.
        """
        if mode & ~_MODES:
            raise UsageError(f"a file cannot have the mode {mode:#o}")
        request = {"op": "create", "path": self._absolute(path), "mode": mode}
        _, fds = self._request(request)
        with open(fds[0], "wb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

    def _absolute(self, path: str | PurePosixPath) -> str:
        absolute_path = str(PurePosixPath(self.image.cwd, path))
        if "\0" in absolute_path:
            raise ActionError("a path cannot hold a NUL")
        return absolute_path

    def changes(self) -> list[Change]:
        """List all differences from the image, sorted by path."""
        request = {"op": "changes", "timeout": _FILES_SECONDS}
        reply, _ = self._wait_until_still(
            lambda: self._request(request, seconds=2 * _FILES_SECONDS)
        )
        return [Change(*entry) for entry in sorted(reply["changes"])]

    def snapshot(self) -> NativeSnapshot:
        """Save the present file system as an image, by a copy of its changes."""
        return NativeSnapshot(self.files.with_image(self._copy_layer()))

    def freeze(self) -> NativeSnapshot:
        """Save the present files, and end all processes: see `SupportsFork.freeze`.

        The next request starts a new slot with the same files.
        """
        if not self.resting:
            self.kill()
            self.files = self._save_files()
            self._suspend()
        return NativeSnapshot(self.files)

    def save_copy(self) -> NativeSnapshot:
        """Save the present files by a copy: see `SupportsFork.save_copy`."""
        return NativeSnapshot(self.files.with_copy(self._copy_layer()))

    def _save_files(self) -> SandboxStartFiles:
        """Save the current files; return the saved files, from which any sandbox can start.

        The caller has killed all processes but process 1. The files are frozen if the kernel
        permits it, and otherwise copied. If `SandboxStartFiles.is_crowded` is true, a copy is
        preferred, unless the files are too large for a copy.

        Raises:
            SandboxError: The files exceed the quota of frozen layers, or cannot be copied.
        """
        if self.files.is_crowded(self.limits):
            with suppress(OutputLimitError):  # files that are too large for a copy may be frozen
                return self.files.with_copy(self._copy_layer())
        if frozen_layer := self._slot.freeze():
            return self.files.with_frozen_layer(frozen_layer)
        return self.files.with_copy(self._copy_layer())

    def _copy_layer(self) -> SnapshotLayer:
        """Return a new layer on disk with all differences from the image."""
        return self._wait_until_still(lambda: SnapshotLayer.write(self.archive, self._slot.forget))

    def _suspend(self) -> None:
        """End process 1, the only process left. The next request starts a new slot."""
        with self._lock:
            self.resting, self._was_requested = True, False
            if self._process is None:
                self._slot.end()
            else:
                self._process.kill()

    def _continue(self, skip_program: bool) -> SandboxSlot:
        """Start the slot in which the sandbox continues.

        Args:
            skip_program: Whether to start the slot without a prepared program.
        """
        return self.begin(self.files, skip_program)

    def _resume(self) -> None:
        """Start a slot for a resting sandbox.

        Raises:
            SandboxError: The slot could not be started, or another thread has closed the sandbox.
        """
        if self.resting:
            self._move()
            self.resting = False
            # Another thread may be in `close`, and wait for the lock to end the new slot.
            if self._end is not None:
                raise self._end_error()

    def _move(self, skip_program: bool = False) -> None:
        """Replace the slot by a new one with the same files, and move the forwards to it.

        Args:
            skip_program: Whether to start the new slot without a prepared program.

        Raises:
            SandboxError: The slot could not be started, or has ended at once.
        """
        self._slot.end()
        self._slot = self._continue(skip_program)
        self._slot.control.settimeout(_ANSWER_SECONDS)
        try:
            for forward in self._forwards:
                if not forward.closed:
                    self._slot.send({"op": "socket"})
                    forward.move(adopt_socket(wire.receive(self._slot.control)[1]))
        except (EOFError, OSError) as error:
            raise self._end_error(SandboxClosedError(f"the sandbox died: {error}")) from error

    def _begin_alone(self) -> None:
        """Replace the slot if it has a prepared program that no request has taken.

        The agent must not notice the preparation. Otherwise the agent would see a running program,
        and later programs would have other pids than in a slot without a prepared program.

        Raises:
            SandboxError: The slot could not be started.
        """
        if not self._was_requested:
            self._was_requested = True
            self.on_first_program(None)
        if self._slot.prepared_program is not None:
            # Requests of other threads' sandboxes decide whether a new slot has a prepared program.
            # Without `alone` the new slot could have one again. The next request would then replace
            # that slot, and lose the effects of this request.
            self._move(skip_program=True)

    def at_rest(self, look: Callable[[], ResultT]) -> ResultT:
        """Return the result of `look`, called while no program changes a file.

        Process 1 stops all programs before the call, and continues them afterwards.
        """

        def look_while_stopped() -> ResultT:
            self._request({"op": "stop"})
            try:
                return look()
            finally:
                if self._end is None:
                    self._request({"op": "go_on"})

        return self._wait_until_still(look_while_stopped)

    def _wait_until_still(self, look: Callable[[], ResultT]) -> ResultT:
        """Return the result of `look`, and repeat the call if programs cannot be stopped meanwhile.

        In that case `look` raises `_UnstoppedProcessesError`, and process 1 has killed these
        programs. After the second such error all programs are killed.
        """
        with suppress(_UnstoppedProcessesError):
            return look()
        with suppress(_UnstoppedProcessesError):
            return look()
        self.kill()
        return look()

    def archive(self, descriptor: int) -> None:
        """Stream all differences from the image into a descriptor.

        The module `intercode_sandbox.native.change_stream` describes the format.
        """
        request = {"op": "archive", "timeout": _FILES_SECONDS}
        self._request(request, [descriptor], seconds=2 * _FILES_SECONDS)

    @property
    def _control(self) -> socket.socket:
        return self._slot.control

    @property
    def _process(self) -> InitProcess | None:
        return self._slot.process

    # -- the wire --------------------------------------------------------------------------------

    def _request(
        self, message: dict[str, Any], fds: Sequence[int] = (), seconds: float = _ANSWER_SECONDS
    ) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            if self._end is not None:
                raise self._end_error()
            self._resume()
            self._begin_alone()
            if seconds != _ANSWER_SECONDS:
                self._control.settimeout(seconds)
            is_answered = False
            try:
                self._slot.send(message, fds)
                reply, descriptors = wire.receive(self._control)
                if "failed" in reply:
                    raise OSError(reply["failed"])
                if seconds != _ANSWER_SECONDS:
                    self._control.settimeout(_ANSWER_SECONDS)
                is_answered = True
            except (EOFError, OSError) as error:
                if is_callers(error):
                    raise
                if not isinstance(error, TimeoutError):
                    closed_error = SandboxClosedError(f"the sandbox died: {error}")
                    raise self._end_error(closed_error) from error
                timeout_message = (
                    f"the sandbox did not answer {message['op']!r} within {seconds:.0f} s"
                )
                raise self._end_error(SandboxTimeoutError(timeout_message)) from error
            finally:
                if not is_answered and self._end is None:
                    # The next request must not receive the reply to this request. So even Ctrl-C
                    # during a request ends the sandbox.
                    self._end = SandboxClosedError("the sandbox's last reply was not read")
        if "errno" in reply:
            raise _error(reply, message["op"])
        return reply, descriptors

    def _end_error(self, cause: SandboxError | None = None) -> SandboxError:
        """Return the error that every request raises after the sandbox's end.

        The class of the error shows whether code in the sandbox has caused the end.

        Args:
            cause: The error of this request, if no request has failed before.
        """
        if self._end is None and cause is not None:
            is_timeout = isinstance(cause, SandboxTimeoutError)
            has_inside_cause = was_caused_inside(self._evidence(is_timeout))
            # If another thread has closed the sandbox meanwhile, `close` was the cause.
            if self._end is None:
                self._end = (
                    SandboxEndedError(f"{cause}, caused by its own processes")
                    if has_inside_cause
                    else cause
                )
        assert self._end is not None
        return type(self._end)(*self._end.args)

    def _evidence(self, is_timeout: bool) -> FailureEvidence:
        """Return evidence about the sandbox's end, or about its failure to answer.

        Args:
            is_timeout: Whether the sandbox did not answer in time. False: its socket was closed.
        """
        if (process := self._process) is not None:
            if is_timeout and process.stopped:
                return FailureEvidence(is_keeper_alive=True, was_killed_outside=True)
            if not is_timeout and not process.wait(_ENDED_SECONDS):
                # Process 1 still runs, and only its socket was lost. The cause counts as outside.
                return FailureEvidence(is_keeper_alive=False)
        return self._keeper_evidence(is_timeout)

    def _keeper_evidence(self, is_timeout: bool) -> FailureEvidence:
        """Return the evidence of the process that runs this sandbox: the spawner, or the engine.

        Args:
            is_timeout: See `_evidence`.
        """
        return (
            FailureEvidence(is_keeper_alive=False)
            if self._process is None
            else self._process.evidence()
        )

    def kill_all(self) -> None:
        """Kill all processes of the sandbox, without waiting for their end.

        A provider that closes many sandboxes kills all of them first. Each `close` then waits less.
        """
        self._end = self._end or SandboxClosedError("the sandbox is closed")
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End all processes of the sandbox and free its resources.

        When the call returns, all processes of the sandbox have ended. The exception is a kernel
        that needs more than `END_SECONDS` to end them. Then the spawner keeps the sandbox's ids,
        cgroup and memory until their end.
        """
        # These lines do not take the lock, which another thread holds while it waits for a reply.
        self.kill_all()
        self._on_close(self)
        for forward in self._forwards:
            forward.close()
        with suppress(OSError):  # the socket is closed already, or process 1 has ended first
            self._control.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._slot.end()
        self.files = SandboxStartFiles(self.image)

    def disown(self) -> None:
        """Close the inherited descriptors in a fork of this process: see `SupportsDisown`."""
        self._end = SandboxClosedError(
            "this sandbox belongs to the parent of this forked process: start another one here"
        )
        self._lock = threading.Lock()
        self._control.close()
        if self._process is not None:
            self._process.disown()


def _hang_up(forwards: list[Forward]) -> None:
    for forward in forwards:
        forward.hang_up()


@contextmanager
def _descriptors() -> Iterator[None]:
    """Convert an error at the opening of descriptors to a `SandboxError`.

    If this process may open no further descriptor, the program is not at fault.
    """
    try:
        yield
    except OSError as error:
        raise SandboxError(f"no descriptors are left for a program's streams: {error}") from error


class _UnstoppedProcessesError(CausedInsideError):
    """Programs that continued to run, or ended, while process 1 stopped them; they were killed."""


class _ExecError(OSError):
    """An error of a system call by which process 1 forks or executes a program."""


class _NoSuchProgramError(FileNotFoundError):
    """A program that cannot be executed. The exit code is 127 or 126, like that of a shell."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(error.errno, error.strerror, program)
        self.exit_code = 127 if error.errno == errno.ENOENT else 126

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def _error(reply: dict[str, Any], op: str) -> Exception:
    """Return the exception for an error reply of process 1.

    Args:
        reply: The reply.
        op: The name of the request.
    """
    error_number, message = reply["errno"], reply["error"] or os.strerror(reply["errno"])
    if reply.get("kind") == "RestlessError":
        return _UnstoppedProcessesError(message)
    if error_number in (errno.ETIMEDOUT, errno.EOVERFLOW):
        return OutputLimitError(message)
    if reply.get("kind") == "ExecError":
        return _ExecError(error_number, message)
    # EPERM without a path means that a rule of the machine, such as a seccomp filter, has refused a
    # system call of process 1 itself.
    if error_number in _MACHINE_ERRORS or (error_number == errno.EPERM and not reply["path"]):
        return SandboxError(f"the sandbox failed at {op!r}: {message}")
    if error_number not in _FILE_ERRORS:
        return CausedInsideError(f"the sandbox failed at {op!r}: {message}")
    return OSError(error_number, message, reply["path"] or None)


def _check_arguments(argv: Sequence[str | bytes]) -> list[str]:
    arguments = [os.fsdecode(argument) for argument in argv]
    if not arguments or not arguments[0]:
        raise ActionError("argv is empty: name a program")
    if any("\0" in argument for argument in arguments):
        raise ActionError("an argument contains a NUL")
    return arguments
