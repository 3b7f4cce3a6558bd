"""The stream of a sandbox's changed files, and its extraction to a layer on disk.

Process 1 of the sandbox writes the stream. For each file the stream has a head, then the path, and
the target of a link. Folders come before their content. The pieces of a regular file's content
follow. Holes are not sent. So neither the stream nor its extraction is much larger than the content
of the sandbox's disk.

No file is omitted silently, even if its path is too deep, its name too long, or its kind too odd to
copy. Otherwise a task's verification could succeed in a copy that lacks the agent's files.

In a layer a deleted path is the character device 0:0, as in overlayfs. A folder that hides the
lower layers' folder (an opaque one) has an attribute of overlayfs. No program in a sandbox can
create either.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from intercode_sandbox.native.user_ids import ID_COUNT

BLOCK = 1 << 16
"""Maximum of bytes in a piece, and of bytes read at once."""
SHARED_MEMORY = "/dev/shm"
"""A folder that every sandbox has, even if no layer of its image has it."""
MAX_PATH_BYTES = 3072
"""Maximum of bytes of a path in a stream. With the path of the layer's folder before it, a longer
path would exceed the machine's limit of 4096 bytes."""
_MAX_TARGET_BYTES = 4096
HEAD = struct.Struct("=4IqQ3I4x")
"""The head of a file, in the layout of ``static/archive.h``.

The fields are: mark, mode, uid, gid, seconds of the modification time, size, and nanoseconds of
that time. Then the numbers of bytes of the path and of the target follow.
"""
PLAIN_MARK, OPAQUE_MARK, LINK_MARK, DELETED_MARK, END_MARK = range(5)
"""The possible marks of a head. They denote an ordinary file, an opaque folder, a further hard link
of a file, a deleted path, and the end of the stream."""
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
PIECE = struct.Struct("=QQ")
"""The head of a piece: its offset in the file, and its number of bytes. After the last piece a head
with 0 bytes follows."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID

Special = tuple[str, int]
"""The path of a file with setuid or setgid bits in a layer, and the file's mode in sandboxes.

On the machine's disk the file lacks these bits, which would take effect for the machine's users.
"""


class ChangeStreamError(ValueError):
    """A malformed stream."""


class ChangeStreamEntry(NamedTuple):
    """One file of a stream."""

    path: str
    """Relative path without a leading slash; the root is ``.``."""
    kind: str
    """``deleted``, ``link`` (a further name of a file), or a `FileType` of `base`."""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Modification time in nanoseconds."""
    target: str = ""
    """The target of a symbolic link; for kind ``link``, the path of the file's first name."""
    opaque: bool = False
    """Whether the folder hides the image's folder at the same path."""
    size: int = 0


class ChangeStreamReader:
    """A reader of a stream. Iteration yields the entries.

    After an entry of kind ``file`` the caller must read its `pieces` before the next entry.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[ChangeStreamEntry]:
        while (head := HEAD.unpack(self._read_exactly(HEAD.size)))[0] != END_MARK:
            mark, mode, uid, gid, seconds, size, nanoseconds, path_size, target_size = head
            if mark > END_MARK or path_size > MAX_PATH_BYTES or target_size > _MAX_TARGET_BYTES:
                raise ChangeStreamError(f"the stream is broken at {head}")
            path = os.fsdecode(self._read_exactly(path_size)) or "."
            target = os.fsdecode(self._read_exactly(target_size))
            mark_kind = {LINK_MARK: "link", DELETED_MARK: "deleted"}.get(mark)
            kind = mark_kind or _TYPES.get(stat.S_IFMT(mode), "device")
            mtime = seconds * 10**9 + nanoseconds
            opaque = mark == OPAQUE_MARK
            yield ChangeStreamEntry(
                path, kind, stat.S_IMODE(mode), uid, gid, mtime, target, opaque, size
            )

    def pieces(self, entry: ChangeStreamEntry) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each piece of a regular file, in order."""
        previous_end = 0
        while True:
            offset, byte_count = PIECE.unpack(self._read_exactly(PIECE.size))
            if byte_count == 0:
                return
            if offset < previous_end or byte_count > BLOCK or offset + byte_count > entry.size:
                raise ChangeStreamError(f"{entry.path!r} has a data block at an invalid position")
            previous_end = offset + byte_count
            yield offset, self._read_exactly(byte_count)

    def _read_exactly(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) < count:
            raise ChangeStreamError("the stream is cut off")
        return content


def make(reader: ChangeStreamReader, entry: ChangeStreamEntry, path: Path) -> None:
    """Create the file of an entry, without setting its owner, mode and times.

    Args:
        reader: The reader that has yielded the entry.
        entry: Any entry except a link or a deleted path.
        path: The path of the new file, which must not exist.

    Raises:
        ChangeStreamError: No sandbox creates files of this kind, or the stream is malformed.
        OSError: The file cannot be created.
    """
    if entry.kind == "dir":
        path.mkdir(0o700)
    elif entry.kind == "symlink":
        path.symlink_to(entry.target)
    elif entry.kind in ("fifo", "socket"):
        os.mknod(path, stat.S_IFIFO if entry.kind == "fifo" else stat.S_IFSOCK)
    elif entry.kind == "file":
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            for offset, block in reader.pieces(entry):
                os.pwrite(file.fileno(), block, offset)
            file.truncate(entry.size)
    else:
        raise ChangeStreamError(
            f"{entry.path!r} has a type that no sandbox creates: {entry.kind!r}"
        )


def extract(stream_fd: int, folder: Path, opaque_attribute: str) -> list[Special]:
    """Extract a stream into the folder of a new layer.

    The extraction writes only to files that it has created. So even a hostile stream cannot change
    files outside the folder.

    Args:
        stream_fd: A descriptor from which the stream is read.
        folder: An existing, empty folder.
        opaque_attribute: The attribute of opaque folders: ``trusted.overlay.opaque`` as root,
            ``user.overlay.opaque`` otherwise.

    Returns:
        The files with setuid or setgid bits, which the extracted files lack.

    Raises:
        StreamError, OSError: The stream is malformed, or the folder cannot be written.
    """
    with open(stream_fd, "rb", closefd=False, buffering=BLOCK) as stream:
        extractor = _LayerExtractor(ChangeStreamReader(stream), folder, opaque_attribute)
        for entry in extractor.reader:
            extractor.take(entry)
    # Modes and times of folders are set last, because writing into a folder changes its times, and
    # the final mode may forbid the writing. For the same reason the deepest folder comes first.
    for entry in reversed(extractor.folders.values()):
        extractor.set(folder / entry.path, entry)
    return extractor.special


class _LayerExtractor:
    def __init__(self, reader: ChangeStreamReader, folder: Path, opaque_attribute: str) -> None:
        self.reader = reader
        self.folder = folder
        self.opaque_attribute = opaque_attribute
        self.owner = os.geteuid() == 0
        self.now = time.time_ns()
        self.folders: dict[str, ChangeStreamEntry] = {}
        self.files: set[str] = set()
        self.special: list[Special] = []

    def take(self, entry: ChangeStreamEntry) -> None:
        """Create the file of an entry, the next of the stream.

        Raises:
            ChangeStreamError: The entry is malformed, or leads out of the layer.
        """
        file_path = self.folder / entry.path
        parent, _, name = entry.path.rpartition("/")
        if entry.kind == "dir" and entry.path == "." and not self.folders:
            pass
        elif (parent or ".") not in self.folders or name in ("", ".", ".."):
            raise ChangeStreamError(f"{entry.path!r} is in no folder of the stream")
        elif entry.kind == "link":
            if entry.target not in self.files:
                raise ChangeStreamError(f"{entry.path!r} is a link to no file of the stream")
            os.link(self.folder / entry.target, file_path, follow_symlinks=False)
            return
        elif entry.kind == "deleted":
            os.mknod(file_path, stat.S_IFCHR, os.makedev(0, 0))
        else:
            make(self.reader, entry, file_path)
        if entry.kind == "dir":
            self.folders[entry.path] = entry
            if entry.opaque:
                os.setxattr(file_path, self.opaque_attribute, b"y")
        else:
            self.files.add(entry.path)
            self.set(file_path, entry)

    def set(self, file_path: Path, entry: ChangeStreamEntry) -> None:
        """Set a file's owner (only as root), mode and times.

        The setuid and setgid bits of a regular file are only recorded in `special`.

        Raises:
            ChangeStreamError: The owner has an id that no sandbox has.
        """
        if not 0 <= entry.uid < ID_COUNT or not 0 <= entry.gid < ID_COUNT:
            raise ChangeStreamError(f"{entry.path!r} has an owner id that no sandbox has")
        if self.owner:
            os.chown(file_path, entry.uid, entry.gid, follow_symlinks=False)
        if entry.kind not in ("symlink", "deleted"):
            mode = entry.mode if entry.kind == "dir" else entry.mode & ~_SPECIAL_BITS
            file_path.chmod(mode)
            if mode != entry.mode and entry.kind == "file":
                self.special.append((entry.path, entry.mode))
        os.utime(file_path, ns=(self.now, entry.mtime), follow_symlinks=False)
