"""Ownership of sandboxes and their files: the process that created them owns them, not its forks.

Part of a resource's name is a lease, a text that identifies the process that owns the resource.
Clean-up code removes the resources whose owner has ended: see `is_gone`.
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
    """A resource, such as a socket, that a forked process inherits but must not use."""

    def disown(self) -> None:
        """Release the copy of the resource in a forked process, without any effect on the parent's.

        This process's fork calls the method, not the parent.
        """


class SupportsClose(Protocol):
    """A provider of sandboxes: `close_at_exit` needs only its method `close`."""

    def close(self) -> None:
        """End all sandboxes that the provider has started. Idempotent."""


_owned_resources: weakref.WeakSet[SupportsDisown] = weakref.WeakSet()


def disown_in_forks(resource: SupportsDisown) -> None:
    """Register a resource that every fork of this process must release.

    A fork that kept inherited sockets open would also prevent the peers of this process from
    noticing its end.
    """
    _owned_resources.add(resource)


def _disown_all() -> None:
    for resource in list(_owned_resources):
        resource.disown()
    _owned_resources.clear()


os.register_at_fork(after_in_child=_disown_all)


class CallGuard:
    """A guard of an object: one call at a time, and only in the process that created the guard.

    Each call runs in a ``with`` block of the guard. The guard remembers the frame of the running
    call. A lock would not do: Ctrl-C may strike while the block is entered or left, and the lock
    would stay locked forever. The guard counts a frame that has ended as no call.

    Args:
        subject: The name of the guarded object, for messages.
        release: A method that frees the object's resources after a call that `cut` has marked.
    """

    def __init__(self, subject: str, release: Callable[[], object] | None = None) -> None:
        self._subject = subject
        # A strong reference would create a cycle, and only the garbage collector would then free
        # an abandoned object.
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
            EnvironmentStateError: This process is not the guard's, or another call is running.
        """
        if self.forked:
            raise EnvironmentStateError(
                f"{self._subject} was made by process {self._owner}, and this is its forked child "
                f"{os.getpid()}: sandboxes are not shared. Make the environment in the child"
            )
        with self._lock:  # this lock is never held during a call, only for these few lines
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
            EnvironmentStateError: `cut` has marked the call. An exception of the caller, such as
                Ctrl-C, is raised instead.
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
        """Mark the running call, if any, as one during which the object was closed.

        The marked call raises an error at its end, and frees the object's resources. The closing
        thread cannot free them, because the call still uses them.

        Returns:
            Whether a call is marked: False if no call is running.
        """
        with self._lock:
            running_frame = None if self.forked else self._holder
            self._is_cut = self._is_cut or (
                running_frame is not None and _is_executing(running_frame)
            )
            return self._is_cut


def _is_executing(frame: FrameType) -> bool:
    """Return whether a frame is still executing; clear a frame that has ended.

    Python refuses to clear an executing frame, and offers no other test.
    """
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


def register_finalizer(
    owner: object, callback: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register a function to be called when an object is freed, or when this process exits.

    A fork of this process never calls the function.

    Args:
        owner: The object.
        callback: The function.
        *arguments: Arguments of the function.

    Returns:
        The finalizer. A call of the finalizer calls the function at once, and later never again.
    """
    return weakref.finalize(owner, _call_if_owner, os.getpid(), callback, arguments)


def register_release(
    owner: object, callback: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register the release of an object's resources, in case the object is freed without `close`.

    Python may call the function in any thread, at any line. Therefore `callback` must not wait, and
    must not take a lock, unless the lock is reentrant. At the exit of this process the kernel
    releases the resources. A fork calls the function, too, because the descriptors of a fork are
    separate.

    Args:
        owner: The object.
        callback: The function that releases the resources.
        *arguments: Arguments of the function.

    Returns:
        The finalizer. `close` of the object calls it, so the function is called only once.
    """
    finalizer = weakref.finalize(owner, callback, *arguments)
    finalizer.atexit = False
    return finalizer


def _call_if_owner(pid: int, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == pid:
        callback(*arguments)


def close_at_exit(provider: SupportsClose) -> None:
    """Close a provider at this process's exit, unless the provider was freed before."""
    atexit.register(_close, weakref.ref(provider))


def _close(provider: weakref.ref[SupportsClose]) -> None:
    if (open_provider := provider()) is not None:
        with suppress(SandboxError, OSError):
            open_provider.close()


def new_lease() -> str:
    """Return a new lease of this process.

    The lease consists of the process's pid, start time and pid namespace, and a random part.
    """
    pid = os.getpid()
    return f"{pid}-{start_time(pid)}-{_pid_namespace()}-{os.urandom(3).hex()}"


def is_gone(lease: str) -> bool:
    """Return whether the process that owns a lease has ended.

    Args:
        lease: A text from `new_lease`. The owner's state is unknown if it ran in another pid
            namespace (another container); the result is then False.
    """
    fields = lease.split("-")
    if len(fields) != 4 or not fields[0].isdigit() or fields[2] != _pid_namespace():
        return False
    return has_ended(int(fields[0]), int(fields[1]) if fields[1].isdigit() else None)


def has_ended(pid: int, expected_start: int | None) -> bool:
    """Return whether a process has ended: its pid is unused, or has another start time.

    A process that `/proc` does not show may still run. With the mount option ``hidepid`` the file
    system hides the processes of other users. A process that has given up root then does not see
    even itself.

    Args:
        pid: The pid, in the pid namespace of this process.
        expected_start: The start time of the process, in the kernel's ticks; None: unknown.
    """
    actual_start = start_time(pid)
    if actual_start is not None and expected_start is not None:
        return actual_start != expected_start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # the process is another user's; the pid is invalid
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
