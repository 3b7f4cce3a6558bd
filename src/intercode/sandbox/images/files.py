"""Folders and locks: what the cache needs of the file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


def remove_tree(path: Path) -> None:
    """Remove a folder with all in it, read-only and unreadable directories too. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
    for _ in range(3):  # another process may be removing the same tree
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return
        _open_up(path)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _open_up(path: Path) -> None:
    """Let its owner list and empty every directory of a tree."""
    with contextlib.suppress(OSError):
        path.chmod(0o700)
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                _open_up(Path(entry.path))


def tree_size(path: Path) -> int:
    """Bytes that a folder takes on disk; a file with several names counts once."""
    total = 0
    seen: set[tuple[int, int]] = set()
    pending = [path]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                pending.append(Path(entry.path))
            elif info.st_nlink > 1:
                if (info.st_dev, info.st_ino) in seen:
                    continue
                seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[int | None]:
    """Hold a lock among processes and threads for as long as the block runs.

    Yields its descriptor (a child that inherits it prolongs the lock), or None if it is taken and
    we are not to wait. The file is removed by who last held it alone.
    """
    descriptor = _acquire(path, shared, wait)
    if descriptor is None:
        yield None
        return
    try:
        yield descriptor
    finally:
        if not shared:
            path.unlink(missing_ok=True)  # before the lock is let go: see _acquire
        os.close(descriptor)


def _acquire(path: Path, shared: bool, wait: bool) -> int | None:
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, operation)
            # Its last holder may have removed the file while we waited; then ours locks nothing.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
