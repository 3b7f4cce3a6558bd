"""Killing `intercode`, and what must not be left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from intercode_sandbox.native import cgroup, syscalls as sc
from waiting import eventually

_PR_SET_CHILD_SUBREAPER = 36


def intercode(*arguments: object) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "intercode.cli", *map(str, arguments)]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and wait until all that it had started is gone, too."""
    with adopting():
        ours = children()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

        def none_left() -> bool:
            left = children() - ours
            for pid in left:  # what it leaves is ours as soon as it has ended
                os.waitpid(pid, os.WNOHANG)
            return not left

        assert eventually(none_left), f"still alive: {children() - ours}"


@contextmanager
def adopting() -> Iterator[None]:
    """Processes whose parent ends meanwhile are ours: even one that it was just starting."""
    sc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        sc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def children() -> set[int]:
    """This process's, whichever of its threads has started them."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has just ended
            found |= {*map(int, Path(f"/proc/self/task/{task}/children").read_text().split())}
    return found


def cgroups_of(pid: int) -> list[Path]:
    """The control groups of a process's sandboxes."""
    return [f for p in cgroup.parents() for f in Path(p).glob(f"{cgroup.PREFIX}{pid}-*")]
