"""Killing `intercode`, and what must not be left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from intercode.sandbox.native import cgroup


def intercode(*arguments: object) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "intercode.cli", *map(str, arguments)]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and wait until all that it had started is gone, too."""
    started = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    # What was being started is found in its control group.
    while alive := [pid for pid in started if runs(pid)] + inside(process.pid):
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.05)


def cgroups_of(pid: int) -> list[Path]:
    """The control groups of a process's sandboxes."""
    return [f for _, p in cgroup.parents() for f in Path(p).glob(f"{cgroup.PREFIX}{pid}-*")]


def inside(pid: int) -> list[str]:
    """What runs in those groups."""
    found: list[str] = []
    for folder in cgroups_of(pid):
        for group in os.walk(folder):  # which passes over what is just being removed
            with suppress(OSError):
                found += Path(group[0], "cgroup.procs").read_text().split()
    return found


def descendants(pid: int) -> set[int]:
    """The processes below one, whichever of its threads has started them."""
    found: set[int] = set()
    with suppress(OSError):  # it has just ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # the thread has
                children = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found |= {int(child) for child in children.split()}
    return found | {p for child in found for p in descendants(child)}


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
