"""Datasets that are loaded once for all environments of a process, until a file changes.

A loader is `cached_loader`; whatever it looks at on the disk is `track_file`, so that a later call
can tell in microseconds whether anything has changed since. Tasks cannot be changed, so none can
tell who else has them.
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
"""Datasets that are kept: those that were asked for last."""
_TICK = 2_000_000_000
"""Nanoseconds within which a change may leave a file's times as they are, on any file system."""

_observed_files: ContextVar[dict[Path, Signature] | None] = ContextVar("looked_at", default=None)


class _CachedDataset:
    """A dataset, once it is loaded, and what it depends on."""

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
    """Return a file or folder that a loader is about to look at, and note its state."""
    files = _observed_files.get()
    if files is not None:
        files.setdefault(path, _signature(path))
    return path


def cached_loader(load: Callable[Parameters, Dataset]) -> Callable[Parameters, Dataset]:
    """Make a loader load once for all who ask it for the same, until a file that it saw changes.

    Args:
        load: The loader. It calls `track_file` before it looks at a file or a folder, as the
            functions of `intercode.datasets.files` do.
    """

    @functools.wraps(load)
    def loader(*args: Parameters.args, **options: Parameters.kwargs) -> Dataset:
        try:
            cache_key = (load, args, tuple(sorted(options.items())), Path.cwd(), str(cache_root()))
            entry = _entry(cache_key)
        except (OSError, TypeError):  # no working directory; an argument that has no hash
            return load(*args, **options)
        with entry.lock:
            if not entry.is_current():
                files: dict[Path, Signature] = {}
                token = _observed_files.set(files)
                try:
                    entry.data, entry.files = load(*args, **options), files
                finally:
                    _observed_files.reset(token)
            outer_files = _observed_files.get() or {}
            outer_files |= {
                path: signature
                for path, signature in entry.files.items()
                if path not in outer_files
            }
            assert entry.data is not None  # it is current
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
    """Tell a state of a file or folder from every other; None of its parts: it is not there.

    What was changed a moment ago may change again without another time: then its content counts.
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
    """In a fork, another thread may have held a lock that nothing would open."""
    global _lock
    _lock = threading.Lock()
    _entries.clear()


os.register_at_fork(after_in_child=_forget)
