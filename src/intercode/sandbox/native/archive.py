"""A sandbox's upper layer as a stream, and back into a layer folder.

A stream is a line of JSON for each file, folders before what is in them; behind the line of a
regular file follow its pieces. Holes are not sent: neither the stream nor what is made of it is
larger than what the sandbox's disk holds. Nothing is left out in silence, or a task's verification
would succeed in a copy of files that the agent had made too deep, too long or too odd to copy.

A deleted path is the character device 0:0 in a layer, as overlayfs has it, and an opaque folder
has an attribute of overlayfs's. No program in a sandbox can make either.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from intercode.sandbox.native import diff
from intercode.sandbox.native.identity import ID_COUNT

LONGEST = 3072
"""Bytes of a path in a layer: the machine could not name a longer one where layers are kept."""
_LONGEST_LINE = 1 << 20
"""Bytes. Two paths of `diff.MAX_DEPTH` names are in one, and JSON may need six bytes for each."""
_PIECE = struct.Struct("=QQ")
"""Before each piece: where it begins, and how many bytes it has. One of 0 bytes is the last."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID

Special = tuple[str, int]
"""A path in a layer, and the mode that it has in sandboxes, but not on the machine's disk."""


class StreamError(ValueError):
    """A stream is broken."""


class Entry(NamedTuple):
    """The fields of a line."""

    path: str
    """Without a slash before it; the root is ``.``."""
    kind: str
    """``deleted``, ``link`` (one more name of a file), or as `diff.file_type` has it."""
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


class Writer:
    """Writes a stream.

    Args:
        file: Where to.
        bounds: Limits.
    """

    def __init__(self, file: BinaryIO, bounds: diff.Bounds) -> None:
        self.bounds = bounds
        self._file = file
        self._names: dict[tuple[int, int], str] = {}

    def add(self, path: str, name: str, fd: int, st: os.stat_result, opaque: bool = False) -> None:
        """Write the file `name` of the folder `fd`; of a folder not what is in it.

        Raises:
            OSError: It cannot be read, or the reader is gone.
            TimeoutError: See `diff.Bounds`.
        """
        self.bounds.check_time()
        kind, target, size = diff.file_type(st.st_mode), "", 0
        if kind == "device":  # only where programs have rights that ours have not
            raise OSError(errno.EOVERFLOW, "a device cannot be saved", path)
        if kind != "dir" and st.st_nlink > 1:
            target = self._names.setdefault((st.st_dev, st.st_ino), path)
        if target not in ("", path):
            kind = "link"
        elif kind == "symlink":
            target = os.readlink(name, dir_fd=fd)
        elif kind == "file":
            target, size = "", st.st_size
        times = (st.st_uid, st.st_gid, st.st_mtime_ns)
        self._line(Entry(path, kind, stat.S_IMODE(st.st_mode), *times, target, opaque, size))
        if kind == "file":
            self._content(name, fd)

    def deleted(self, path: str) -> None:
        """Write that a path is deleted."""
        self._line(Entry(path, "deleted"))

    def end(self) -> None:
        """Write that this was all."""
        self._file.write(b"\n")
        self._file.flush()

    def _line(self, entry: Entry) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def _content(self, name: str, fd: int) -> None:
        file = os.open(name, diff.FILE, dir_fd=fd)
        try:
            for offset, block in diff.content(file, self.bounds.check_time):
                if block.count(0) < len(block):  # else it may as well be a hole
                    self._file.write(_PIECE.pack(offset, len(block)))
                    self._file.write(block)
        finally:
            os.close(file)
        self._file.write(_PIECE.pack(0, 0))


class Reader:
    """Reads a stream: iterate over its entries. After one of a ``file``, `pieces` are due."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[Entry]:
        while (line := self._file.readline(_LONGEST_LINE)) != b"\n":
            try:
                entry = Entry(*json.loads(line))
                entry = entry._replace(path=_local(entry.path), target=_local(entry.target))
            except (AttributeError, TypeError, ValueError) as error:
                raise StreamError(f"the stream is broken at {line[:80]!r}") from error
            if [type(field) for field in entry] != _KINDS:
                raise StreamError(f"the stream has odd fields: {line[:80]!r}")
            yield entry

    def pieces(self, entry: Entry) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the bytes of each piece of a regular file, in their order."""
        end = 0
        while True:
            offset, count = _PIECE.unpack(self._exactly(_PIECE.size))
            if count == 0:
                return
            if offset < end or count > diff.BLOCK or offset + count > entry.size:
                raise StreamError(f"{entry.path!r} has a piece where none can be")
            end = offset + count
            yield offset, self._exactly(count)

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise StreamError("the stream breaks off")
        return data


def _local(path: str) -> str:
    """Return a path in this process's encoding. In the sandbox's it is UTF-8."""
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


_KINDS = [str, str, int, int, int, int, str, bool, int]


def write(uppers: Sequence[int], lower: int, merged: int, out: int, timeout: float) -> None:
    """Stream what differs from the image into the descriptor `out`; see `diff` for the trees.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone; with EOVERFLOW, there is what no layer can hold: folders in
            folders deeper than `diff.MAX_DEPTH`, paths longer than `LONGEST`, or too much of them.
    """
    with open(out, "wb", closefd=False, buffering=diff.BLOCK) as file:
        writer = Writer(file, diff.Bounds(timeout))
        _write_folder(writer, "", uppers, lower, merged)
        writer.end()


def _write_folder(
    writer: Writer, path: str, uppers: Sequence[int], lower: int | None, merged: int
) -> None:
    names = diff.names_in(uppers)
    opaque = lower is not None and diff.is_opaque(names, lower, merged)
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
            writer.add(child, name, merged, st)
        else:
            below = lower if old is not None and stat.S_ISDIR(old.st_mode) else None
            with (
                diff.directories(name, uppers) as up,
                diff.directory(name, below) as low,
                diff.directory(name, merged) as both,
            ):
                if both is not None:
                    _write_folder(writer, child, up, low, both)


def make(reader: Reader, entry: Entry, name: str, flags: int, fd: int | None = None) -> None:
    """Make a file of an entry, without its owner, mode and times.

    Args:
        reader: Where the entry came from.
        entry: No link, and nothing deleted.
        name: Its name, in the folder `fd` if there is one.
        flags: To open a regular file with.
        fd: A descriptor of its folder.

    Raises:
        StreamError, OSError: It is of a kind that no sandbox makes, or cannot be made.
    """
    if entry.kind == "dir":
        os.mkdir(name, 0o700, dir_fd=fd)
    elif entry.kind == "symlink":
        os.symlink(entry.target, name, dir_fd=fd)
    elif entry.kind in ("fifo", "socket"):
        os.mknod(name, stat.S_IFIFO if entry.kind == "fifo" else stat.S_IFSOCK, dir_fd=fd)
    elif entry.kind == "file":
        flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=fd), "wb", buffering=0) as out:
            for offset, block in reader.pieces(entry):
                os.pwrite(out.fileno(), block, offset)
            out.truncate(entry.size)
    else:
        raise StreamError(f"{entry.path!r} is of a kind that no sandbox makes: {entry.kind!r}")


def extract(source: int, folder: Path, opaque_attribute: str) -> list[Special]:
    """Read a stream of `write` from the descriptor `source` into a new layer folder.

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
    with open(source, "rb", closefd=False, buffering=diff.BLOCK) as file:
        layer = _Layer(Reader(file), folder, opaque_attribute)
        for entry in layer.reader:
            layer.take(entry)
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for entry in reversed(layer.folders.values()):
        layer.set(folder / entry.path, entry)
    return layer.special


class _Layer:
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
        above, _, name = entry.path.rpartition("/")
        if entry.kind == "dir" and entry.path == "." and not self.folders:
            pass
        elif (above or ".") not in self.folders or name in ("", ".", ".."):
            raise StreamError(f"{entry.path!r} is in no folder of the stream")
        elif entry.kind == "link":
            if entry.target not in self.files:
                raise StreamError(f"{entry.path!r} is a link to no file of the stream")
            os.link(self.folder / entry.target, target, follow_symlinks=False)
            return
        elif entry.kind == "deleted":
            os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
        else:
            make(self.reader, entry, str(target), os.O_EXCL)
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
            raise StreamError(f"{entry.path!r} has an owner whose id no sandbox can have")
        if self.owner:
            os.chown(target, entry.uid, entry.gid, follow_symlinks=False)
        if entry.kind not in ("symlink", "deleted"):
            mode = entry.mode if entry.kind == "dir" else entry.mode & ~_SPECIAL_BITS
            target.chmod(mode)
            if mode != entry.mode and entry.kind == "file":
                self.special.append((entry.path, entry.mode))
        os.utime(target, ns=(self.now, entry.mtime), follow_symlinks=False)
