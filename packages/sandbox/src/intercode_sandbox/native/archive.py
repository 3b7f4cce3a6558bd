"""The stream of a sandbox's changes, written by its process 1, and its extraction to a layer.

A stream is a head for each file, with its path and its target; folders come before their content.
The pieces of a regular file follow its head. Holes are not sent: neither the stream nor its
extraction is larger than the content of the sandbox's disk. No file is omitted silently. Otherwise
a task's verification could succeed in a copy that lacks the agent's files: files too deep, too long
or too odd to copy.

In a layer a deleted path is the character device 0:0, as in overlayfs, and an opaque folder has an
attribute of overlayfs. No program in a sandbox can make either.
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
"""Maximum of bytes read at once."""
SHARED_MEMORY = "/dev/shm"
"""A folder of every sandbox that a layer may lack."""
MAX_PATH_BYTES = 3072
"""Maximum of bytes in a layer's path: the machine could not name a longer path in the folder of
layers."""
_MAX_TARGET_BYTES = 4096
HEAD = struct.Struct("=4IqQ3I4x")
"""The mark, mode, uid, gid, seconds, size, nanoseconds, and bytes of the path and of the target, in
the layout of ``static/archive.h``."""
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
"""Head of each piece: its offset, and its number of bytes. A piece of 0 bytes is the last."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID

Special = tuple[str, int]
"""A path in a layer, and its mode in sandboxes, which the file on the machine's disk lacks."""


class StreamError(ValueError):
    """A malformed stream."""


class Entry(NamedTuple):
    """One file of a stream."""

    path: str
    """Relative path without a leading slash; the root is ``.``."""
    kind: str
    """``deleted``, ``link`` (one more name of a file), or a `FileType` of `base`."""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Modification time in nanoseconds."""
    target: str = ""
    """The target of a symbolic link; the first name of a linked file."""
    opaque: bool = False
    """Whether the folder hides the image's content at its path."""
    size: int = 0


class Reader:
    """Reader of a stream: iterate over its entries. After a ``file`` entry, read its `pieces`."""

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
        """Yield the offset and the bytes of each piece of a regular file, in order."""
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
        content = self._file.read(count)
        if len(content) < count:
            raise StreamError("the stream is cut off")
        return content


def make(reader: Reader, entry: Entry, path: Path) -> None:
    """Create the file of an entry, without its owner, mode and times.

    Args:
        reader: The reader that yielded the entry.
        entry: Any entry except a link or a deleted path.
        path: The new file's path; nothing exists there yet.

    Raises:
        StreamError, OSError: No sandbox creates files of this kind, or the file cannot be created.
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
    """Extract a stream from the descriptor `source` into a new layer folder.

    Only files that the extraction has created are written: even a hostile stream leads nowhere
    else.

    Args:
        source: A readable descriptor.
        folder: An existing, empty folder.
        opaque_attribute: ``trusted.overlay.opaque`` as root, ``user.overlay.opaque`` otherwise.

    Returns:
        Files with setuid or setgid bits, which their copies on this machine lack.

    Raises:
        StreamError, OSError: The stream is malformed, or the folder cannot be written.
    """
    with open(source, "rb", closefd=False, buffering=BLOCK) as file:
        layer = _LayerExtractor(Reader(file), folder, opaque_attribute)
        for entry in layer.reader:
            layer.take(entry)
    # Last and deepest first: a write into a folder changes its times, and may need its old mode.
    for entry in reversed(layer.folders.values()):
        layer.set(folder / entry.path, entry)
    return layer.special


class _LayerExtractor:
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
        """Create the file of the next entry."""
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
        """Set a file's owner, mode and times."""
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
