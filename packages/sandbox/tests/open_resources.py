"""What this process, and the spawners of its sandboxes, hold of the machine."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from intercode_sandbox.host_files import cache_root
from intercode_sandbox.native import cgroup
from intercode_sandbox.native.spawner import MOUNT_FOLDER
from waiting import eventually

AHEAD = 3
"""The zygote, a child that is forked ahead, and perhaps a sandbox that is made ready ahead."""


def held_once(fits: Callable[[dict[str, int]], bool], provider: Any = None) -> dict[str, int]:
    """What is held as soon as it fits, or at last: what leaks stays, the rest is on its way out."""
    found: dict[str, int] = {}

    def look() -> bool:
        found.update(held(provider))
        return fits(found)

    eventually(look)
    return found


def held(provider: Any = None) -> dict[str, int]:
    """All that could grow; with a provider, what its sandboxes hold, too, and memory in KiB."""
    found = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "processes": sum(descendants(int(task)) for task in os.listdir("/proc/self/task")),
        "mounts": mounts_of("self"),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
    }
    if provider is None:
        return found
    spawner = provider._spawner.process.pid
    # The last sandboxes are on their way out; what is made ahead stays.
    eventually(lambda: len(list(children(spawner))) <= AHEAD)
    # What lives is measured, not what the allocator keeps for the next time.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pattern = f"{cgroup.PREFIX}{os.getpid()}-*/*/"
    return {
        **found,
        "processes": sum(descendants(int(task)) for task in os.listdir("/proc/self/task")),
        "spawner descriptors": sum(1 for _ in own_descriptors(spawner)),
        "spawner mounts": mounts_of(spawner),
        "sandboxes": len(list(children(spawner))),
        # Above those that rest for the next sandboxes.
        "cgroups": sum(
            max(0, len(list(Path(p).glob(pattern))) - cgroup._MAX_IDLE_CGROUPS)
            for p in cgroup.parents()
        ),
        "snapshots": len(list((cache_root() / "snapshots").glob(f"{os.getpid()}-*"))),
        "memory": kilobytes(os.getpid()),
        "spawner memory": kilobytes(spawner),
    }


def mounts_of(process: int | str) -> int:
    """How many mounts of ours a process has; of others there may be more or less meanwhile."""
    return sum(map(is_ours, Path(f"/proc/{process}/mountinfo").read_text().splitlines()))


def is_ours(mount: str) -> bool:
    """Whether a mount of the machine's has to do with what we mount, and where from."""
    point = mount.split()[4]
    on_stage = point == MOUNT_FOLDER or point.startswith(f"{MOUNT_FOLDER}/")
    return on_stage or str(cache_root()) in mount or tempfile.gettempdir() in mount


def kilobytes(pid: int) -> int:
    """Memory of a process, but for files': how much of them is its own depends on who else runs."""
    facts = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status"))
    counted = ("Anonymous:", "RssShmem:")
    return sum(int(line.split()[1]) for line in facts.splitlines() if line.startswith(counted))


def own_descriptors(spawner: int) -> Iterator[str]:
    """All but the identities that are kept for the next sandboxes: at most as many as there were.

    How many ran at once is different each time.
    """
    for link in Path(f"/proc/{spawner}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just been closed
            target = os.readlink(link)
            if not target.startswith(("user:[", "/run/intercode/")):
                yield target


def children(pid: int) -> Iterator[int]:
    """The processes that one has started; none if it has just ended."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    yield from map(int, listed)


def descendants(pid: int) -> int:
    """How many processes are below one."""
    return sum(1 + descendants(child) for child in children(pid))
