"""The walk over an overlay's trees in Python: what the one in C must find, too.

Trees are walked side by side: the *uppers* (what was written, since the last freeze and before
it), *lower* (the image) and *merged* (what the sandbox sees). The uppers only name what may differ;
merged tells what has become of it. It also tells whether a directory is opaque, so that no overlay
attribute need be readable: if a lower child that no upper names is not visible, it was deleted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import Any

from intercode.sandbox.docker.inside import diff
from intercode.sandbox.docker.inside.compare import Writer
from intercode.sandbox.native.archive import BLOCK, LONGEST, SHARED_MEMORY


def names_in(folders: Sequence[int]) -> set[str]:
    """Return the names in any of these directories."""
    return {name for folder in folders for name in os.listdir(folder)}


def is_opaque(names: set[str], lower: int, merged: int | None) -> bool:
    """Whether lower's children are hidden that no upper names."""
    with os.scandir(lower) as entries:
        for entry in entries:
            if entry.name not in names:
                return diff.lstat(entry.name, merged) is None
    return False


def as_linked(st: os.stat_result, name: str, uppers: Sequence[int]) -> os.stat_result:
    """Return the status with the inode and the count of names that the file has in its layer.

    Where a name was given to a file of the image, merged may show two files.
    """
    (own, *_) = filter(None, (diff.lstat(name, upper) for upper in uppers))
    fields = (st.st_mode, own.st_ino, own.st_dev, own.st_nlink, *st[4:])
    return os.stat_result(fields, st.__reduce__()[1][1])


class Walker(diff.Walker):
    """Compares what the uppers name with lower."""

    def walk(self, uppers: Sequence[int], lower: int | None, merged: int, prefix: str = "") -> None:
        """Compare one directory, and what is below it."""
        names = names_in(uppers)
        for name in sorted(names):
            self.bounds.check_time()
            st = diff.lstat(name, merged)
            if st is None:
                self._deleted(name, lower, f"{prefix}/{name}")
            else:
                self._entry(name, st, uppers, lower, merged, f"{prefix}/{name}")
        if lower is not None and is_opaque(names, lower, merged):
            for name in sorted(set(os.listdir(lower)) - names):
                self._deleted(name, lower, f"{prefix}/{name}")


def changes(uppers: Sequence[int], lower: int, merged: int, timeout: float) -> list[Any]:
    """Return all changes, sorted by path, as JSON-ready tuples."""
    walker = Walker(timeout)
    root, old = os.fstat(merged), os.fstat(lower)
    if diff._metadata(root) != diff._metadata(old):
        walker._emit("/", "modified", root, "", content=False)
    walker.walk(uppers, lower, merged)
    return sorted(entry for entry in walker.entries if entry[0] != SHARED_MEMORY)


def write(uppers: Sequence[int], lower: int, merged: int, out: int, timeout: float) -> None:
    """Stream what differs from the image into the descriptor `out`; see the top for the trees.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone; with EOVERFLOW, there is what no layer can hold: folders in
            folders deeper than `diff.MAX_DEPTH`, paths longer than `LONGEST`, or too much of them.
    """
    with open(out, "wb", closefd=False, buffering=BLOCK) as file:
        writer = Writer(file, diff.Bounds(timeout))
        _write_folder(writer, "", uppers, lower, merged)
        writer.end()


def _write_folder(
    writer: Writer, path: str, uppers: Sequence[int], lower: int | None, merged: int
) -> None:
    names = names_in(uppers)
    opaque = lower is not None and is_opaque(names, lower, merged)
    writer.add(path or ".", ".", merged, os.fstat(merged), opaque)
    if names and path.count("/") + 1 >= diff.MAX_DEPTH:
        raise diff.too_deep()
    for name in sorted(names):
        st, old = diff.lstat(name, merged), diff.lstat(name, lower)
        if st is None and old is None:
            continue
        child = f"{path}/{name}" if path else name
        if len(os.fsencode(child)) > LONGEST:
            message = f"what was changed has a path of more than {LONGEST} bytes"
            raise OSError(errno.EOVERFLOW, message)
        writer.bounds.count(child)
        if st is None:
            writer.deleted(child)
        elif not stat.S_ISDIR(st.st_mode):
            writer.add(child, name, merged, as_linked(st, name, uppers))
        else:
            below = lower if old is not None and stat.S_ISDIR(old.st_mode) else None
            with (
                diff.directories(name, uppers) as up,
                diff.directory(name, below) as low,
                diff.directory(name, merged) as both,
            ):
                if both is not None:
                    _write_folder(writer, child, up, low, both)
