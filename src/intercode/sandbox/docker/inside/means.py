"""The means of a container's process 1: over other processes, its own rights, and files."""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from intercode.sandbox.accounts import LONGEST, User
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native import wire

Result = TypeVar("Result")

_OOM_SCORES = 500, 1000
"""How readily the kernel ends a program to free memory: while it starts, and from then on. The
first is process 1's meanwhile, so that what runs already goes before it."""
_STILL_SECONDS = 15.0
_STUCK_SECONDS = 0.2
_START_CODE = 23
"""The index of the address of a process's code in what `_stat` returns."""


@dataclass(frozen=True)
class Inside:
    """The things of its sandbox that process 1 holds."""

    score: int
    """A descriptor of process 1's own ``oom_score_adj``."""
    proc: int
    """One of a /proc that can be written, unlike the programs'."""
    rights: int
    """The capabilities of process 1."""
    kept: int
    """The capabilities that programs of user 0 have."""
    user: User
    """The user of programs, unless another one is asked for."""
    ids: int
    """Programs' users are below this. 1: there is one, which process 1 is as well."""


def as_user(inside: Inside, user: User, work: Callable[[], Result]) -> Result:
    """Do something with no more rights than the sandbox's programs have.

    A thread has credentials of its own: it gives up what process 1 has, and ends.

    Raises:
        OSError: Also, with EAGAIN, where there is no thread to be had.
    """
    kept = 0 if user.uid else inside.kept
    done = _thread.allocate_lock()
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def act() -> None:
        try:
            if inside.ids > 1:
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
    while not done.acquire(timeout=_STUCK_SECONDS):
        _end_stopped_start()
    if failure:
        raise failure[0]
    return outcome[0]


def _end_stopped_start() -> None:
    """Kill a program that was stopped before it was executed: its start would take for ever.

    Until then it has its user already, but is a part of process 1: the same code, and its child.
    """
    # Of what has process 1's memory, the kernel tells only process 1 where the code is: 1.
    ours = (_stat("/proc/1")[_START_CODE], b"1")
    for pid in alive():
        stat = _stat(f"/proc/{pid}")
        if stat[:2] == [b"T", b"1"] and stat[_START_CODE] in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class RestlessError(OSError):
    """Programs went on, or ended, while they should have stood still; they are killed."""


class Frozen:
    """For its duration, all other processes are stopped.

    Raises:
        RestlessError: At its end, as timers of the kernel's continue and end what is stopped.
    """

    def __enter__(self) -> None:
        self.turns: dict[tuple[int, str], bytes] = {}
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limits[1], self.limits[1]))
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
            _await_still()
            self.turns = _turns()

    def __exit__(self, kind: object, *_: object) -> None:
        now = _turns() if self.turns else {}  # where nothing ran, nothing comes of it
        moved = {pid for (pid, _), _ in now.items() ^ self.turns.items()}
        for pid in moved:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGCONT)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)
        if moved and kind is None:
            raise RestlessError(errno.EAGAIN, "programs did not stand still")


def alive() -> set[int]:
    """Return all pids but this one's, and but for zombies that a parent has yet to reap."""
    return {int(n) for n in os.listdir("/proc") if n.isdigit() and n != "1" and _runs(n)}


def _runs(pid: str) -> bool:
    # Where only the first thread has ended, the process looks like a zombie, too.
    return _state(f"/proc/{pid}") not in b"ZX" or len(_threads(int(pid))) > 1


def _stat(folder: str) -> list[bytes]:
    """Return the fields of a ``stat`` file of /proc, from the state on."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:  # it has just ended
        return [b"X"] + [b"0"] * _START_CODE


def _state(folder: str) -> bytes:
    """Return the letter for what a process or thread is doing."""
    return _stat(folder)[0]


def _threads(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it has just ended
        return []


def program(pid: int) -> tuple[str, dict[str, str]]:
    """Return a program's name, and what its descriptors lead to, by their numbers."""
    name, leads_to = "", {}
    with suppress(OSError):  # it ends just now
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = os.fsdecode(file.read().rstrip(b"\n"))
        for number in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            with suppress(OSError):
                leads_to[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return name, leads_to


def _turns() -> dict[tuple[int, str], bytes]:
    """How often each thread, by its process and folder, has waited: once more if it went on."""
    found = {}
    for pid in alive():
        for thread in _threads(pid):
            with suppress(OSError), open(f"{thread}/status", "rb") as file:
                status = file.read()
                found[pid, thread] = status[status.rindex(b"\nvoluntary_ctxt_switches") :]
    return found


def _await_still() -> None:
    """Wait until what was told to stop has: a write that had begun is done to its end first.

    A thread that waits for a child with which it shares its memory (vfork) cannot stop before that
    goes on, and does nothing meanwhile: where nothing has come of waiting, that is what it is.
    """
    began = since = time.monotonic()
    before: list[list[bytes]] = []
    while now := time.monotonic():
        waiting = [
            stat for pid in alive() for stat in map(_stat, _threads(pid)) if stat[0] in b"RD"
        ]
        if not waiting or now > began + _STILL_SECONDS:
            return
        if waiting != before or any(stat[0] == b"R" for stat in waiting):
            before, since = waiting, now
        elif now > since + _STUCK_SECONDS:
            return
        time.sleep(0.0002)


@contextmanager
def first_to_go(score: int) -> Iterator[None]:
    """For its duration, what starts is for the kernel to end first, when memory runs out.

    That is before process 1 and before the machine's programs. Against a program that fills memory
    files, which count for no process, process 1 would be the largest. It takes the score itself
    meanwhile: a program has it from its first instruction. `before_all` gives it a higher one.

    Args:
        score: See `Inside.score`.
    """
    own = os.pread(score, 16, 0)
    # Never below its own, which the kernel may refuse: a cluster's containers can begin with 1000.
    os.pwrite(score, b"%d" % max(int(own), _OOM_SCORES[0]), 0)
    try:
        yield
    finally:
        os.pwrite(score, own, 0)


def before_all(inside: Inside, pid: int) -> None:
    """Let the kernel end a program before any that is just starting, as process 1 may be."""
    with suppress(OSError):  # it has ended
        fd = os.open(f"{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=inside.proc)
        try:
            os.write(fd, b"%d" % _OOM_SCORES[1])
        finally:
            os.close(fd)


def why_not_to_read(fd: int) -> int:
    """Return an errno if it is not a regular file, or is process 1's own; else 0."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        return errno.EISDIR
    if not stat.S_ISREG(mode):
        return errno.EINVAL
    # /proc/self is process 1 here, which a link of the agent's must not lead to.
    # Of /proc/sys a reader outside would see its own.
    path = os.readlink(f"/proc/self/fd/{fd}")
    return errno.EACCES if path.startswith(("/proc/1/", "/proc/sys/")) else 0


def make_folders(path: str) -> None:
    """Make a folder, and the missing ones above it; there may be others at work on them."""
    missing = []
    while True:
        try:
            folder = sc.open_plainly(path, os.O_PATH | os.O_DIRECTORY)
            break
        except FileNotFoundError:
            path, _, name = path.rstrip("/").rpartition("/")
            path = path or "/"
            missing.append(name)
    try:
        for name in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=folder)
            os.close(folder)
            folder = below
    finally:
        os.close(folder)


def remove_shared_memory(inside: Inside) -> None:
    """Remove System V memory, queues and semaphores, which outlive those who made them."""
    for kind, owner in (("shm", 7), ("msg", 7), ("sem", 4)):
        with suppress(FileNotFoundError), open(f"/proc/sysvipc/{kind}") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                user = User(int(fields[owner]), int(fields[owner + 1]))
                number = int(fields[1])
                with suppress(OSError):
                    as_user(inside, user, partial(sc.remove_ipc, kind, number))


def candidates(name: bytes, env: Mapping[str, str]) -> list[bytes]:
    """List the files that a program's name may mean: those that are there, of its search path."""
    if b"/" in name:
        return [name]
    path = env.get("PATH", os.defpath)
    found = [os.path.join(os.fsencode(folder) or b".", name) for folder in path.split(":")]
    return [program for program in found if os.path.lexists(program)]


def move_up(fd: int) -> int:
    """Return a copy of a descriptor, out of the way of the numbers that a caller asks for."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, wire.HIGH_FD)


def id_count() -> int:
    """Return how many user ids there are here."""
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file)


def read_text(path: str) -> str:
    """Return the text of a regular file, as an agent may have left it; empty: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(LONGEST).decode(errors="replace")
