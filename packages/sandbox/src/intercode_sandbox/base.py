"""The contract of a sandbox: the place where an agent's code runs.

A `Provider` starts sandboxes; a `SandboxBackend` runs commands, reads and writes files, tells what
was changed, and can be saved. Everything above this package knows only these names, so that the
embedded default, Docker, and a reader's own back end are exchangeable; one conformance suite
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
from intercode_sandbox.suggestions import hint_text
from intercode_sandbox.units import LIMITS, LONGEST_SECONDS, MIB

Seen = TypeVar("Seen")
ChangeKind = Literal["added", "modified", "deleted"]
FileType = Literal["file", "dir", "symlink", "fifo", "socket", "device"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox. The defaults suit short interactive tasks.

    A size may be a text, such as ``"512M"``.

    Raises:
        UsageError: A value has the wrong type, or no sandbox can run within it.
    """

    timeout: float = 10.0
    """Seconds of wall time for one action or command."""
    memory: int = 1024 * MIB
    """Bytes of memory for all processes together where cgroups permit, else for each."""
    processes: int = 256
    """Processes and threads alive at once."""
    disk: int = 1024 * MIB
    """Bytes that may be written to the file system (it is kept in memory)."""
    files: int = 200_000
    """Files and directories that may be created."""
    output: int = 1 * MIB
    """Bytes of output kept of one action or command: its head and its tail."""
    open_files: int = 1024
    """File descriptors for each process; at least 512."""
    capabilities: tuple[str, ...] = ()
    """The capabilities that root has, all of them over the sandbox's own files, users, processes
    and ports: names of `intercode_sandbox.capabilities.CAPABILITIES`, also as a text with commas
    between them."""
    debugger: bool = False
    """Whether a program may trace another one and change its memory, as gdb and strace do. Code
    that is under test could then control what tests it."""
    private: bool = False
    """Whether programs of a grader (`SupportsPrivacy`) are hidden from all others. Users then see
    their own processes only, and a program loader cannot be replaced."""
    overrides: frozenset[str] | None = field(default=None, compare=False, repr=False)
    """The names of the limits that a caller set, to whatever value: a task may only lower these.
    None: those that are not at their defaults."""

    def __post_init__(self) -> None:
        for name, read in LIMITS.items():
            try:
                object.__setattr__(self, name, read(getattr(self, name)))
            except ValueError as error:
                raise UsageError(f"limit {name!r} {error}") from None
        if self.overrides is None:
            changed_names = (
                name for name, value in self.to_dict().items() if value != _DEFAULTS[name]
            )
            object.__setattr__(self, "overrides", frozenset(changed_names))

    @classmethod
    def of(cls, limits: Limits | Mapping[str, Any] | None, **changes: Any) -> Limits:
        """Return limits from limits or an object of names and values, with some changed.

        Raises:
            UsageError: There is no such limit, or a value makes no sense.
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
        """Return the limits by their names."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    def seconds(self, timeout: float | None) -> float:
        """Return a time limit: `timeout`, or the one of these limits where that is None.

        Raises:
            UsageError: The number of seconds cannot be waited for.
        """
        seconds = self.timeout if timeout is None else timeout
        if not seconds <= LONGEST_SECONDS:
            limit_text = f"at most {LONGEST_SECONDS:.0f} seconds"
            raise UsageError(f"a time limit must be {limit_text}, not {seconds}")
        return seconds


_DEFAULTS = {limit.name: limit.default for limit in fields(Limits) if limit.name != "overrides"}


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command. Output is bytes: a sandbox never guesses an encoding."""

    exit_code: int
    """As a shell counts: 128 + N for death by signal N."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """The time limit was reached; the output so far is kept."""
    truncated: bool = False
    """The output limit was reached: the middle is missing, and a line in its place says so."""

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One path that differs from the image. Times are not compared."""

    path: str
    """Absolute, decoded with ``surrogateescape`` so that every file name survives."""
    kind: ChangeKind
    type: FileType
    """The type that the path has now; for a deleted path, the type that it had."""
    mode: int = 0
    """Permission bits (0 for a deleted path)."""
    uid: int = 0
    gid: int = 0
    size: int = 0
    """Bytes of a regular file's content, or of a symlink's target."""
    digest: str = ""
    """Hexadecimal; equal for equal content of regular files, and for equal targets of symlinks;
    empty for others. Of a file it is BLAKE2b-128 over its size and those of its pages that are not
    zero, each after its position, so that a hole costs nothing: no other program computes it."""
    content_changed: bool = True
    """False for a modified path of which only mode or owner differ."""
    links: int = field(default=0, compare=False)
    """Names of a regular file, those outside of the changes included; 0: not known."""


@runtime_checkable
class Snapshot(Protocol):
    """The saved file system of a sandbox, to start others from: ``provider.start(snapshot)``."""

    @property
    def name(self) -> str:
        """A name for people."""

    def delete(self) -> None:
        """Free its storage, once nothing that was started from it runs. Idempotent."""


class Process(Protocol):
    """A running program with open streams, for interpreters. All streams are raw descriptors."""

    @property
    def fds(self) -> Mapping[int, int]:
        """Our end of each channel that was asked for: the number inside → our descriptor."""

    @property
    def exit_fd(self) -> int:
        """Readable as soon as the process has ended."""

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def signal(self, number: int) -> None:
        """Send it a signal."""

    def close(self) -> None:
        """Kill it, if it runs, and close our ends. Idempotent."""


class Worker(Process, Protocol):
    """A running module of ours, for interpreters that need no program of the image's."""

    pid: int
    """As seen inside."""

    @property
    def socket(self) -> socket.socket:
        """Our end of its stream socket. What comes from it is as hostile as what runs in it."""

    def errors(self) -> str:
        """Return what the worker wrote to its error output, for a diagnosis."""


@runtime_checkable
class SandboxBackend(Protocol):
    """One started sandbox. Not thread-safe, save for `close()`; use one per worker."""

    limits: Limits
    env: Mapping[str, str]
    """The environment that its programs start with."""
    cwd: str
    """The directory that its programs start in."""

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
        """Run a program to its end. Returns when *it* ends, whatever its children still hold.

        Args:
            argv: The program and its arguments; looked up in the image's ``PATH``.
            stdin: Its whole input; None is ``/dev/null``.
            cwd: Absolute, or relative to the image's working directory (the default).
            env: Added to the image's clean environment.
            user: A user's name in the sandbox, or ``uid`` / ``uid:gid``; default: the image's.
            timeout: Seconds; default: ``limits.timeout``. Then it and all that it started die.
            output_limit: Bytes kept of each stream; default: ``limits.output``.
            merge_stderr: Both streams come as stdout, in the order in which they were written.
            stop: A descriptor of the caller's. As soon as another thread makes it readable, the
                program and all that it started die, as at the time limit.

        Raises:
            ActionError: `argv` is empty or holds a NUL.
            FileNotFoundError, NotADirectoryError, PermissionError: `cwd` cannot be entered.
            LookupError: There is no such user.
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
        """Start a program and keep talking to it.

        Args:
            argv: As in `exec`.
            channels: Descriptor inside → who may do what with it there: ``"r"`` a pipe that the
                program reads, ``"w"`` a pipe that it writes, ``"text"`` a memory file that we
                rewrite and it opens again each time as ``/proc/self/fd/N``. 0 defaults to
                ``/dev/null``; 1 is always ``"w"``.
            merge_stderr: Descriptor 2 is the same stream as 1, in order; else ask for 2 as "w".
            cwd: As in `exec`.
            env: As in `exec`.
            user: As in `exec`.
        """

    def worker(self, module: str) -> Worker:
        """Start a module of ours that the provider has preloaded: its ``main(socket)``.

        It needs nothing of the image and has the rights of a program, no more. It sees the
        sandbox's files only: what it may need to import, it must import when it is loaded.

        Raises:
            LookupError: It was not preloaded.
            SandboxError: The sandbox failed.
        """

    def kill(self, keep: Sequence[int] = ()) -> int:
        """Kill all processes in the sandbox except the pids (as seen inside) in `keep`; how many.

        All at once: not even a fork bomb outruns it.
        """

    def processes(self) -> list[int]:
        """Return the pids (as seen inside) of what runs, except process 1."""

    def read_file(self, path: str | PurePosixPath, limit: int = 100 * MIB) -> bytes:
        """Return the content of a regular file. Files of /proc tell what a reader outside sees.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: As named.
            OutputLimitError: It holds more than `limit` bytes.
        """

    def write_file(self, path: str | PurePosixPath, data: bytes, mode: int = 0o644) -> None:
        """Write a regular file, and the missing directories above it, as the image's user.

        Raises:
            IsADirectoryError, PermissionError: As named.
            OSError: For instance no space left.
        """

    def changes(self) -> list[Change]:
        """List all that differs from the image, sorted by path. Exact; costs O(changes)."""

    def at_rest(self, look: Callable[[], Seen]) -> Seen:
        """Look at several things, as of one moment: meanwhile no program changes any.

        Args:
            look: Asks for `changes`, a `snapshot`, or both. It is called again where a program did
                not stand still, which is ended.

        Raises:
            SandboxError: As `changes` and `snapshot` do.
        """

    def snapshot(self) -> Snapshot:
        """Save the file system as it is now. Processes and their state are not saved."""

    def close(self) -> None:
        """End everything in it and free it. Idempotent, safe from any thread."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs in a sandbox."""

    pid: int
    """As seen inside."""
    name: str
    """The kernel's name for it, of at most 15 bytes, as a program may change it."""
    descriptors: Mapping[int, str]
    """The targets of its descriptors, as in ``/proc/PID/fd``: of the first 256, and of all programs
    together 4 MiB."""


@runtime_checkable
class Freezes(Protocol):
    """An ability that a sandbox may have in addition: to be forked with its files."""

    def freeze(self) -> Snapshot:
        """Save the files as they are, without copying them where the kernel permits it.

        All that runs in the sandbox is ended. It continues with the same files, in a fresh place
        that is started when it is next asked for something. `changes()` of it, and of the sandboxes
        that are started from the snapshot, tell what differs from the image that this one was
        started from.

        Raises:
            SandboxError: The files cannot be saved.
        """

    def save_copy(self) -> Snapshot:
        """Save the files as `freeze` does, by a copy; what runs in the sandbox runs on."""

    @property
    def start_sibling(self) -> Callable[[str | Snapshot], SandboxBackend]:
        """Start a sandbox from an image or such a snapshot, with the same limits and network."""

    def programs(self) -> list[Program]:
        """List what runs in it, except process 1, with its open descriptors."""


@runtime_checkable
class HasTerminals(Protocol):
    """An ability that a sandbox may have in addition: to run programs that need a terminal."""

    def terminal(self) -> int:
        """Make a terminal, of the image's user.

        Returns:
            A descriptor of the master's end, which does not block and is the caller's to close. The
            other end is ``/dev/pts/N`` in the sandbox, with the number of ``TIOCGPTN``.

        Raises:
            OSError: There is none to be had: it has as many as there can be.
            SandboxError: The sandbox failed.
        """


@runtime_checkable
class SupportsPrivacy(Protocol):
    """An ability that a sandbox may have in addition: to run programs that no other can look at."""

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
        """Run a program as `exec` does, in a sandbox with ``Limits(private=True)``.

        Neither its programs nor what these run, if it is linked dynamically, are seen by another
        program, of the same user or of root: no arguments, variables, memory or open files.

        Args:
            argv: As in `exec`.
            stdin: As in `exec`.
            cwd: As in `exec`.
            env: As in `exec`.
            timeout: As in `exec`.
            merge_stderr: As in `exec`.
        """


@runtime_checkable
class CountsMemory(Protocol):
    """An ability that a sandbox may have in addition."""

    def memory_peak(self) -> int | None:
        """Return the most bytes of memory that all of it, files included, has used so far.

        None where this cannot be had.
        """


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Free space of a sandbox's file system."""

    bytes: int
    files: int | None
    """None: the file system has no limit on their number."""


@runtime_checkable
class SupportsFreeSpace(Protocol):
    """An optional ability of a sandbox: to measure free space without a program of the image."""

    def free_space(self) -> FreeSpace:
        """Return the free space of the root file system.

        Raises:
            SandboxError: The sandbox failed.
        """


class Provider(Protocol):
    """Starts sandboxes of one kind."""

    def start(
        self,
        image: str | Snapshot = "host",
        limits: Limits | None = None,
        network: Network = False,
    ) -> SandboxBackend:
        """Start a fresh sandbox.

        Args:
            image: The image's name, or a snapshot.
            limits: What it may use.
            network: What it may reach: see `sandbox.network.Network`.

        Raises:
            ImageError: The image cannot be found or built.
            SandboxUnavailableError: This machine does not permit it.
            UsageError: `network` makes no sense.
        """

    def digest(self, image: str | Snapshot) -> str:
        """Return a digest of the image's content, for caches and for a run's record."""

    def close(self) -> None:
        """Close all of its sandboxes. Idempotent."""


@runtime_checkable
class GrantsSome(Protocol):
    """An ability of a provider that cannot grant all capabilities everywhere."""

    def capability_problem(self, capabilities: Sequence[str], network: Network) -> str:
        """Tell why sandboxes cannot have some of these capabilities, and what to do.

        Args:
            capabilities: Names.
            network: What the sandboxes reach.

        Returns:
            A sentence; empty: they can.
        """


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from outside of a sandbox that has ended, or does not answer."""

    is_keeper_alive: bool
    """Whether what keeps it answers: the spawner, the engine."""
    was_killed_outside: bool = False
    """Whether a process outside has killed or stopped it."""
    running: bool = False
    """Whether its process 1 still runs."""
    exit_code: int | None = None
    """The exit code of its process 1, minus N for death by signal N; None: it is not known."""
    starved: bool = False
    """Whether the kernel has killed one of its processes for want of memory."""


def was_caused_inside(evidence: Evidence) -> bool:
    """Return whether an agent's code, which ran in a sandbox, caused the sandbox's end.

    A sandbox that an agent's code has ended is a result of the agent's; one that was lost otherwise
    is an error, and the episode is tried again. From the first line that applies:

    ================================================  =======
    Evidence                                          Cause
    ================================================  =======
    its keeper (spawner, engine) does not answer      outside
    it was killed or stopped from outside             outside
    its process 1 runs, and does not answer           inside
    it is not known how its process 1 ended           outside
    its process 1 ended, but not by SIGKILL           inside
    the kernel killed in it for want of memory        inside
    any other SIGKILL                                 outside
    ================================================  =======

    No program in a sandbox can send its process 1 a signal: only the kernel, for want of memory, or
    a process outside can kill it.
    """
    if not evidence.is_keeper_alive or evidence.was_killed_outside:
        return False
    if evidence.running:
        return True
    if evidence.exit_code is None:
        return False
    return evidence.exit_code != -signal.SIGKILL or evidence.starved


def cause_of_death(errors: str) -> str:
    """Return the line of a process's last output that names the cause of its end.

    Args:
        errors: The output, which may end with a traceback of each thread.
    """
    lines = errors.strip().splitlines() or [""]
    return next((line for line in lines if line.startswith("Fatal Python error")), lines[-1])


_PARTIAL_CHARACTER_HEAD = re.compile(
    rb"(?:[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z"
)
"""The beginning of a character of UTF-8 whose end is missing."""
_PARTIAL_CHARACTER_TAIL = re.compile(rb"\A[\x80-\xbf]{1,3}")


@dataclass(slots=True)
class OutputBuffer:
    """Keeps the head and the tail of a stream, within a limit, and counts the rest."""

    limit: int
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Append what was read."""
        self.total += len(data)
        head_space = self.limit // 2 + self.limit % 2 - len(self._head)
        if head_space > 0:
            self._head += data[:head_space]
            data = data[head_space:]
        if data:
            self._tail += data
            # Trimmed only at twice its size, so that a long stream costs O(1) a byte.
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
        """Return the stream, or its head and tail around a line that says how much was cut."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        self._trim()
        # No character is cut: its halves would be no text, as no UTF-8.
        match = _PARTIAL_CHARACTER_HEAD.search(self._head, max(0, len(self._head) - 3))
        head = bytes(self._head[: match.start() if match else None])
        tail = bytes(_PARTIAL_CHARACTER_TAIL.sub(b"", self._tail, count=1))
        cut_bytes = self.total - len(head) - len(tail)
        return head + b"\n[... %d bytes cut ...]\n" % cut_bytes + tail
