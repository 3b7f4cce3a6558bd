"""A sandbox's changes as a stream, which its process 1 writes, back into a layer folder.

A stream is a head for each file, with its path and its target, folders before what is in them;
behind that of a regular file follow its pieces. Holes are not sent: neither the stream nor what is
made of it is larger than what the sandbox's disk holds. Nothing is left out in silence, or a task's
verification would succeed in a copy of files that the agent had made too deep, too long or too odd
to copy.

A deleted path is the character device 0:0 in a layer, as overlayfs has it, and an opaque folder
has an attribute of overlayfs's. No program in a sandbox can make either.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from intercode_sandbox.native.identity import ID_COUNT

BLOCK = 1 << 16
"""Bytes that are read at once."""
SHARED_MEMORY = "/dev/shm"
"""A folder that every sandbox has, and no layer need have."""
MAX_PATH_BYTES = 3072
"""Bytes of a path in a layer: the machine could not name a longer one where layers are kept."""
_MAX_TARGET_BYTES = 4096
HEAD = struct.Struct("=4IqQ3I4x")
"""The mark, mode, uid, gid, seconds, size, nanoseconds, and bytes of the path and of the target: as
``static/archive.h`` has them."""
PLAIN_MARK, OPAQUE_MARK, LINK_MARK, DELETED_MARK, END_MARK = range(5)
"""The marks of a head."""
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
PIECE = struct.Struct("=QQ")
"""Before each piece: where it begins, and how many bytes it has. One of 0 bytes is the last."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID

Special = tuple[str, int]
"""A path in a layer, and the mode that it has in sandboxes, but not on the machine's disk."""


class StreamError(ValueError):
    """A stream is broken."""


class Entry(NamedTuple):
    """One file of a stream."""

    path: str
    """Without a slash before it; the root is ``.``."""
    kind: str
    """``deleted``, ``link`` (one more name of a file), or as in `sandbox.base.Change`."""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """In nanoseconds."""
    target: str = ""
    """The target of a symbolic link; the first name of a linked file."""
    opaque: bool = False
    """The folder hides what the image has there."""
    size: int = 0


class Reader:
    """Reads a stream: iterate over its entries. After one of a ``file``, `pieces` are due."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[Entry]:
        while (head := HEAD.unpack(self._read_exactly(HEAD.size)))[0] != END_MARK:
            mark, mode, uid, gid, seconds, size, nanoseconds, path_bytes, target_bytes = head
            if mark > END_MARK or path_bytes > MAX_PATH_BYTES or target_bytes > _MAX_TARGET_BYTES:
                raise StreamError(f"the stream is broken at {head}")
            path = os.fsdecode(self._read_exactly(path_bytes)) or "."
            target = os.fsdecode(self._read_exactly(target_bytes))
            mark_kind = {LINK_MARK: "link", DELETED_MARK: "deleted"}.get(mark)
            kind = mark_kind or _TYPES.get(stat.S_IFMT(mode), "device")
            mtime = seconds * 10**9 + nanoseconds
            opaque = mark == OPAQUE_MARK
            yield Entry(path, kind, stat.S_IMODE(mode), uid, gid, mtime, target, opaque, size)

    def pieces(self, entry: Entry) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each piece of a regular file, in their order."""
        end = 0
        while True:
            offset, count = PIECE.unpack(self._read_exactly(PIECE.size))
            if count == 0:
                return
            if offset < end or count > BLOCK or offset + count > entry.size:
                raise StreamError(f"{entry.path!r} has a data block at an invalid position")
            end = offset + count
            yield offset, self._read_exactly(count)

    def _read_exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise StreamError("the stream is cut off")
        return data


def make(reader: Reader, entry: Entry, path: Path) -> None:
    """Make a file of an entry, without its owner, mode and times.

    Args:
        reader: Where the entry came from.
        entry: No link, and nothing deleted.
        path: Its path, where there is nothing yet.

    Raises:
        StreamError, OSError: It is of a kind that no sandbox makes, or cannot be made.
    """
    if entry.kind == "dir":
        path.mkdir(0o700)
    elif entry.kind == "symlink":
        path.symlink_to(entry.target)
    elif entry.kind in ("fifo", "socket"):
        os.mknod(path, stat.S_IFIFO if entry.kind == "fifo" else stat.S_IFSOCK)
    elif entry.kind == "file":
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb", buffering=0) as target:
            for offset, block in reader.pieces(entry):
                os.pwrite(target.fileno(), block, offset)
            target.truncate(entry.size)
    else:
        raise StreamError(f"{entry.path!r} has a type that no sandbox creates: {entry.kind!r}")


def extract(source: int, folder: Path, opaque_attribute: str) -> list[Special]:
    """Read a stream from the descriptor `source` into a new layer folder.

    Nothing is written to but what this has made: a stream of anybody's leads nowhere else.

    Args:
        source: Where to read.
        folder: An existing, empty folder.
        opaque_attribute: ``trusted.overlay.opaque`` as root, ``user.overlay.opaque`` otherwise.

    Returns:
        The files that would run as their owner or group: here they do not.

    Raises:
        StreamError, OSError: The stream is broken, or the folder cannot be written.
    """
    with open(source, "rb", closefd=False, buffering=BLOCK) as file:
        layer = _LayerWriter(Reader(file), folder, opaque_attribute)
        for entry in layer.reader:
            layer.take(entry)
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for entry in reversed(layer.folders.values()):
        layer.set(folder / entry.path, entry)
    return layer.special


class _LayerWriter:
    def __init__(self, reader: Reader, folder: Path, opaque_attribute: str) -> None:
        self.reader = reader
        self.folder = folder
        self.opaque_attribute = opaque_attribute
        self.owner = os.geteuid() == 0
        self.now = time.time_ns()
        self.folders: dict[str, Entry] = {}
        self.files: set[str] = set()
        self.special: list[Special] = []

    def take(self, entry: Entry) -> None:
        """Make the next one."""
        target = self.folder / entry.path
        parent, _, name = entry.path.rpartition("/")
        if entry.kind == "dir" and entry.path == "." and not self.folders:
            pass
        elif (parent or ".") not in self.folders or name in ("", ".", ".."):
            raise StreamError(f"{entry.path!r} is in no folder of the stream")
        elif entry.kind == "link":
            if entry.target not in self.files:
                raise StreamError(f"{entry.path!r} is a link to no file of the stream")
            os.link(self.folder / entry.target, target, follow_symlinks=False)
            return
        elif entry.kind == "deleted":
            os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
        else:
            make(self.reader, entry, target)
        if entry.kind == "dir":
            self.folders[entry.path] = entry
            if entry.opaque:
                os.setxattr(target, self.opaque_attribute, b"y")
        else:
            self.files.add(entry.path)
            self.set(target, entry)

    def set(self, target: Path, entry: Entry) -> None:
        """Give it its owner, mode and times."""
        if not 0 <= entry.uid < ID_COUNT or not 0 <= entry.gid < ID_COUNT:
            raise StreamError(f"{entry.path!r} has an owner id that no sandbox has")
        if self.owner:
            os.chown(target, entry.uid, entry.gid, follow_symlinks=False)
        if entry.kind not in ("symlink", "deleted"):
            mode = entry.mode if entry.kind == "dir" else entry.mode & ~_SPECIAL_BITS
            target.chmod(mode)
            if mode != entry.mode and entry.kind == "file":
                self.special.append((entry.path, entry.mode))
        os.utime(target, ns=(self.now, entry.mtime), follow_symlinks=False)
