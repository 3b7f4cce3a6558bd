"""What process 1 of a sandbox does to the others, and to its own rights, in small pieces."""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native import wire

Result = TypeVar("Result")

_OOM_SCORE = 500
_USERS_BYTES = 1 << 20
_STILL_SECONDS = 5.0


@dataclass(frozen=True)
class User:
    """Whom a program runs as."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inside:
    """What process 1 has of its sandbox."""

    upper: int
    """A descriptor of the layer with all that is changed."""
    lower: int
    """One of the image."""
    score: int
    """One of process 1's own ``oom_score_adj``."""
    rights: int
    """The capabilities of process 1."""
    kept: int
    """Those that programs of user 0 have."""
    user: User
    """Whom programs run as, unless another user is asked for."""
    ids: int
    """Programs' users are below this. 1: there is one, which process 1 is as well."""


def as_user(inside: Inside, user: User, work: Callable[[], Result]) -> Result:
    """Do something with no more rights than the sandbox's programs have.

    A thread has credentials of its own: it gives up what process 1 has, and ends.

    Raises:
        OSError: Also, with EAGAIN, where there is no thread to be had.
    """
    kept = 0 if user.uid else inside.kept
    if inside.ids == 1:
        sc.capset(kept, inside.rights, kept)
        try:
            return work()
        finally:
            sc.capset(inside.rights, inside.rights, kept)
    done = _thread.allocate_lock()
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def act() -> None:
        try:
            sc.become(user.uid, user.gid, user.groups)
            # fs.suid_dumpable may have made it so: a program has this thread's user.
            sc.prctl(sc.PR_SET_DUMPABLE, 0)
            sc.capset(kept, kept, kept)
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - raised where it was waited for
            failure.append(error)
        finally:
            done.release()

    done.acquire()
    try:
        _thread.start_new_thread(act, ())
    except RuntimeError as error:
        raise BlockingIOError(errno.EAGAIN, str(error)) from error
    done.acquire()
    if failure:
        raise failure[0]
    return outcome[0]


class Frozen:
    """For its duration, all other processes are stopped."""

    def __enter__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limits[1], self.limits[1]))
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
            _await_still()

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGCONT)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def alive() -> set[int]:
    """All pids but this one's, and but for zombies that a parent has yet to reap."""
    return {int(n) for n in os.listdir("/proc") if n.isdigit() and n != "1" and _runs(n)}


def _runs(pid: str) -> bool:
    return _state(f"/proc/{pid}") not in b"ZX"


def _state(folder: str) -> bytes:
    """The letter for what a process or thread is doing."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rpartition(b")")[2][1:2]
    except OSError:  # it has just ended
        return b"X"


def _await_still() -> None:
    """Wait until what was told to stop has: a write that had begun is done to its end first.

    Not for ever: who waits in the kernel for another that has stopped cannot.
    """
    deadline = time.monotonic() + _STILL_SECONDS
    while any(map(_moves, alive())) and time.monotonic() < deadline:
        time.sleep(0.0002)


def _moves(pid: int) -> bool:
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:  # it has just ended
        return False
    return any(_state(f"{folder}/{thread}") in b"RD" for thread in threads)


@contextmanager
def first_to_go(score: int) -> Iterator[None]:
    """For its duration, what starts is for the kernel to end first, when memory runs out.

    That is before process 1 and before the machine's programs. Against a program that fills memory
    files, which count for no process, process 1 would be the largest. It takes the score itself
    meanwhile: a program has it from its first instruction.

    Args:
        score: See `Inside.score`.
    """
    own = os.pread(score, 16, 0)
    # Never below its own, which the kernel may refuse: a cluster's containers can begin with 1000.
    os.pwrite(score, b"%d" % max(int(own), _OOM_SCORE), 0)
    try:
        yield
    finally:
        os.pwrite(score, own, 0)


def move_up(fd: int) -> int:
    """A copy of a descriptor, out of the way of the numbers that a caller asks for."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, wire.HIGH_FD)


def look_up_user(user: str, ids: int) -> User:
    """The user of that name of the sandbox's own, or ``uid[:gid]``, all below `ids`.

    Raises:
        LookupError: There is no such user.
    """
    first, _, second = user.partition(":")
    uid, gid = (first, second) if first.isdigit() else _by_name(first)
    if not uid.isdigit():
        raise LookupError(f"the sandbox has no user {user!r}")
    if not gid.isdigit():
        gid = uid
    if int(uid) >= ids or int(gid) >= ids:
        only = f"ids 0 to {ids - 1} are all that it has"
        raise LookupError(f"the sandbox cannot have user {user!r}: {only}")
    return User(int(uid), int(gid))


def _by_name(name: str) -> tuple[str, str]:
    for line in _users().split("\n"):
        fields = line.split(":")
        if len(fields) > 3 and fields[0] == name:
            return fields[2], fields[3]
    return "", ""


def _users() -> str:
    """The sandbox's ``/etc/passwd``, which is whatever an agent has made of it."""
    with suppress(OSError):
        fd = os.open("/etc/passwd", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return file.read(_USERS_BYTES).decode(errors="replace")
    return ""
