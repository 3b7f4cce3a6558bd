"""Datasets that are loaded once for all environments of a process, until a file changes.

A loader is `shared`; whatever it looks at on the disk is `seen`, so that a later call can tell in
microseconds whether anything has changed since. Tasks cannot be changed, so none can tell who else
has them.
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

_KEPT = 16
"""Datasets that are kept: those that were asked for last."""
_TICK = 2_000_000_000
"""Nanoseconds within which a change may leave a file's times as they are, on any file system."""

_looked_at: ContextVar[dict[Path, Signature] | None] = ContextVar("looked_at", default=None)


class _Entry:
    """A dataset, once it is loaded, and what it depends on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.files: dict[Path, Signature] = {}
        self.data: Dataset | None = None

    def is_current(self) -> bool:
        return self.data is not None and all(
            _signature(path) == was for path, was in self.files.items()
        )


_entries: OrderedDict[object, _Entry] = OrderedDict()
_lock = threading.Lock()


def seen(path: Path) -> Path:
    """Return a file or folder that a loader is about to look at, and note its state."""
    files = _looked_at.get()
    if files is not None:
        files.setdefault(path, _signature(path))
    return path


def shared(load: Callable[Parameters, Dataset]) -> Callable[Parameters, Dataset]:
    """Make a loader load once for all who ask it for the same, until a file that it saw changes.

    Args:
        load: The loader. It calls `seen` before it looks at a file or a folder, as the functions
            of `intercode.datasets.files` do.
    """

    @functools.wraps(load)
    def loader(*args: Parameters.args, **options: Parameters.kwargs) -> Dataset:
        try:
            asked = (load, args, tuple(sorted(options.items())), Path.cwd(), str(cache_root()))
            entry = _entry(asked)
        except (OSError, TypeError):  # no working directory; an argument that has no hash
            return load(*args, **options)
        with entry.lock:
            if not entry.is_current():
                files: dict[Path, Signature] = {}
                before = _looked_at.set(files)
                try:
                    entry.data, entry.files = load(*args, **options), files
                finally:
                    _looked_at.reset(before)
            outer = _looked_at.get() or {}
            outer |= {path: was for path, was in entry.files.items() if path not in outer}
            assert entry.data is not None  # it is current
            return copy.copy(entry.data)

    return loader


def _entry(asked: object) -> _Entry:
    with _lock:
        entry = _entries.setdefault(asked, _Entry())
        _entries.move_to_end(asked)
        if len(_entries) > _KEPT:
            _entries.popitem(last=False)
        return entry


def _signature(path: Path) -> Signature:
    """Tell a state of a file or folder from every other; None of its parts: it is not there.

    What was changed a moment ago may change again without another time: then its content counts.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    facts = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev)
    content: object = None
    if time.time_ns() - max(facts[:2]) < _TICK:
        with suppress(OSError):
            listed = sorted(path.iterdir()) if path.is_dir() else None
            content = str(listed) if listed else hashlib.sha256(path.read_bytes()).digest()
    return (*facts, content)


def _forget() -> None:
    """In a fork, another thread may have held a lock that nothing would open."""
    global _lock
    _lock = threading.Lock()
    _entries.clear()


os.register_at_fork(after_in_child=_forget)
