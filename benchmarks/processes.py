"""Processes below this one: which they are, the memory they hold, the CPU time they have taken."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError)
"""How files of a process answer that has just ended."""


def children(pid: int) -> list[int]:
    """The children of all of a process's threads."""
    found: list[int] = []
    with suppress(*GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*GONE), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    return [p for child in children(pid) for p in (child, *descendants(child))]


def pss(pid: int) -> int:
    """A process's share of memory, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no Pss")


def own(pid: int) -> float:
    """Seconds of CPU of a process's threads, by the process's own clock: nanoseconds."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it
    except OSError:  # it has just ended, and its parent has it
        return 0.0


def ended(pid: int) -> float:
    """Seconds of CPU of the processes that a process has waited for, and of those below them.

    The kernel adds them up exactly, but shows the two sums cut off at ticks of 10 ms.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except GONE:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU seconds of this process, of its spawners and zygotes, and of all that has ended below."""
    spawners = children(os.getpid())
    zygotes = [pid for spawner in spawners for pid in children(spawner)[:1]]
    ends = ended(os.getpid()) + sum(map(ended, spawners))
    return time.process_time() + ends + sum(map(own, [*spawners, *zygotes]))


class Roles:
    """CPU time since the beginning, by who took it.

    ``host``: this process, all of its threads, without the looks below. ``spawner``: its children,
    one for each kind of sandbox. ``shell``: all that lives below a sandbox's process 1, a shell or
    an interpreter, from its start to the look. ``process 1``: all else below the spawners, that is
    process 1 with its end, the end of the shell, the programs that have ended, and sandboxes that
    were made ready.

    Their sum is what a cgroup around all of them counts. It misses the kernel's own threads, which
    dismantle network namespaces and control groups. Ticks make ``process 1`` uncertain by 20 ms
    over all episodes together, and so do sandboxes that are half made at either end.
    """

    def __init__(self) -> None:
        self._looking = 0.0
        self._shells: dict[int, float] = {}
        self.look()
        self._begin = self._so_far()

    def look(self) -> None:
        """Note what the shells have taken, while they live: once in each episode."""
        began = time.thread_time()
        first = [one for spawner in children(os.getpid()) for one in children(spawner)]
        self._shells |= {pid: own(pid) + ended(pid) for one in first for pid in descendants(one)}
        self._looking += time.thread_time() - began

    def taken(self) -> dict[str, float]:
        """Seconds by role, since this was made."""
        return {role: now - self._begin[role] for role, now in self._so_far().items()}

    def _so_far(self) -> dict[str, float]:
        me = os.getpid()
        below = sum(own(pid) + ended(pid) for pid in descendants(me))
        spawner = sum(map(own, children(me)))
        shell = sum(self._shells.values())
        return {
            "host": time.process_time() + ended(me) - self._looking,
            "spawner": spawner,
            "process 1": below - spawner - shell,
            "shell": shell,
        }
