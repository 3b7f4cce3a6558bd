"""A cache of loaded datasets, which all environments of a process share.

The decorator `cached_loader` adds the cache to a loader. The loader passes each path that it reads
to `track_file`. A later call compares the state of these paths, which takes microseconds, and loads
the dataset again only if a file has changed. Environments can share tasks, because tasks are
immutable.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec

from intercode.task import Dataset
from intercode_sandbox.host_files import cache_root

Parameters = ParamSpec("Parameters")
Signature = tuple[object, ...]

_MAX_ENTRIES = 16
"""The maximum number of cached datasets. The cache keeps the most recently requested datasets."""
_TICK = 2_000_000_000
"""The coarsest resolution of file times on any file system, in nanoseconds. Two changes of a file
within this interval may leave the same times."""

_observed_files: ContextVar[dict[Path, Signature] | None] = ContextVar(
    "observed_files", default=None
)


class _CachedDataset:
    """A cache entry: a dataset, and the signatures of the files from which it was loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: dict[Path, Signature] = {}
        self.data: Dataset | None = None

    def is_current(self) -> bool:
        return self.data is not None and all(
            _signature(path) == signature for path, signature in self.files.items()
        )


_entries: OrderedDict[object, _CachedDataset] = OrderedDict()
_lock = threading.Lock()


def track_file(path: Path) -> Path:
    """Record the state of a file or folder for the cache, and return the path.

    A loader calls this function before it reads the path.
    """
    files = _observed_files.get()
    if files is not None:
        files.setdefault(path, _signature(path))
    return path


def cached_loader(load: Callable[Parameters, Dataset]) -> Callable[Parameters, Dataset]:
    """Decorate a loader with a cache.

    Calls with equal arguments use the same cached dataset until a tracked file changes. The working
    directory and InterCode's cache folder count as arguments. Each call returns a shallow copy of
    the cached dataset. Without a working directory, or with an argument that is not hashable, the
    loader is called each time.

    Args:
        load: The loader. The loader must call `track_file` before it reads a file or a folder; the
            functions of `intercode.datasets.files` do so.
    """

    @functools.wraps(load)
    def loader(*args: Parameters.args, **options: Parameters.kwargs) -> Dataset:
        try:
            cache_key = (load, args, tuple(sorted(options.items())), Path.cwd(), str(cache_root()))
            entry = _entry(cache_key)
        # The working directory does not exist, or an argument is not hashable: without a key,
        # there is no caching.
        except (OSError, TypeError):
            return load(*args, **options)
        with entry.lock:
            if not entry.is_current():
                files: dict[Path, Signature] = {}
                token = _observed_files.set(files)
                try:
                    entry.data, entry.files = load(*args, **options), files
                finally:
                    _observed_files.reset(token)
            outer_files = _observed_files.get()
            # If another cached loader calls this loader, its dataset depends on the same files.
            if outer_files is not None:
                for path, signature in entry.files.items():
                    outer_files.setdefault(path, signature)
            assert entry.data is not None  # the entry is current, or was loaded above
            return copy.copy(entry.data)

    return loader


def _entry(cache_key: object) -> _CachedDataset:
    with _lock:
        entry = _entries.setdefault(cache_key, _CachedDataset())
        _entries.move_to_end(cache_key)
        if len(_entries) > _MAX_ENTRIES:
            _entries.popitem(last=False)
        return entry


def _signature(path: Path) -> Signature:
    """Return a value that identifies the state of a file or folder; empty if it does not exist.

    The value contains the file times, the size, the inode and the device. If the last change is
    younger than `_TICK`, another change could leave the same times. The value then also contains
    the SHA-256 of the file, or the entries of the folder.
    """
    try:
        status = path.stat()
    except OSError:
        return ()
    facts = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)
    content: object = None
    if time.time_ns() - max(facts[:2]) < _TICK:
        with suppress(OSError):
            entries = sorted(path.iterdir()) if path.is_dir() else None
            content = str(entries) if entries else hashlib.sha256(path.read_bytes()).digest()
    return (*facts, content)


def _forget() -> None:
    """Reset the cache in a forked child process.

    Another thread of the parent may have held a lock at the fork. In the child, nothing would
    release that lock.
    """
    global _lock
    _lock = threading.Lock()
    _entries.clear()


os.register_at_fork(after_in_child=_forget)
