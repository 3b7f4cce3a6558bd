"""What process 1 of a sandbox does to the others, and to its own rights, in small pieces."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import time
from contextlib import suppress

from intercode.sandbox.native import syscalls

_OOM_SCORE = "500"
_HIGH_FD = 300  # above the numbers that a caller asks for inside
_USERS_BYTES = 1 << 20
_STILL_SECONDS = 5.0


class UserRights:
    """For its duration, this process has only the rights that programs have.

    Args:
        all_rights: The capabilities that it has else.
        kept: Those that programs of user 0 have.
        uid: The user that programs are.
        gid: Their group.
        groups: Their other groups.
    """

    def __init__(
        self, all_rights: int, kept: int, uid: int = 0, gid: int = 0, *groups: int
    ) -> None:
        self.all_rights, self.kept = all_rights, kept
        self.uid, self.gid, self.groups = uid, gid, groups

    def __enter__(self) -> None:
        if self.uid == self.gid == 0:
            syscalls.capset(self.kept, self.all_rights, self.kept)
            return
        os.setgroups(self.groups)
        os.setegid(self.gid)
        os.seteuid(self.uid)  # of another than 0, which has no capability
        if self.uid == 0:
            syscalls.capset(self.kept, self.all_rights, self.kept)

    def __exit__(self, *_: object) -> None:
        if self.uid:
            os.seteuid(0)
        syscalls.capset(self.all_rights, self.all_rights, self.kept)
        if self.uid or self.gid:
            os.setegid(0)
            os.setgroups([])
            # A change of credentials clears it.
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)


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


def first_to_go(pid: int | str) -> None:
    """When memory runs out, have the kernel end a program before process 1 and before the host's.

    Against a program that fills memory files, which count for no process, process 1 would be the
    largest.
    """
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def move_up(fd: int) -> int:
    """A copy of a descriptor, out of the way of the numbers that a caller asks for."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)


def look_up_user(user: str) -> tuple[int, int]:
    """User and group id of a name of the sandbox's own, or of ``uid[:gid]``.

    Raises:
        LookupError: There is no such user.
    """
    first, _, second = user.partition(":")
    uid, gid = (first, second) if first.isdigit() else _by_name(first)
    if not uid.isdigit():
        raise LookupError(f"the sandbox has no user {user!r}")
    with open("/proc/self/uid_map") as file:
        known = sum(int(line.split()[2]) for line in file)
    if int(uid) >= known:
        only = f"ids 0 to {known - 1} are all that it has"
        raise LookupError(f"the sandbox cannot have user {user!r}: {only}")
    return int(uid), int(gid) if gid.isdigit() else int(uid)


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
