"""Freeze processes and threads in a control group of their own, and never leave one frozen.

A frozen process is in an uninterruptible sleep: neither it nor its parent can tell, unlike with
SIGSTOP, and even SIGKILL ends it only when it thaws, as with a process that the scheduler forgot.
The freezer of cgroup v1 is a hierarchy of its own: a frozen process stays in all other groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from intercode_sandbox.native.cgroup import _folder, _process_path

PREFIX = "chaos-"


class FreezingError(Exception):
    """Nothing can be frozen here, and why."""


def _write(path: str, value: object) -> bool:
    try:
        with open(path, "w") as file:
            file.write(str(value))
    except OSError:  # the process is gone
        return False
    return True


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # the process is gone
        return ""


def _in_group(pid: int, path: str) -> bool:
    lines = _read(f"/proc/{pid}/cgroup").splitlines()
    return any(line.split(":", 2)[1:] == ["freezer", path] for line in lines)


class Freezer:
    """A frozen control group: a process moved into it freezes, and moved out of it thaws."""

    def __init__(self) -> None:
        home, path = _folder("cgroup", "freezer"), _process_path("freezer")
        if home is None or path is None:
            raise FreezingError(
                "no freezer of cgroup v1 is mounted, and that of v2 would take processes out of "
                "their sandboxes' groups: mount -t cgroup -o freezer freezer FOLDER"
            )
        self.home, self.path = home, path
        self.folder = f"{home}/{PREFIX}{os.getpid()}"
        try:
            os.mkdir(self.folder)
        except OSError as error:
            raise FreezingError(f"cannot make a control group: {error}") from None
        self._until: dict[tuple[int, bool], float] = {}
        self._guardian, self._lifeline = self._start_guardian()
        _write(f"{self.folder}/freezer.state", "FROZEN")

    def freeze(self, pid: int, seconds: float, *, whole: bool) -> bool:
        """Freeze a process, or one thread of it, for some time; whether it could be done.

        Those in other groups, which a container engine may itself freeze, are left alone.
        """
        if (pid, whole) in self._until or not _in_group(pid, self.path):
            return False
        if not _write(f"{self.folder}/{'cgroup.procs' if whole else 'tasks'}", pid):
            return False
        self._until[pid, whole] = time.monotonic() + seconds
        return True

    def thaw(self, everything: bool = False) -> float | None:
        """Thaw whose time has come; return when the next one's comes."""
        if not self._until:
            return None
        now = time.monotonic()
        for (pid, whole), until in [*self._until.items()]:
            if everything or until <= now:
                _write(f"{self.home}/{'cgroup.procs' if whole else 'tasks'}", pid)
                del self._until[pid, whole]
        self._let_strays_go()
        return min(self._until.values(), default=None)

    def _let_strays_go(self) -> None:
        """Thaw those that were born in the group: their parents were about to fork."""
        for thread in map(int, _read(f"{self.folder}/tasks").split()):
            if (thread, False) in self._until:
                continue
            status = _read(f"/proc/{thread}/status").partition("\nTgid:\t")[2]
            if status and (int(status.split("\n")[0]), True) not in self._until:
                _write(f"{self.home}/tasks", thread)

    def close(self) -> None:
        """Thaw everything and remove the group."""
        os.close(self._lifeline)
        os.waitpid(self._guardian, 0)
        self._remove()  # if somebody killed the guardian

    def _start_guardian(self) -> tuple[int, int]:
        """Start a process that cleans up when this one closes its pipe, or is killed."""
        lifeline, ours = os.pipe()
        pid = os.fork()
        if pid:
            os.close(lifeline)
            return pid, ours
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.dup2(lifeline, 0)
            os.closerange(1, os.sysconf("SC_OPEN_MAX"))
            os.read(0, 1)
            self._remove()
        finally:
            os._exit(0)

    def _remove(self) -> None:
        _write(f"{self.folder}/freezer.state", "THAWED")
        while os.path.isdir(self.folder):
            for pid in _read(f"{self.folder}/cgroup.procs").split():
                _write(f"{self.home}/cgroup.procs", pid)
            with contextlib.suppress(OSError):  # a process is still leaving it
                os.rmdir(self.folder)
            time.sleep(0.01)  # allow sleep: a control group has no event for its last process
