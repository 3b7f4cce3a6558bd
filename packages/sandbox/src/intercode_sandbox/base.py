"""Interfaces of sandboxes: the isolated file systems in which an agent's code runs.

A `Provider` starts sandboxes. A `SandboxBackend` runs commands, reads and writes files, lists the
changed paths, and can be saved. Code that uses a sandbox by these interfaces only works with each
provider: the native one (the default), Docker, or a user's own. The conformance suite
(``packages/sandbox/tests/sandbox/``) is the specification.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from intercode_sandbox.errors import UsageError
from intercode_sandbox.network import Network
from intercode_sandbox.spelling_suggestions import hint_text
from intercode_sandbox.units import LIMITS, LONGEST_SECONDS, MIB

ResultT = TypeVar("ResultT")
ChangeKind = Literal["added", "modified", "deleted"]
FileType = Literal["file", "dir", "symlink", "fifo", "socket", "device"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox. The defaults suit short interactive tasks.

    A size or a time may be a text, such as ``"512M"`` or ``"30s"``.

    Raises:
        UsageError: A value has the wrong type, or is too small for any sandbox, or a time is too
            long.
    """

    timeout: float = 10.0
    """Seconds of wall time for one action or command."""
    memory: int = 1024 * MIB
    """Bytes of memory: of all processes together if cgroups permit it, otherwise of each one."""
    processes: int = 256
    """Processes and threads alive at once."""
    disk: int = 1024 * MIB
    """Bytes that may be written to the file system; native sandboxes keep them in memory."""
    files: int = 200_000
    """Files and directories that may be created."""
    output: int = 1 * MIB
    """Bytes retained of each output stream of an action or command: its head and its tail."""
    open_files: int = 1024
    """File descriptors for each process; at least 512."""
    capabilities: tuple[str, ...] = ()
    """Capabilities of root, over the sandbox's own files, users, processes and ports only: names of
    `intercode_sandbox.linux_capabilities.CAPABILITIES`, as a list or a comma-separated text."""
    debugger: bool = False
    """Whether a program may trace another one and change its memory, like gdb and strace. Code
    under test could then control its tests."""
    private: bool = False
    """Whether `SupportsPrivateExec.exec_private` can run programs that are hidden from all others.
    Each user id of the sandbox then sees its own processes only, and no program can replace the
    dynamic loader."""
    overrides: frozenset[str] | None = field(default=None, compare=False, repr=False)
    """Names of the limits that a caller set explicitly. A task may lower these limits, but not
    raise them. If the constructor gets None: the limits that differ from their defaults."""

    def __post_init__(self) -> None:
        for name, parse_limit in LIMITS.items():
            try:
                object.__setattr__(self, name, parse_limit(getattr(self, name)))
            except ValueError as error:
                raise UsageError(f"limit {name!r} {error}") from None
        if self.overrides is None:
            changed_names = (
                name for name, value in self.to_dict().items() if value != _DEFAULTS[name]
            )
            object.__setattr__(self, "overrides", frozenset(changed_names))

    @classmethod
    def merge(cls, limits: Limits | Mapping[str, Any] | None, **changes: Any) -> Limits:
        """Return limits from `Limits` or a mapping of names to values, with `changes` applied.

        All limits that the mapping or `changes` names become part of `overrides`.

        Raises:
            UsageError: A limit does not exist, or a value is invalid.
        """
        if not isinstance(limits, (cls, Mapping, type(None))):
            raise UsageError(f"limits must be Limits, or names with values, not {limits!r}")
        base = limits if isinstance(limits, Limits) else cls()
        values = {**(limits if isinstance(limits, Mapping) else {}), **changes}
        for name in values:
            if name not in _DEFAULTS:
                raise UsageError(f"there is no limit {name!r}{hint_text(str(name), _DEFAULTS)}")
        overrides = (base.overrides or frozenset()).union(values)
        return replace(base, **values, overrides=overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as a mapping of names to values."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    def seconds(self, timeout: float | None) -> float:
        """Return a time limit in seconds: `timeout`, or the field of that name if it is None.

        Raises:
            UsageError: The number of seconds exceeds `LONGEST_SECONDS`, the longest possible wait.
        """
        seconds = self.timeout if timeout is None else timeout
        if not seconds <= LONGEST_SECONDS:
            limit_text = f"at most {LONGEST_SECONDS:.0f} seconds"
            raise UsageError(f"a time limit must be {limit_text}, not {seconds}")
        return seconds


_DEFAULTS = {limit.name: limit.default for limit in fields(Limits) if limit.name != "overrides"}


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command. The output is bytes, because a sandbox never guesses an encoding."""

    exit_code: int
    """The program's exit code; 128 + N if signal N killed the program, as in a shell."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """Whether the command reached the time limit; its output before the limit is retained."""
    truncated: bool = False
    """Whether the output exceeded its limit. A line with the number of cut bytes then replaces the
    middle of the output."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A path in a sandbox that differs from the image; the times of files are not compared."""

    path: str
    """Absolute path, decoded with ``surrogateescape`` to preserve every file name."""
    kind: ChangeKind
    type: FileType
    """The present type of the path; for a deleted path, its type in the image."""
    mode: int = 0
    """Permission bits (0 for a deleted path)."""
    uid: int = 0
    gid: int = 0
    size: int = 0
    """Bytes of a regular file's content, or of a symlink's target; 0 for other types."""
    digest: str = ""
    """Hexadecimal digest: equal for regular files with equal content, and for symlinks with equal
    targets; empty for other types. The digest of a file is BLAKE2b-128 over the file's size and its
    non-zero pages, each preceded by its position. So a hole in a file costs no time, and no other
    program computes the same value."""
    content_changed: bool = True
    """False if only the mode or the owner of a modified path has changed."""
    links: int = field(default=0, compare=False)
    """Number of all names (hard links) of a regular file, whether or not they have changed; 0:
    unknown."""


@runtime_checkable
class Snapshot(Protocol):
    """The saved file system of a sandbox. ``provider.start(snapshot)`` starts a sandbox from it."""

    @property
    def name(self) -> str:
        """The snapshot's name for messages."""

    def delete(self) -> None:
        """Free the storage as soon as no sandbox started from the snapshot runs. Idempotent."""


class Process(Protocol):
    """A running program in a sandbox, with streams that the caller reads and writes.

    Interpreters use such programs. The caller's ends of the streams are raw descriptors.
    """

    @property
    def fds(self) -> Mapping[int, int]:
        """The program's descriptor → the caller's descriptor, for each requested channel."""

    @property
    def exit_fd(self) -> int:
        """A descriptor of the caller that becomes readable as soon as the process has ended."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def signal(self, number: int) -> None:
        """Send a signal to the process."""

    def close(self) -> None:
        """Kill the process if it runs, and close the caller's ends of its streams. Idempotent."""


class Worker(Process, Protocol):
    """A process in a sandbox that runs a preloaded Python module.

    Interpreters use workers, because a worker needs no Python in the image.
    """

    pid: int
    """Process id inside the sandbox."""

    @property
    def socket(self) -> socket.socket:
        """The caller's end of the worker's stream socket.

        Data from this socket is as untrusted as the code in the sandbox.
        """

    def errors(self) -> str:
        """Return the worker's error output, for a diagnosis."""


@runtime_checkable
class SandboxBackend(Protocol):
    """A started sandbox. Only `close()` is thread-safe: use one sandbox per thread."""

    limits: Limits
    env: Mapping[str, str]
    """The environment variables that the sandbox's programs start with."""
    cwd: str
    """The working directory that the sandbox's programs start in."""

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

        The call does not wait for children of the program that still hold its output open. A
        program that cannot be executed has exit code 127 (not found) or 126, as in a shell.

        Args:
            argv: The program and its arguments; the image's ``PATH`` is searched for the program.
            stdin: The whole input; None is ``/dev/null``.
            cwd: Absolute, or relative to the image's working directory (the default).
            env: Environment variables added to the image's clean environment.
            user: A user's name in the sandbox, or ``uid`` / ``uid:gid``; default: the image's.
            timeout: Seconds after which the program and all its descendants are killed; default:
                ``limits.timeout``.
            output_limit: Bytes retained of each stream; default: ``limits.output``.
            merge_stderr: Whether the result's stdout has both streams, in the order of the writes.
            stop: A descriptor of the caller. As soon as another thread makes it readable, the
                program and all its descendants are killed, as at the time limit.

        Raises:
            ActionError: `argv` is empty or holds a NUL.
            FileNotFoundError, NotADirectoryError, PermissionError: `cwd` cannot be entered.
            LookupError: The user does not exist.
            SandboxError: The sandbox failed.
        """

    def popen(
        self,
        argv: Sequence[str | bytes],
        *,
        channels: Mapping[int, Literal["r", "w", "text"]],
        merge_stderr: bool = True,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Start a program and keep its streams open.

        Args:
            argv: See `exec`.
            channels: The program's descriptor → its kind. Kind ``"r"`` is a pipe that the program
                reads, and ``"w"`` a pipe that the program writes. Kind ``"text"`` is a memory file.
                The caller rewrites the memory file, and the program opens it again each time as
                ``/proc/self/fd/N``. Descriptor 0 defaults to ``/dev/null``; 1 is always ``"w"``.
            merge_stderr: Whether descriptor 2 is the same stream as 1. If False, `channels` must
                name descriptor 2 to make it readable.
            cwd: See `exec`.
            env: See `exec`.
            user: See `exec`.

        Raises:
            ActionError, LookupError, SandboxError: See `exec`.
            OSError: The program cannot be executed, or `cwd` cannot be entered.
            UsageError: A descriptor in `channels` is too high.
        """

    def worker(self, module: str) -> Worker:
        """Start a process that runs ``main(socket)`` of a preloaded Python module.

        The worker needs no file of the image. Its privileges are those of any program in the
        sandbox. The module must import all of its dependencies during the provider's preload,
        because the worker sees only the sandbox's files.

        Raises:
            LookupError: The module was not preloaded.
            SandboxError: The sandbox failed.
        """

    def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes of the sandbox but process 1, and return the number of killed ones.

        The kernel kills the processes all at once: not even a fork bomb outruns the call.

        Args:
            keep: The pids of processes to spare, as numbered in the sandbox.
        """

    def processes(self) -> list[int]:
        """Return the pids of all running processes but process 1, as numbered in the sandbox."""

    def read_file(self, path: str | PurePosixPath, limit: int = 100 * MIB) -> bytes:
        """Return the content of a regular file.

        The caller's process reads the file. Therefore a file of /proc has the content that
        processes outside the sandbox see.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: As named.
            OutputLimitError: The file holds more than `limit` bytes.
        """

    def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file, and the missing directories above it, as the image's user.

        Raises:
            UsageError: `mode` has bits outside ``0o7777``.
            IsADirectoryError, PermissionError: As named.
            OSError: The write failed, for instance for lack of space.
        """

    def changes(self) -> list[Change]:
        """List all differences from the sandbox's original image or snapshot, sorted by path.

        The list is exact. In native sandboxes the cost is proportional to the number of changes.

        Raises:
            OutputLimitError: The comparison takes too long, or finds too many changes.
            SandboxError: The sandbox failed.
        """

    def at_rest(self, look: Callable[[], ResultT]) -> ResultT:
        """Return the result of `look`, called while no program changes a file: a consistent view.

        Args:
            look: A function that calls `changes`, `snapshot`, or both. If a program cannot be
                stopped meanwhile, the sandbox kills that program and calls the function again.

        Raises:
            SandboxError: See `changes` and `snapshot`.
        """

    def snapshot(self) -> Snapshot:
        """Save the present file system. Processes and their state are not saved.

        Raises:
            SandboxError: The files cannot be saved.
        """

    def close(self) -> None:
        """End all processes and free the resources. Idempotent, safe from any thread."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs in a sandbox."""

    pid: int
    """Process id inside the sandbox."""
    name: str
    """The kernel's name of the program, at most 15 bytes. A program can change its name."""
    descriptors: Mapping[int, str]
    """Descriptor → its target, as in ``/proc/PID/fd``. The mapping has the program's first 256
    descriptors; the targets of all programs together have at most 4 MiB."""


@runtime_checkable
class SupportsFork(Protocol):
    """Optional ability of a sandbox: to be forked with its files."""

    def freeze(self) -> Snapshot:
        """Save the present files. A native sandbox does not copy them, if the kernel permits it.

        The call ends all processes of the sandbox. The sandbox keeps its files: its next call
        starts fresh namespaces, or a fresh container, with them. `changes()` of this sandbox, and
        of sandboxes started from the snapshot, lists differences from this sandbox's original
        image.

        Raises:
            SandboxError: The files cannot be saved.
        """

    def save_copy(self) -> Snapshot:
        """Save the files like `freeze`, but copy them; the sandbox's processes continue to run."""

    @property
    def start_sibling(self) -> Callable[[str | Snapshot], SandboxBackend]:
        """A function that starts another sandbox from an image or snapshot.

        The other sandbox has the same limits and network as this sandbox.
        """

    def programs(self) -> list[Program]:
        """List the running programs except process 1, with their open descriptors."""


@runtime_checkable
class SupportsTerminals(Protocol):
    """Optional ability of a sandbox: to run programs that need a terminal."""

    def terminal(self) -> int:
        """Create a terminal that the image's user owns.

        Returns:
            A non-blocking descriptor of the terminal's master end; the caller closes it. The slave
            end is ``/dev/pts/N`` in the sandbox. The ioctl ``TIOCGPTN`` of the descriptor returns
            the number N.

        Raises:
            OSError: The sandbox has reached its maximum number of terminals.
            SandboxError: The sandbox failed.
        """


@runtime_checkable
class SupportsPrivateExec(Protocol):
    """Optional ability of a sandbox: to run programs that no other program can inspect."""

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
        """Run a program like `exec`, in a sandbox with ``Limits(private=True)``.

        No other program of the sandbox can inspect the program or its dynamically linked children,
        even as root or as the same user. Hidden are arguments, environment variables, memory and
        open files.

        Args:
            argv: See `exec`.
            stdin: See `exec`.
            cwd: See `exec`.
            env: See `exec`.
            timeout: See `exec`.
            merge_stderr: See `exec`.
        """


@runtime_checkable
class SupportsMemoryPeak(Protocol):
    """Optional ability of a sandbox: to measure the highest use of its memory so far."""

    def memory_peak(self) -> int | None:
        """Return the highest use of memory of the whole sandbox so far, in bytes.

        The sandbox's files count, because they lie in memory. None: this machine cannot measure
        the memory of a sandbox.
        """


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Free space of a sandbox's file system."""

    bytes: int
    files: int | None
    """The number of files that can be created; None: the file system does not limit it."""


@runtime_checkable
class SupportsFreeSpace(Protocol):
    """Optional ability of a sandbox: to measure free space without a program of the image."""

    def free_space(self) -> FreeSpace:
        """Return the free space of the root file system.

        Raises:
            SandboxError: The sandbox failed.
        """


class Provider(Protocol):
    """A factory of sandboxes of one kind."""

    def start(
        self,
        image: str | Snapshot = "host",
        limits: Limits | None = None,
        network: Network = False,
    ) -> SandboxBackend:
        """Start a fresh sandbox.

        Args:
            image: The image's name, or a snapshot.
            limits: Resource limits; None is the defaults.
            network: Reachable hosts: see `intercode_sandbox.network.Network`.

        Raises:
            ImageError: The image cannot be found or built.
            SandboxUnavailableError: This machine does not permit such sandboxes.
            UsageError: `network` is invalid.
        """

    def digest(self, image: str | Snapshot) -> str:
        """Return a digest of the image's content, for caches and for a run's record."""

    def close(self) -> None:
        """Close all sandboxes of this provider. Idempotent."""


@runtime_checkable
class SupportsCapabilityCheck(Protocol):
    """Optional ability of a provider: to refuse capabilities that it cannot grant."""

    def capability_problem(self, capabilities: Sequence[str], network: Network) -> str:
        """Return the reason why sandboxes cannot have some of these capabilities, and the fix.

        Args:
            capabilities: Names of capabilities.
            network: Hosts that the sandboxes reach.

        Returns:
            A sentence; empty if the sandboxes can have them all.
        """


@dataclass(frozen=True, slots=True)
class FailureEvidence:
    """Evidence, gathered on the host, about a sandbox that has ended or does not answer."""

    is_keeper_alive: bool
    """Whether the process that runs the sandbox answers: the spawner, or Docker's engine."""
    was_killed_outside: bool = False
    """Whether a process outside the sandbox has killed or stopped the sandbox."""
    running: bool = False
    """Whether process 1 of the sandbox still runs."""
    exit_code: int | None = None
    """Exit code of process 1; minus N if signal N killed process 1; None: unknown."""
    starved: bool = False
    """Whether the kernel's out-of-memory killer has killed a process of the sandbox."""


def was_caused_inside(evidence: FailureEvidence) -> bool:
    """Return whether an agent's code, which ran in a sandbox, caused the sandbox's end.

    An end caused by an agent's code is a result of that agent. Any other loss of a sandbox is an
    error of the infrastructure, and the episode is tried again. The first matching case decides:

    - The process that runs the sandbox (the spawner, or the engine) does not answer: outside.
    - A process outside the sandbox has killed or stopped the sandbox: outside.
    - Process 1 of the sandbox runs, but does not answer: inside.
    - The exit code of process 1 is unknown: outside.
    - Process 1 has ended, but not by SIGKILL: inside.
    - The kernel has killed a process of the sandbox for lack of memory: inside.
    - Process 1 has ended by SIGKILL for another cause: outside.

    No program in a sandbox can send a signal to the sandbox's process 1. Only a process outside the
    sandbox, or the kernel for lack of memory, can kill process 1.
    """
    if not evidence.is_keeper_alive or evidence.was_killed_outside:
        return False
    if evidence.running:
        return True
    if evidence.exit_code is None:
        return False
    return evidence.exit_code != -signal.SIGKILL or evidence.starved


def cause_of_death(error_output: str) -> str:
    """Return the line of a Python process's error output that names the cause of its end.

    Args:
        error_output: The error output. After a fatal error of Python, a traceback for each thread
            follows the line with the cause. Otherwise the last line has the cause.
    """
    lines = error_output.strip().splitlines() or [""]
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1])


_PARTIAL_CHARACTER_HEAD = re.compile(
    rb"(?:[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
)
"""The first bytes of a UTF-8 character without its last bytes."""
_PARTIAL_CHARACTER_TAIL = re.compile(rb"\A[\x80-\xbf]{1,3}")
"""The last bytes of a UTF-8 character without its first byte."""


@dataclass(slots=True)
class HeadTailBuffer:
    """A buffer that retains the first and the last bytes of a stream, and counts all of its bytes.

    The head has at most half of `limit` bytes, rounded up, and the tail half, rounded down.
    """

    limit: int
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Append a chunk of the stream."""
        self.total += len(data)
        head_space = self.limit // 2 + self.limit % 2 - len(self._head)
        if head_space > 0:
            self._head += data[:head_space]
            data = data[head_space:]
        if data:
            self._tail += data
            # The tail is trimmed only after it has grown to more than twice its final size. So the
            # average time for each byte of a long stream is constant.
            if len(self._tail) > 2 * (self.limit // 2) + 65536:
                self._trim()

    def _trim(self) -> None:
        tail_size = self.limit // 2
        del self._tail[: len(self._tail) - tail_size]

    @property
    def truncated(self) -> bool:
        """Whether bytes are missing from the middle."""
        return self.total > self.limit

    def getvalue(self) -> bytes:
        """Return the stream, or its head and tail around a line with the number of cut bytes."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        self._trim()
        # The cut drops partial characters at its edges, because they would not be valid UTF-8.
        match = _PARTIAL_CHARACTER_HEAD.search(self._head, max(0, len(self._head) - 3))
        head = bytes(self._head[: match.start() if match else None])
        tail = bytes(_PARTIAL_CHARACTER_TAIL.sub(b"", self._tail, count=1))
        cut_byte_count = self.total - len(head) - len(tail)
        return head + b"\n[... %d bytes cut ...]\n" % cut_byte_count + tail
