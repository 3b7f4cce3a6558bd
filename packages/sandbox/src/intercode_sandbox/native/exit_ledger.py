"""Ledgers: lists, in files, of closed sandboxes that the kernel has not ended yet.

The kernel may need minutes to end programs: for instance, it walks a file's list of locks once for
each descriptor of the file. No caller waits so long. The sandbox's spawner keeps the ids, the
cgroup and the memory of such a sandbox until its end, and lists the sandbox in a ledger. Each
spawner has one ledger, which it keeps locked. An unlocked ledger belongs to a spawner that has
ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LEDGERS = "endings"
"""Name of the folder of ledgers, in the cache folder."""
_MAX_LEDGER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EndingSandbox:
    """A closed sandbox that the kernel is still ending."""

    lease: str
    """The lease of the sandbox's spawner: see `ownership.new_lease`."""
    name: str
    """The name of the sandbox's cgroup."""
    pid: int
    """The pid of the sandbox's process 1, in the spawner's pid namespace."""


def open_ledger(folder: Path, lease: str) -> int:
    """Create a spawner's ledger, lock it, and return its descriptor.

    Copies of the descriptor share the lock.

    Args:
        folder: The folder of ledgers.
        lease: The spawner's lease, the name of the file.

    Raises:
        OSError: The ledger cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        ledger = os.open(folder / lease, flags, 0o600)
        fcntl.flock(ledger, fcntl.LOCK_EX)
        # If another process removed the file before this process locked it, the file has no name
        # any more. The loop then creates a new file.
        if os.fstat(ledger).st_nlink:
            return ledger
        os.close(ledger)


def write_ledger(ledger: int, sandbox_pids: Mapping[str, int]) -> None:
    """Replace the content of a ledger.

    Args:
        ledger: The descriptor of the ledger.
        sandbox_pids: For each ending sandbox, the name of its cgroup → the pid of its process 1.
    """
    content = "".join(f"{name} {pid}\n" for name, pid in sandbox_pids.items()).encode()
    with suppress(OSError):  # on a full disk the list is incomplete: reports lack sandboxes
        os.ftruncate(ledger, 0)
        os.pwrite(ledger, content, 0)


def read_ledgers(folder: Path) -> list[EndingSandbox]:
    """Return the sandboxes that are still ending; remove the ledgers of ended spawners."""
    with suppress(OSError):  # the folder does not exist yet, or belongs to another user
        paths = sorted(folder.iterdir())
        return [ending for path in paths for ending in _read(path)]
    return []


def _read(path: Path) -> Iterable[EndingSandbox]:
    try:
        ledger = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # another process has just removed the ledger
        return []
    try:
        fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return []
    except BlockingIOError:
        rows = [
            line.split() for line in os.pread(ledger, _MAX_LEDGER_BYTES, 0).decode().splitlines()
        ]
        return [EndingSandbox(path.name, row[0], int(row[1])) for row in rows if len(row) == 2]
    finally:
        os.close(ledger)
