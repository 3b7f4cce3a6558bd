"""Ownership: sandboxes and their files belong to the process that created them, never to its forks.

A lease is a name that identifies the owner of a resource. A sweep removes the resources whose lease
belongs to a process that has ended.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from intercode_sandbox.errors import EnvironmentStateError, SandboxError
from intercode_sandbox.interruption import is_callers


class SupportsDisown(Protocol):
    """A resource that a forked process must not use in place of its parent."""

    def disown(self) -> None:
        """Release the fork's copy, without any effect on the parent's resource."""


class SupportsClose(Protocol):
    """A provider, reduced to its `close`."""

    def close(self) -> None:
        """End everything that the provider has started. Idempotent."""


_owned_resources: weakref.WeakSet[SupportsDisown] = weakref.WeakSet()


def disown_in_forks(resource: SupportsDisown) -> None:
    """Register a resource that every forked process must release.

    A fork that kept descriptors would also hide the end of this process from its peers.
    """
    _owned_resources.add(resource)


def _disown_all() -> None:
    for resource in list(_owned_resources):
        resource.disown()
    _owned_resources.clear()


os.register_at_fork(after_in_child=_disown_all)


class CallGuard:
    """A guard that admits one call at a time, and only of the process that created the guard.

    The call's frame holds the guard, not a lock: Ctrl-C can strike during entry or exit, and would
    leave a lock locked forever. A frame that has ended holds nothing.

    Args:
        subject: Names the guarded object, for messages.
        release: A method that frees the object's resources after a call that `cut` has marked.
    """

    def __init__(self, subject: str, release: Callable[[], object] | None = None) -> None:
        self._subject = subject
        # Weak: an abandoned object is freed at once, not by the cycle collector.
        self._release = None if release is None else weakref.WeakMethod(release)
        self._is_cut = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._holder: FrameType | None = None
        """The frame of the running call."""

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the guard's process."""
        return os.getpid() != self._owner

    def __enter__(self) -> None:
        """Begin a call.

        Raises:
            EnvironmentStateError: This is another process, or another call is running.
        """
        if self.forked:
            raise EnvironmentStateError(
                f"{self._subject} was made by process {self._owner}, and this is its forked child "
                f"{os.getpid()}: sandboxes are not shared. Make the environment in the child"
            )
        with self._lock:  # held briefly: an exception never leaves it locked
            if self._holder is None or not _is_executing(self._holder):
                self._holder, self._is_cut = sys._getframe(1), False
                return
        raise EnvironmentStateError(
            f"another call of {self._subject} is running: only one thread at a time may use it. "
            "Make one environment for each thread, or use intercode.make_vec"
        )

    def __exit__(
        self, kind: object = None, error: BaseException | None = None, trace: object = None
    ) -> None:
        """End a call.

        Raises:
            EnvironmentStateError: `cut` has marked the call, whatever its result.
        """
        with self._lock:
            is_cut, self._holder, self._is_cut = self._is_cut, None, False
        if not is_cut:
            return
        if self._release is not None and (release := self._release()) is not None:
            release()
        if error is None or not is_callers(error):
            raise EnvironmentStateError(f"{self._subject} was closed during an action") from error

    def cut(self) -> bool:
        """Mark the running call as closed during its run; return whether a call is running.

        The marked call fails at its end, and frees its resources, which the closing thread cannot
        do.
        """
        with self._lock:
            running_frame = None if self.forked else self._holder
            self._is_cut = self._is_cut or (
                running_frame is not None and _is_executing(running_frame)
            )
            return self._is_cut


def _is_executing(frame: FrameType) -> bool:
    """Return whether a frame is still executing; clear a frame that has ended."""
    try:
        frame.clear()
    except RuntimeError:  # Python offers no other test
        return True
    return False


def register_finalizer(
    owner: object, callback: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register work for an object's end or this process's exit; a fork never does the work."""
    return weakref.finalize(owner, _call_if_owner, os.getpid(), callback, arguments)


def register_release(
    owner: object, callback: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register the release of an object's resources, for an owner who drops it without `close`.

    The work may run in any thread, at any line: `callback` takes no lock that is not reentrant, and
    never waits. At the exit of this process the kernel releases the resources. A fork does the
    work, too: its descriptors are separate.

    Returns:
        The finalizer. `close` of the object calls it, so the work is done once.
    """
    finalizer = weakref.finalize(owner, callback, *arguments)
    finalizer.atexit = False
    return finalizer


def _call_if_owner(pid: int, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == pid:
        callback(*arguments)


def close_at_exit(provider: SupportsClose) -> None:
    """Register a provider to be closed at this process's exit, if the provider still exists."""
    atexit.register(_close, weakref.ref(provider))


def _close(provider: weakref.ref[SupportsClose]) -> None:
    if (open_provider := provider()) is not None:
        with suppress(SandboxError, OSError):
            open_provider.close()


def new_lease() -> str:
    """Return a new lease of this process: its pid, start time, pid namespace, and a random part."""
    pid = os.getpid()
    return f"{pid}-{start_time(pid)}-{_pid_namespace()}-{os.urandom(3).hex()}"


def is_gone(lease: str) -> bool:
    """Return whether a lease's process has ended.

    Return False for a process of another pid namespace (another container): its state is unknown.
    """
    fields = lease.split("-")
    if len(fields) != 4 or not fields[0].isdigit() or fields[2] != _pid_namespace():
        return False
    return has_ended(int(fields[0]), int(fields[1]) if fields[1].isdigit() else None)


def has_ended(pid: int, expected_start: int | None) -> bool:
    """Return whether a process has ended: its pid is unused, or has another start time.

    A process that `/proc` does not show may still run: `/proc` hides other users' processes
    (`hidepid`). From a process that has given up root, it hides even the process itself.

    Args:
        pid: The pid, in this process's namespace.
        expected_start: The start time, in the kernel's ticks; None: unknown.
    """
    actual_start = start_time(pid)
    if actual_start is not None and expected_start is not None:
        return actual_start != expected_start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's process; or not a valid pid
        return False
    return False


def start_time(pid: int) -> int | None:
    """Return a process's start time, in the kernel's ticks; None: `/proc` does not show it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
