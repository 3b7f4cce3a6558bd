"""Ledgers of sandboxes that were closed, and that the kernel has not ended yet.

The kernel may need minutes to end programs: it walks a file's list of locks once for each
descriptor of the file, for instance. No caller waits for that. A spawner keeps the ids, the cgroup
and the memory of such a sandbox until its end, and names the sandbox in a ledger. A spawner holds
its ledger locked: an unlocked ledger is of a spawner that has ended.
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
    """A sandbox that was closed, and that the kernel still ends."""

    lease: str
    """The name of the sandbox's spawner."""
    name: str
    """The name of the sandbox's cgroup."""
    pid: int
    """The sandbox's process 1, as the spawner sees it."""


def open_ledger(folder: Path, lease: str) -> int:
    """Return a locked descriptor of a spawner's new ledger. Its copies share the lock.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        ledger = os.open(folder / lease, flags, 0o600)
        fcntl.flock(ledger, fcntl.LOCK_EX)
        if os.fstat(ledger).st_nlink:  # else a sweep came between the two
            return ledger
        os.close(ledger)


def write_ledger(ledger: int, sandboxes: Mapping[str, int]) -> None:
    """Replace the content of a ledger by these names of cgroups, and pids."""
    text = "".join(f"{name} {pid}\n" for name, pid in sandboxes.items()).encode()
    with suppress(OSError):  # the disk is full: the ends are counted nowhere, and come all the same
        os.ftruncate(ledger, 0)
        os.pwrite(ledger, text, 0)


def read_ledgers(folder: Path) -> list[Ending]:
    """List the sandboxes that are still ending, and remove the ledgers of spawners that ended."""
    with suppress(OSError):  # there is no folder yet, or none of ours
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
