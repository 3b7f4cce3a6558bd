"""Frozen layers: files of frozen sandboxes, which a spawner retains in memory.

All frozen layers of this process together must not exceed a quota of bytes. A layer counts until
its last reference in this process ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from intercode_sandbox.errors import SandboxError
from intercode_sandbox.ownership import register_finalizer
from intercode_sandbox.units import MIB

MAX_BYTES_VARIABLE = "INTERCODE_FROZEN_BYTES"
"""Name of the environment variable with the quota. Default: half of the machine's memory."""
_lock = threading.Lock()
_sizes: dict[object, int] = {}
"""An arbitrary key for each frozen layer → its bytes."""


class FrozenLayer:
    """A frozen layer of a spawner. The spawner releases the layer when this object is freed.

    Args:
        name: The layer's name in the spawner.
        owner: The spawner's lease: see `ownership.new_lease`.
        usage: The numbers of the layer's bytes and files.
        release: A function that makes the spawner release the layer of a name.
    """

    def __init__(
        self, name: str, owner: str, usage: tuple[int, int], release: Callable[[str], None]
    ) -> None:
        self.name = name
        self.owner = owner
        self.bytes, self.files = usage
        key = object()
        with _lock:
            _sizes[key] = self.bytes
        register_finalizer(self, _drop, key, release, name)


def _drop(key: object, release: Callable[[str], None], layer_name: str) -> None:
    # A finalizer may run in any thread, even in one that holds the lock. So it takes no lock: a
    # single operation on a dictionary is atomic.
    _sizes.pop(key, None)
    release(layer_name)


def max_bytes() -> int:
    """Return the quota of bytes for all frozen layers of this process.

    Raises:
        SandboxError: The variable `MAX_BYTES_VARIABLE` is not a number.
    """
    with suppress(ValueError):
        return (
            int(os.environ[MAX_BYTES_VARIABLE])
            if MAX_BYTES_VARIABLE in os.environ
            else _half_of_memory()
        )
    raise SandboxError(
        f"{MAX_BYTES_VARIABLE} must be a number of bytes, not {os.environ[MAX_BYTES_VARIABLE]!r}"
    )


def available_bytes() -> int:
    """Return the remaining bytes of the quota for frozen layers; below 0: it is exceeded.

    Raises:
        SandboxError: See `max_bytes`.
    """
    return max_bytes() - sum(list(_sizes.values()))


def quota_error(size: int) -> SandboxError:
    """Return the error for a layer of this many bytes, which exceeds the remaining quota."""
    return SandboxError(
        f"the sandbox's files, {size / MIB:.0f} MiB, cannot be frozen: {len(_sizes)} snapshots "
        f"and forks of this process hold {sum(list(_sizes.values())) / MIB:.0f} of at most "
        f"{max_bytes() / MIB:.0f} MiB. Close or delete some, or set {MAX_BYTES_VARIABLE}"
    )


def _half_of_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
