"""How tests wait for what comes by itself: for the thing, and however slow the machine is."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable
from pathlib import Path

from intercode_sandbox import SandboxBackend

PATIENCE = 180.0
"""Seconds for what ends by itself: no machine, however slow, should reach them."""


def eventually(holds: Callable[[], object]) -> bool:
    """Wait until something holds; whether it does within our patience."""
    deadline = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)  # allow sleep: all others wait by this one
    return bool(held)


def becomes_readable(fd: int) -> bool:
    """Whether a descriptor is readable within our patience; of any number, unlike `select`."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(PATIENCE * 1000))


def new_marker() -> str:
    """How long a sleeper sleeps that no other test or suite on this machine has."""
    return f"4321.{secrets.randbelow(10**15):015}"


def sleepers(marker: str) -> list[int]:
    """The machine's processes that sleep for so long: none that is about to begin with it."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _arguments(folder) == f"sleep\0{marker}\0".encode()
    ]


def _arguments(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def running(sandbox: SandboxBackend, *but: int) -> list[str]:
    """The command lines of what runs in a sandbox, but for some pids. No image has to help.

    Of a process that ended while we looked nobody knows what it has left behind: "?".
    """
    found = []
    for pid in {*sandbox.processes()} - {*but}:
        try:
            line = sandbox.read_file(f"/proc/{pid}/cmdline")
        except OSError:
            line = b""
        found.append(line.replace(b"\0", b" ").decode().strip() or "?")
    return sorted(found)
