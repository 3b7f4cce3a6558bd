"""What a spawner that was killed may have left — empty cgroups, snapshots — and its removal.

Processes, mounts and files in memory cannot be left: they end with their sandbox's process 1,
which ends with the spawner or the caller.
"""

from __future__ import annotations

from pathlib import Path

from intercode.sandbox.native import lease, snapshot
from intercode.sandbox.native.cgroup import PREFIX, parents, remove_all


def sweep(dry_run: bool = False) -> list[str]:
    """Remove what belongs to callers that are gone; the paths that were found."""
    found = []
    for parent in parents():
        for folder in Path(parent).glob(f"{PREFIX}*"):
            if not lease.is_gone(folder.name.removeprefix(PREFIX)):
                continue
            found.append(str(folder))
            if not dry_run:
                remove_all(folder.name.removeprefix(PREFIX))
    return found + snapshot.sweep(dry_run)
