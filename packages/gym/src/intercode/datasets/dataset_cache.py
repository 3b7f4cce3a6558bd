"""Cache of loaded datasets, shared by all environments of a process until a file changes.

The decorator `cached_loader` caches a loader. The loader passes each path that it reads to
`track_file`, so a later call detects any change in microseconds. Sharing is safe, because tasks
are immutable.
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
from intercode_sandbox.files import cache_root

Parameters = ParamSpec("Parameters")
Signature = tuple[object, ...]

_MAX_ENTRIES = 16
"""Maximum number of cached datasets, the most recently requested."""
_TICK = 2_000_000_000
"""Nanoseconds within which two changes may have the same file times, on any file system."""

_observed_files: ContextVar[dict[Path, Signature] | None] = ContextVar(
    "observed_files", default=None
)


class _CachedDataset:
    """A cache entry: a dataset once loaded, and the signatures of the files that it depends on."""

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
    """Record the state of a file or folder before a loader reads it; return the path."""
    files = _observed_files.get()
    if files is not None:
        files.setdefault(path, _signature(path))
    return path


def cached_loader(load: Callable[Parameters, Dataset]) -> Callable[Parameters, Dataset]:
    """Decorate a loader with a cache for equal arguments, until a tracked file changes.

    The working directory and the cache folder count as arguments. Each call returns a shallow copy
    of the cached dataset.

    Args:
        load: The loader. The loader must call `track_file` before it reads a file or a folder; the
            functions of `intercode.datasets.files` do so.
    """

    @functools.wraps(load)
    def loader(*args: Parameters.args, **options: Parameters.kwargs) -> Dataset:
        try:
            cache_key = (load, args, tuple(sorted(options.items())), Path.cwd(), str(cache_root()))
            entry = _entry(cache_key)
        except (OSError, TypeError):  # no working directory, or an argument without a hash
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
            if outer_files is not None:  # another loader calls this one
                for path, signature in entry.files.items():
                    outer_files.setdefault(path, signature)
            assert entry.data is not None  # the entry is current
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
    """Return a value that identifies the state of a file or folder; empty if absent.

    A file that changed within `_TICK` may change again with the same times. The signature therefore
    includes the content: the SHA-256 of a file, or the entries of a folder.
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
    """Reset the cache in a forked child: a lock of another thread would never be released."""
    global _lock
    _lock = threading.Lock()
    _entries.clear()


os.register_at_fork(after_in_child=_forget)
