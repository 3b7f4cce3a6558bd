"""Names that tell whose a thing is, so that a sweep can tell what a killed process left."""

from __future__ import annotations

import os
from pathlib import Path


def name() -> str:
    """A new name that belongs to this process: its pid, start time and pid namespace."""
    pid = os.getpid()
    return f"{pid}-{start_time(pid)}-{_pid_namespace()}-{os.urandom(3).hex()}"


def is_gone(name: str) -> bool:
    """Whether the process that a `name` belongs to has ended.

    Of another pid namespace, another container's, nothing is known: then False.
    """
    fields = name.split("-")
    if len(fields) != 4 or not fields[0].isdigit() or fields[2] != _pid_namespace():
        return False
    return str(start_time(int(fields[0]))) != fields[1]


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _pid_namespace() -> str:
    return str(os.stat("/proc/self/ns/pid").st_ino)
