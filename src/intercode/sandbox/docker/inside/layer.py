"""Write a container's changes as a stream of `archive`, and lay them over another container."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from intercode.sandbox.native import diff
from intercode.sandbox.native.archive import Entry, Reader, Writer

if TYPE_CHECKING:
    from intercode.sandbox.docker.inside.compare import Comparison


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


def write(found: Comparison, root: int, out: int, timeout: float) -> None:
    """Stream all that was written to, and the marks of what was deleted, into `out`.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone; with EOVERFLOW, folders were too deep to compare.
    """
    if not found.whole:
        raise diff.too_deep()
    deleted = {path for path, kind, *_ in found.entries if kind == "deleted"}
    top = {path for path in deleted if path.rpartition("/")[0] not in deleted}
    with open(out, "wb", closefd=False, buffering=diff.BLOCK) as file:
        writer = Writer(file, diff.Bounds(timeout))
        writer.add(".", ".", root, os.fstat(root))
        for path in sorted(top.union(found.touched)):
            # Below what is no folder any more there is nothing to delete.
            with suppress(NotADirectoryError), parent(root, path) as (fd, name):
                if path in top:
                    writer.deleted(path[1:])
                elif st := diff.lstat(name, fd):
                    writer.add(path[1:], name, fd, st)
        writer.end()


def extract(source: int, root: int) -> None:
    """Read a stream of `write` from the descriptor `source` into the file system at `root`.

    Raises:
        StreamError, OSError: The stream is broken, or the root cannot be written.
    """
    folders: list[Entry] = []
    with open(source, "rb", closefd=False, buffering=diff.BLOCK) as file:
        reader = Reader(file)
        for entry in reader:
            if f"/{entry.path}" in diff.SHARED_MEMORY_MOUNTS:
                continue  # it is mounted, and as it must be
            if entry.path != ".":
                with parent(root, entry.path) as (fd, name):
                    _extract(reader, entry, fd, name, root)
            if entry.kind == "dir":
                folders.append(entry)
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for entry in reversed(folders):
        if entry.path == ".":
            _set(root, ".", entry)
        else:
            with parent(root, entry.path) as (fd, name):
                _set(fd, name, entry)


def _extract(reader: Reader, entry: Entry, fd: int, name: str, root: int) -> None:
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
            os.mkdir(name, 0o700, dir_fd=fd)
        return
    if entry.kind == "link":
        with parent(root, entry.target) as (other, first):
            os.link(first, name, src_dir_fd=other, dst_dir_fd=fd, follow_symlinks=False)
        return
    if entry.kind == "symlink":
        os.symlink(entry.target, name, dir_fd=fd)
    elif entry.kind in ("fifo", "socket"):
        os.mknod(name, stat.S_IFIFO if entry.kind == "fifo" else stat.S_IFSOCK, dir_fd=fd)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=fd), "wb", buffering=0) as out:
            for offset, block in reader.pieces(entry):
                os.pwrite(out.fileno(), block, offset)
            out.truncate(entry.size)
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
