"""Ownership: sandboxes and their files belong to the process that made them, never to its forks.

A lease is a name that tells whose a thing is, so that a sweep can tell what a killed process left.
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
    """A resource that a forked process must not use in its parent's name."""

    def disown(self) -> None:
        """Let go of it, in a fork, so that nothing done there reaches it."""


class SupportsClose(Protocol):
    """A provider, as far as its end goes."""

    def close(self) -> None:
        """End all that it has started. Idempotent."""


_owned_resources: weakref.WeakSet[SupportsDisown] = weakref.WeakSet()


def disown_in_forks(thing: SupportsDisown) -> None:
    """Register a resource that every forked process is to let go of.

    A fork that kept descriptors would also hide from the other end that this process has ended.
    """
    _owned_resources.add(thing)


def _disown_all() -> None:
    for thing in list(_owned_resources):
        thing.disown()
    _owned_resources.clear()


os.register_at_fork(after_in_child=_disown_all)


class OneCaller:
    """Lets in one call at a time, and only of the process that made this.

    The call's frame is the holder, not a lock: Ctrl-C can strike on the way in or out, and a lock
    would then stay locked for good. A frame that has ended holds nothing.

    Args:
        subject: Names the thing that is guarded, for messages.
        release: A method that frees what the thing holds, once a call that `cut` has marked is
            over.
    """

    def __init__(self, subject: str, release: Callable[[], object] | None = None) -> None:
        self._subject = subject
        # Weak: a thing that is dropped is freed at once, and not when cycles are collected.
        self._release = None if release is None else weakref.WeakMethod(release)
        self._is_cut = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._holder: FrameType | None = None
        """The frame of the running call."""

    @property
    def forked(self) -> bool:
        """Whether this is a fork of the process that made it."""
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
        with self._lock:  # for a moment: an exception never leaves it locked
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
            EnvironmentStateError: `cut` has marked the call, whatever has come of it.
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
        """Mark the running call as closed under its hands; return whether there is one.

        The call fails at its end, and frees what it has used, which the closing thread cannot do.
        """
        with self._lock:
            holder = None if self.forked else self._holder
            self._is_cut = self._is_cut or (holder is not None and _is_executing(holder))
            return self._is_cut


def _is_executing(frame: FrameType) -> bool:
    """Whether a frame has not ended; one that has is cleared."""
    try:
        frame.clear()
    except RuntimeError:  # the only answer that Python gives to this question
        return True
    return False


def register_finalizer(
    thing: object, work: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register work for when an object is gone, or this process ends; a fork never does it."""
    return weakref.finalize(thing, _if_owner, os.getpid(), work, arguments)


def register_release(
    thing: object, work: Callable[..., object], *arguments: Any
) -> weakref.finalize[..., Any]:
    """Register the freeing of what an object holds, for an owner who drops it without `close`.

    It may be done in any thread, at any line: `work` takes no lock that is not reentrant, and waits
    for nothing. At the end of this process the kernel does it. A fork does it, too: its descriptors
    are its own.

    Returns:
        The finalizer. Who closes the object calls it, so that it is done once.
    """
    finalizer = weakref.finalize(thing, work, *arguments)
    finalizer.atexit = False
    return finalizer


def _if_owner(pid: int, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if os.getpid() == pid:
        work(*arguments)


def close_at_exit(provider: SupportsClose) -> None:
    """Register a provider to be closed when the process ends, if it is still there then."""
    atexit.register(_close, weakref.ref(provider))


def _close(provider: weakref.ref[SupportsClose]) -> None:
    if (open_provider := provider()) is not None:
        with suppress(SandboxError, OSError):
            open_provider.close()


def new_lease() -> str:
    """Return a new name that belongs to this process: its pid, start time and pid namespace."""
    pid = os.getpid()
    return f"{pid}-{start_time(pid)}-{_pid_namespace()}-{os.urandom(3).hex()}"


def is_gone(lease: str) -> bool:
    """Whether the process that a lease belongs to has ended.

    Of another pid namespace, another container's, nothing is known: then False.
    """
    fields = lease.split("-")
    if len(fields) != 4 or not fields[0].isdigit() or fields[2] != _pid_namespace():
        return False
    return has_ended(int(fields[0]), int(fields[1]) if fields[1].isdigit() else None)


def has_ended(pid: int, expected_start: int | None) -> bool:
    """Whether a process has ended: there is no such pid, or it has another start time.

    A process that `/proc` does not show may still run: `/proc` hides those of other users
    (`hidepid`), and from a process that has given up root even itself.

    Args:
        pid: The pid, in this process's namespace.
        expected_start: The start time, in the kernel's ticks; None: it is not known.
    """
    actual_start = start_time(pid)
    if actual_start is not None and expected_start is not None:
        return actual_start != expected_start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # another user's; no process's at all
        return False
    return False


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in the kernel's ticks; None: `/proc` does not show it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
