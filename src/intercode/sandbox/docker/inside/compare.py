"""Find what an episode changed, without the engine: two containers of one image, side by side.

The other container is pristine, and its root is a descriptor here. A file that was not written
to is, in both, the same file of the same layer, with the same change time, which no program can
set. In an overlay a write to any file copies all folders above it up, and gives them new change
times: a folder with the old one has nothing new below it, and is not entered. So the cost is that
of the folders with changes in them, and it needs neither the host's rights nor a driver's own
notion of a difference, which may be one of sizes and times.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from intercode.sandbox.docker.inside import diff
from intercode.sandbox.native.archive import BLOCK, PIECE, SHARED_MEMORY, Entry, Reader, make

Stamp = tuple[int, ...]


def stamp(st: os.stat_result) -> Stamp:
    """Return the facts of a file that stay the same for as long as it is not touched."""
    return (st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_mode, st.st_uid, st.st_gid)


class Tree:
    """A container's root, without what is mounted in it.

    Args:
        root: A descriptor.
        volumes: Mounted folders that are the image's all the same.
    """

    def __init__(self, root: int, volumes: Sequence[str]) -> None:
        self.root = root
        points = mount_points()
        self.mounted = {path for path in points if path != "/"} - set(volumes)
        self.volumes = tuple(volumes)
        self.overlay = points.get("/") == "overlay"
        self.folders, self.files = _own_of_containers()


def _own_of_containers() -> tuple[dict[str, Stamp], dict[str, Stamp]]:
    """Folders, and files, that an engine may have made for each container, as it made them.

    Folders may have something new below them all the same.
    """
    folders: dict[str, Stamp] = {}
    files: dict[str, Stamp] = {}
    for place in ("", "/etc"):
        if os.path.isdir(place or "/"):
            for name in os.listdir(place or "/"):
                st = os.lstat(f"{place}/{name}")
                (folders if stat.S_ISDIR(st.st_mode) else files)[f"{place}/{name}"] = stamp(st)
    return folders, files


class Comparison(diff.Walker):
    """One comparison, and what it found."""

    def __init__(self, tree: Tree, timeout: float) -> None:
        super().__init__(timeout)
        self.tree = tree
        self.touched: list[str] = []
        """Existing paths that were written to, changed or not; folders before their content."""

    def walk(self, uppers: Sequence[int], lower: int | None, merged: int, prefix: str = "") -> None:
        """Compare a folder of the container with the image's, and what is below it."""
        names = set(os.listdir(merged))
        for name in sorted(names):
            self.bounds.check_time()
            path = f"{prefix}/{name}"
            st = diff.lstat(name, merged)
            if st is None or path in self.tree.mounted or self._untouched(path, name, st, lower):
                continue
            if self.tree.folders.get(path) != stamp(st):
                self.bounds.count(path)
                self.touched.append(path)
            self._entry(name, st, (merged,), lower, merged, path)
        if lower is not None:
            for name in sorted(set(os.listdir(lower)) - names):
                self._deleted(name, lower, f"{prefix}/{name}")

    def _untouched(self, path: str, name: str, st: os.stat_result, lower: int | None) -> bool:
        """Whether it, and all below it, is as it was."""
        now = stamp(st)
        if not stat.S_ISDIR(st.st_mode):
            if self.tree.files.get(path) == now:
                return True
        elif not self._tells(path):
            return False
        old = diff.lstat(name, lower)
        return old is not None and stamp(old) == now

    def _tells(self, path: str) -> bool:
        """Whether a folder's own times tell of what is below it."""
        return self.tree.overlay and not any(
            path == point or point.startswith(f"{path}/") for point in self.tree.volumes
        )


def compare(tree: Tree, pristine: int, timeout: float) -> Comparison:
    """Compare a whole root with a pristine one.

    Raises:
        OSError: See `diff.Bounds`.
    """
    found = Comparison(tree, timeout)
    now, old = os.fstat(tree.root), os.fstat(pristine)
    if diff._metadata(now) != diff._metadata(old):
        found._emit("/", "modified", now, "", content=False)
    found.walk((tree.root,), pristine, tree.root)
    shm = SHARED_MEMORY
    with diff.directory(shm[1:], tree.root) as upper, diff.directory(shm[1:], pristine) as lower:
        if upper is not None:
            before = len(found.touched)
            found.walk((upper,), lower, upper, shm)
            if len(found.touched) > before:
                found.touched += diff.SHARED_MEMORY_MOUNTS
    return found


def mount_points() -> dict[str, str]:
    """Mount point → type of its file system."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            found[_unescape(left.split(" ")[4])] = right.split(" ")[0]
    return found


def _unescape(path: str) -> str:
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escaped, plain)
    return path


class MountedFiles:
    """The files that the engine mounts (``/etc/hosts`` …): part of the image to who looks at them.

    Args:
        contents: Path → what the image has there; None: what the engine put there.
    """

    def __init__(self, contents: dict[str, str | None]) -> None:
        self.paths: list[str] = []
        for path, text in contents.items():
            with suppress(OSError):
                if text is not None:
                    Path(path).write_bytes(os.fsencode(text))
                self._look(path)
                self.paths.append(path)
        self.before = self.look()
        """The state that changes are told from: the image's, or that of the snapshot over it."""

    def look(self) -> dict[str, tuple[int, int, int, int, str]]:
        """Return the files as they are now."""
        return {path: self._look(path) for path in self.paths}

    def changes(self) -> list[diff.Entry]:
        """List the mounted files that were written to."""
        found: list[diff.Entry] = []
        for path, now in self.look().items():
            mode, uid, gid, size, digest = now
            if now != self.before[path]:
                content = now[3:] != self.before[path][3:]
                found.append((path, "modified", "file", mode, uid, gid, size, digest, content))
        return found

    @staticmethod
    def _look(path: str) -> tuple[int, int, int, int, str]:
        fd = os.open(path, diff.FILE)
        try:
            st = os.fstat(fd)
            digest = diff.content_digest(fd)
            return stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_size, digest
        finally:
            os.close(fd)


@contextmanager
def parent(root: int, path: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that a path is in, no link followed on the way; and its name.

    Raises:
        OSError: There is no such folder.
    """
    *folders, name = path.strip("/").split("/")
    fd = os.dup(root)
    try:
        for folder in folders:
            below = os.open(folder, diff.DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


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
                    self._file.write(PIECE.pack(offset, len(block)))
                    self._file.write(block)
        finally:
            os.close(file)
        self._file.write(PIECE.pack(0, 0))


def write_stream(found: Comparison, root: int, out: int, timeout: float) -> None:
    """Stream all that was written to, and the marks of what was deleted, into `out`.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone; with EOVERFLOW, folders were too deep to compare.
    """
    if not found.whole:
        raise diff.too_deep()
    deleted = {path for path, kind, *_ in found.entries if kind == "deleted"}
    top = {path for path in deleted if path.rpartition("/")[0] not in deleted}
    with open(out, "wb", closefd=False, buffering=BLOCK) as file:
        writer = Writer(file, diff.Bounds(timeout))
        writer.add(".", ".", root, os.fstat(root))
        for path in sorted(top.union(found.touched)):
            # There is nothing to delete below a path that has ceased to be a folder.
            with suppress(NotADirectoryError), parent(root, path) as (fd, name):
                if path in top:
                    writer.deleted(path[1:])
                elif st := diff.lstat(name, fd):
                    writer.add(path[1:], name, fd, st)
        writer.end()


def apply_stream(source: int, root: int) -> None:
    """Read a stream of `write_stream` from the descriptor `source` into the file system at `root`.

    Raises:
        StreamError, OSError: The stream is broken, or the root cannot be written.
    """
    folders: list[Entry] = []
    with open(source, "rb", closefd=False, buffering=BLOCK) as file:
        reader = Reader(file)
        for entry in reader:
            if f"/{entry.path}" in diff.SHARED_MEMORY_MOUNTS:
                continue  # it is mounted, and as it must be
            if entry.path != ".":
                with parent(root, entry.path) as (fd, name):
                    _apply(reader, entry, fd, name, root)
            if entry.kind == "dir":
                folders.append(entry)
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for entry in reversed(folders):
        if entry.path == ".":
            _set(root, ".", entry)
        else:
            with parent(root, entry.path) as (fd, name):
                _set(fd, name, entry)


def _apply(reader: Reader, entry: Entry, fd: int, name: str, root: int) -> None:
    st = diff.lstat(name, fd)
    there = st is not None and stat.S_ISDIR(st.st_mode)
    if st is not None and not (there and entry.kind == "dir"):
        try:
            remove(fd, name)
        except OSError as error:  # a file that is mounted is written to where it is
            if error.errno != errno.EBUSY or entry.kind != "file":
                raise
    if entry.kind == "deleted":
        return
    if entry.kind == "dir":
        if not there:
            make(reader, entry, name, 0, fd)
        return
    if entry.kind == "link":
        with parent(root, entry.target) as (other, first):
            os.link(first, name, src_dir_fd=other, dst_dir_fd=fd, follow_symlinks=False)
        return
    make(reader, entry, name, os.O_TRUNC, fd)
    _set(fd, name, entry)


def _set(fd: int, name: str, entry: Entry) -> None:
    os.chown(name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
    if entry.kind != "symlink":
        os.chmod(name, entry.mode, dir_fd=fd)  # after the owner: that clears setuid
    os.utime(name, ns=(time.time_ns(), entry.mtime), dir_fd=fd, follow_symlinks=False)


def remove(fd: int, name: str) -> None:
    """Remove a file or a tree."""
    st = diff.lstat(name, fd)
    if st is not None and stat.S_ISDIR(st.st_mode):
        below = os.open(name, diff.DIRECTORY, dir_fd=fd)
        try:
            for child in os.listdir(below):
                remove(below, child)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=fd)
    elif st is not None:
        os.unlink(name, dir_fd=fd)
