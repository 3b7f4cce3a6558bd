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
import time
from _blake2 import blake2b
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from intercode_sandbox.native import change_stream
from intercode_sandbox.native.change_stream import (
    BLOCK,
    MAX_PATH_BYTES,
    PIECE,
    SHARED_MEMORY,
    ChangeStreamEntry,
)

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to open a regular file that any program may have made."""
_PAGE = 1 << 12
_ZEROS = bytes(_PAGE)
MAX_DEPTH = 300
"""Folders nested deeper are listed but not entered: three descriptors a level are open at once."""
MOST_BYTES = 32 << 20
"""Of all paths that are found, each with some more for itself."""
_ENTRY_BYTES = 64
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}

ChangeFields = tuple[str, str, str, int, int, int, int, str, bool, int]
"""The fields of `sandbox.base.Change`, in order."""


def file_type(mode: int) -> str:
    """Return the name of a file's type."""
    return _TYPES.get(stat.S_IFMT(mode), "device")


def is_whiteout(st: os.stat_result) -> bool:
    """Whether this is overlayfs's mark for "deleted". No agent can make one."""
    return stat.S_ISCHR(st.st_mode) and st.st_rdev == 0


def lstat(name: str, fd: int | None) -> os.stat_result | None:
    """`lstat` in a directory; None if there is no such name (or no such directory)."""
    if fd is None:
        return None
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def directory(name: str, fd: int | None) -> Iterator[int | None]:
    """Open a subdirectory; None where there is none."""
    child = None
    if fd is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            child = os.open(name, DIRECTORY, dir_fd=fd)
    try:
        yield child
    finally:
        if child is not None:
            os.close(child)


@contextmanager
def directories(name: str, fds: Sequence[int]) -> Iterator[list[int]]:
    """Open a subdirectory of all of these directories that have it."""
    found: list[int] = []
    try:
        for fd in fds:
            with suppress(FileNotFoundError, NotADirectoryError):
                found.append(os.open(name, DIRECTORY, dir_fd=fd))
        yield found
    finally:
        for fd in found:
            os.close(fd)


def too_deep() -> OSError:
    """Return the error where the deepest folders cannot be left out."""
    return OSError(errno.EOVERFLOW, f"folders are nested more than {MAX_DEPTH} deep")


class Bounds:
    """Limits of a walk over a tree that an agent has made: bytes of paths, and time.

    Args:
        timeout: In seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        self.room = MOST_BYTES

    def count(self, path: str) -> None:
        """Count a path that was found.

        Raises:
            OSError: These are too many, or too long.
        """
        self.room -= len(path) + _ENTRY_BYTES
        if self.room < 0:
            message = f"the names of what was changed have more than {MOST_BYTES >> 20} MiB"
            raise OSError(errno.EOVERFLOW, message)

    def check_time(self) -> None:
        """Check that there is time left.

        Raises:
            TimeoutError: The time is up.
        """
        if time.monotonic() > self.deadline:
            raise TimeoutError(errno.ETIMEDOUT, "walking over the file system took too long")


class Walker:
    """Compares what the uppers name with lower and collects the changes.

    Raises:
        OSError: See `Bounds`.
    """

    def __init__(self, timeout: float) -> None:
        self.bounds = Bounds(timeout)
        self.entries: list[ChangeFields] = []
        self.whole = True
        """Whether no folder was too deep to enter."""
        self._digests: dict[tuple[int, int], str] = {}

    def walk(self, uppers: Sequence[int], lower: int | None, merged: int, prefix: str = "") -> None:
        """Compare one directory, and what is below it, by `_entry` and `_deleted`."""
        raise NotImplementedError

    def _entry(
        self,
        name: str,
        st: os.stat_result,
        uppers: Sequence[int],
        lower: int | None,
        merged: int,
        path: str,
    ) -> None:
        old = lstat(name, lower)
        if old is not None and is_whiteout(old):
            old = None
        digest = self._digest(name, merged, st)
        if old is None:
            self._emit(path, "added", st, digest)
        elif stat.S_IFMT(old.st_mode) != stat.S_IFMT(st.st_mode):
            self._emit(path, "modified", st, digest)
            if stat.S_ISDIR(old.st_mode):
                self._deleted_children(name, lower, path)
            lower = None  # what it has there is not what is below this
        else:
            content = not stat.S_ISDIR(st.st_mode) and (
                (st.st_size, st.st_rdev) != (old.st_size, old.st_rdev)
                or digest != self._digest(name, lower, old)
            )
            if content or _metadata(st) != _metadata(old):
                self._emit(path, "modified", st, digest, content)
        if stat.S_ISDIR(st.st_mode) and path.count("/") >= MAX_DEPTH:
            self.whole = False
        elif stat.S_ISDIR(st.st_mode):
            with (
                directories(name, uppers) as up,
                directory(name, lower) as low,
                directory(name, merged) as both,
            ):
                if both is not None:  # else it went away just now
                    self.walk(up, low, both, path)

    def _deleted(self, name: str, lower: int | None, path: str) -> None:
        old = lstat(name, lower)
        if old is None or is_whiteout(old):
            return
        self.bounds.count(path)
        self.entries.append((path, "deleted", file_type(old.st_mode), 0, 0, 0, 0, "", True, 0))
        if stat.S_ISDIR(old.st_mode):
            self._deleted_children(name, lower, path)

    def _deleted_children(self, name: str, lower: int | None, path: str) -> None:
        with directory(name, lower) as low:
            if low is not None:
                for child in sorted(os.listdir(low)):
                    self.bounds.check_time()
                    self._deleted(child, low, f"{path}/{child}")

    def _emit(
        self, path: str, kind: str, st: os.stat_result, digest: str, content: bool = True
    ) -> None:
        self.bounds.count(path)
        kinds = file_type(st.st_mode)
        size = st.st_size if kinds in ("file", "symlink") else 0
        mode = stat.S_IMODE(st.st_mode)
        links = st.st_nlink if kinds == "file" else 0
        entry = (path, kind, kinds, mode, st.st_uid, st.st_gid, size, digest, content, links)
        self.entries.append(entry)

    def _digest(self, name: str, fd: int | None, st: os.stat_result) -> str:
        if stat.S_ISLNK(st.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=fd))
            return blake2b(target, digest_size=16).hexdigest()
        if not stat.S_ISREG(st.st_mode):
            return ""
        key = st.st_dev, st.st_ino
        if key not in self._digests:
            file = os.open(name, FILE, dir_fd=fd)
            try:
                digest = content_digest(file, self.bounds.check_time)
            finally:
                os.close(file)
            if st.st_nlink == 1:
                return digest
            self._digests[key] = digest  # it may have any number of names
        return self._digests[key]


def _metadata(st: os.stat_result) -> tuple[int, int, int]:
    return stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid


def content_digest(fd: int, check: Callable[[], None] = lambda: None) -> str:
    """BLAKE2b-128 of a file's size and of its pages that are not all zero, by position.

    A hole and written zeros are the same content and give the same digest; a sparse file of
    terabytes costs only what it holds, wherever in it that is.
    """
    size = os.fstat(fd).st_size
    state = blake2b(size.to_bytes(8, "little"), digest_size=16)
    for offset, block in content(fd, check):
        for start in range(0, len(block), _PAGE):
            page = block[start : start + _PAGE]
            if page != _ZEROS[: len(page)]:
                state.update((offset + start).to_bytes(8, "little"))
                state.update(page)
    return state.hexdigest()


def content(fd: int, check: Callable[[], None]) -> Iterator[tuple[int, bytes]]:
    """Read a file's data, without its holes: offsets, at pages, and at most `BLOCK` bytes each.

    Args:
        fd: The file.
        check: Is called between reads.
    """
    size = os.fstat(fd).st_size
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA) // _PAGE * _PAGE
        except OSError:  # ENXIO: only a hole is left
            return
        end = os.lseek(fd, offset, os.SEEK_HOLE)
        if end <= offset:  # the page's head is a hole; read it all the same
            end = offset + 1
        while offset < end:
            check()
            block = os.pread(fd, min(BLOCK, _whole_pages(end - offset)), offset)
            if not block:
                return
            yield offset, block
            offset += _whole_pages(len(block))


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


_MARKS = {"link": change_stream.LINK_MARK, "deleted": change_stream.DELETED_MARK}
END_OF_STREAM = change_stream.HEAD.pack(change_stream.END_MARK, *[0] * 8)


def packed(entry: ChangeStreamEntry) -> bytes:
    """Return an entry as process 1 writes it."""
    mark = _MARKS.get(
        entry.kind, change_stream.OPAQUE_MARK if entry.opaque else change_stream.PLAIN_MARK
    )
    types = {name: number for number, name in _TYPES.items()}
    mode = entry.mode | types.get(entry.kind, 0)
    path = b"" if entry.path == "." else os.fsencode(entry.path)
    target = os.fsencode(entry.target)
    seconds, nanoseconds = divmod(entry.mtime, 10**9)
    ids, sizes = (entry.uid, entry.gid), (len(path), len(target))
    head = change_stream.HEAD.pack(mark, mode, *ids, seconds, entry.size, nanoseconds, *sizes)
    return head + path + target


class Writer:
    """Writes a stream.

    Args:
        file: Where to.
        bounds: Limits.
    """

    def __init__(self, file: BinaryIO, bounds: Bounds) -> None:
        self.bounds = bounds
        self._file = file
        self._names: dict[tuple[int, int], str] = {}

    def add(self, path: str, name: str, fd: int, st: os.stat_result, opaque: bool = False) -> None:
        """Write the file `name` of the folder `fd`; of a folder not what is in it.

        Raises:
            OSError: It cannot be read, or the reader is gone.
            TimeoutError: See `Bounds`.
        """
        self.bounds.check_time()
        kind, target, size = file_type(st.st_mode), "", 0
        if kind == "device":  # only where programs have rights that ours have not
            raise OSError(errno.EOVERFLOW, "a device cannot be saved", path)
        if kind != "dir" and st.st_nlink > 1:
            target = self._names.setdefault((st.st_dev, st.st_ino), path)
        if target not in ("", path):
            kind = "link"
        elif kind == "symlink":
            target = os.readlink(name, dir_fd=fd)
        elif kind == "file":
            size = st.st_size
        if kind not in ("link", "symlink"):
            target = ""
        times = (st.st_uid, st.st_gid, st.st_mtime_ns)
        self._line(
            ChangeStreamEntry(path, kind, stat.S_IMODE(st.st_mode), *times, target, opaque, size)
        )
        if kind == "file":
            self._content(name, fd)

    def deleted(self, path: str) -> None:
        """Write that a path is deleted."""
        self._line(ChangeStreamEntry(path, "deleted"))

    def end(self) -> None:
        """Write that this was all."""
        self._file.write(END_OF_STREAM)
        self._file.flush()

    def _line(self, entry: ChangeStreamEntry) -> None:
        self._file.write(packed(entry))

    def _content(self, name: str, fd: int) -> None:
        file = os.open(name, FILE, dir_fd=fd)
        try:
            for offset, block in content(file, self.bounds.check_time):
                if block.count(0) < len(block):  # else it may as well be a hole
                    self._file.write(PIECE.pack(offset, len(block)))
                    self._file.write(block)
        finally:
            os.close(file)
        self._file.write(PIECE.pack(0, 0))


def names_in(folders: Sequence[int]) -> set[str]:
    """Return the names in any of these directories."""
    return {name for folder in folders for name in os.listdir(folder)}


def is_opaque(names: set[str], lower: int, merged: int | None) -> bool:
    """Whether lower's children are hidden that no upper names."""
    with os.scandir(lower) as entries:
        for entry in entries:
            if entry.name not in names:
                return lstat(entry.name, merged) is None
    return False


def as_linked(st: os.stat_result, name: str, uppers: Sequence[int]) -> os.stat_result:
    """Return the status with the inode and the count of names that the file has in its layer.

    Where a name was given to a file of the image, merged may show two files.
    """
    (own, *_) = filter(None, (lstat(name, upper) for upper in uppers))
    fields = (st.st_mode, own.st_ino, own.st_dev, own.st_nlink, *st[4:])
    return os.stat_result(fields, st.__reduce__()[1][1])


class LayerWalker(Walker):
    """Compares what the uppers name with lower."""

    def walk(self, uppers: Sequence[int], lower: int | None, merged: int, prefix: str = "") -> None:
        """Compare one directory, and what is below it."""
        names = names_in(uppers)
        for name in sorted(names):
            self.bounds.check_time()
            st = lstat(name, merged)
            if st is None:
                self._deleted(name, lower, f"{prefix}/{name}")
            else:
                self._entry(name, st, uppers, lower, merged, f"{prefix}/{name}")
        if lower is not None and is_opaque(names, lower, merged):
            for name in sorted(set(os.listdir(lower)) - names):
                self._deleted(name, lower, f"{prefix}/{name}")


def changes(uppers: Sequence[int], lower: int, merged: int, timeout: float) -> list[Any]:
    """Return all changes, sorted by path, as JSON-ready tuples."""
    walker = LayerWalker(timeout)
    root, old = os.fstat(merged), os.fstat(lower)
    if _metadata(root) != _metadata(old):
        walker._emit("/", "modified", root, "", content=False)
    walker.walk(uppers, lower, merged)
    return sorted(entry for entry in walker.entries if entry[0] != SHARED_MEMORY)


def write(uppers: Sequence[int], lower: int, merged: int, out: int, timeout: float) -> None:
    """Stream what differs from the image into the descriptor `out`; see the top for the trees.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone; with EOVERFLOW, there is what no layer can hold: folders in
            folders deeper than `MAX_DEPTH`, paths longer than `LONGEST`, or too much of them.
    """
    with open(out, "wb", closefd=False, buffering=BLOCK) as file:
        writer = Writer(file, Bounds(timeout))
        _write_folder(writer, "", uppers, lower, merged)
        writer.end()


def _write_folder(
    writer: Writer, path: str, uppers: Sequence[int], lower: int | None, merged: int
) -> None:
    names = names_in(uppers)
    opaque = lower is not None and is_opaque(names, lower, merged)
    writer.add(path or ".", ".", merged, os.fstat(merged), opaque)
    if names and path.count("/") + 1 >= MAX_DEPTH:
        raise too_deep()
    for name in sorted(names):
        st, old = lstat(name, merged), lstat(name, lower)
        if st is None and old is None:
            continue
        child = f"{path}/{name}" if path else name
        if len(os.fsencode(child)) > MAX_PATH_BYTES:
            message = f"what was changed has a path of more than {MAX_PATH_BYTES} bytes"
            raise OSError(errno.EOVERFLOW, message)
        writer.bounds.count(child)
        if st is None:
            writer.deleted(child)
        elif not stat.S_ISDIR(st.st_mode):
            writer.add(child, name, merged, as_linked(st, name, uppers))
        else:
            below = lower if old is not None and stat.S_ISDIR(old.st_mode) else None
            with (
                directories(name, uppers) as up,
                directory(name, below) as low,
                directory(name, merged) as both,
            ):
                if both is not None:
                    _write_folder(writer, child, up, low, both)
