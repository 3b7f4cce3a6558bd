"""Ledgers of closed sandboxes that the kernel has not ended yet.

The kernel may need minutes to end programs: for instance, it walks a file's list of locks once for
each descriptor of the file. No caller waits for that. A spawner keeps the ids, the cgroup and the
memory of such a sandbox until its end, and lists the sandbox in a ledger. A spawner keeps its
ledger locked: an unlocked ledger belongs to a spawner that has ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LEDGERS = "endings"
"""The folder of the ledgers, in the cache."""
_MAX_LEDGER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ending:
    """A closed sandbox that the kernel is still ending."""

    lease: str
    """The name of the sandbox's spawner."""
    name: str
    """The name of the sandbox's cgroup."""
    pid: int
    """The sandbox's process 1, in the spawner's pid namespace."""


def open_ledger(folder: Path, lease: str) -> int:
    """Create a spawner's ledger and return a locked descriptor. Copies of it share the lock.

    Raises:
        OSError: The ledger cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        ledger = os.open(folder / lease, flags, 0o600)
        fcntl.flock(ledger, fcntl.LOCK_EX)
        # No link remains if another process removed the ledger before this process locked it.
        if os.fstat(ledger).st_nlink:
            return ledger
        os.close(ledger)


def write_ledger(ledger: int, sandboxes: Mapping[str, int]) -> None:
    """Replace the content of a ledger by the given cgroup names and pids."""
    text = "".join(f"{name} {pid}\n" for name, pid in sandboxes.items()).encode()
    with suppress(OSError):  # the disk is full: the ends go unlisted, but happen all the same
        os.ftruncate(ledger, 0)
        os.pwrite(ledger, text, 0)


def read_ledgers(folder: Path) -> list[Ending]:
    """List the sandboxes that are still ending; remove the ledgers of ended spawners."""
    with suppress(OSError):  # the folder does not exist yet, or is another user's
        paths = sorted(folder.iterdir())
        return [ending for path in paths for ending in _read(path)]
    return []


def _read(path: Path) -> Iterable[Ending]:
    try:
        ledger = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # removed just now
        return []
    try:
        fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return []
    except BlockingIOError:
        rows = [
            line.split() for line in os.pread(ledger, _MAX_LEDGER_BYTES, 0).decode().splitlines()
        ]
        return [Ending(path.name, row[0], int(row[1])) for row in rows if len(row) == 2]
    finally:
        os.close(ledger)
