"""What a container changed as a tar stream, and from there into another container.

The form is that of native's `archive`: a deleted path is the character device 0:0.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from intercode.sandbox.native import diff

if TYPE_CHECKING:
    from intercode.sandbox.docker.inside.compare import Comparison

_BLOCK = 1 << 20


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
            below = os.open(folder, diff._DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def write(found: Comparison, root: int, out: int, timeout: float) -> None:
    """Stream all that was written to, and the marks of what was deleted, into `out`.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone.
    """
    bounds = diff.Bounds(timeout)
    deleted = {path for path, kind, *_ in found.entries if kind == "deleted"}
    top = {path for path in deleted if path.rpartition("/")[0] not in deleted}
    names: dict[tuple[int, int], str] = {}
    with (
        open(out, "wb", closefd=False) as file,
        tarfile.open(
            fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape"
        ) as tar,
    ):
        tar.addfile(_info(".", os.fstat(root), tarfile.DIRTYPE))
        for path in sorted(top.union(found.touched)):
            bounds.check_time()
            # Below what is no folder any more there is nothing to delete.
            with suppress(NotADirectoryError), parent(root, path) as (fd, name):
                if path in top:
                    info = tarfile.TarInfo(path[1:])
                    info.type = tarfile.CHRTYPE
                    tar.addfile(info)
                else:
                    _add(tar, path[1:], name, fd, names)


def _add(
    tar: tarfile.TarFile, path: str, name: str, fd: int, names: dict[tuple[int, int], str]
) -> None:
    st = diff.lstat(name, fd)
    if st is None or stat.S_ISSOCK(st.st_mode):
        return  # a socket means nothing without its process, and goes with it
    first = names.setdefault((st.st_dev, st.st_ino), path) if st.st_nlink > 1 else path
    if stat.S_ISDIR(st.st_mode):
        tar.addfile(_info(path, st, tarfile.DIRTYPE))
    elif first != path:
        info = _info(path, st, tarfile.LNKTYPE)
        info.linkname = first
        tar.addfile(info)
    elif stat.S_ISLNK(st.st_mode):
        info = _info(path, st, tarfile.SYMTYPE)
        info.linkname = os.readlink(name, dir_fd=fd)
        tar.addfile(info)
    elif stat.S_ISFIFO(st.st_mode):
        tar.addfile(_info(path, st, tarfile.FIFOTYPE))
    elif stat.S_ISREG(st.st_mode):
        info = _info(path, st, tarfile.REGTYPE)
        with open(os.open(name, diff._FILE, dir_fd=fd), "rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)


def _info(path: str, st: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type = kind
    info.mode = stat.S_IMODE(st.st_mode)
    info.uid, info.gid = st.st_uid, st.st_gid
    info.mtime = st.st_mtime_ns / 1e9
    return info


def extract(source: int, root: int) -> None:
    """Read a stream of `write` from the descriptor `source` into the file system at `root`.

    Raises:
        tarfile.TarError, OSError: The stream is broken, or the root cannot be written.
    """
    folders: list[tarfile.TarInfo] = []
    with (
        open(source, "rb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="r|", errors="surrogateescape") as tar,
    ):
        for info in tar:
            if info.name != ".":
                with parent(root, info.name) as (fd, name):
                    _extract(tar, info, fd, name, root)
            if info.isdir():
                folders.append(info)
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for info in reversed(folders):
        if info.name == ".":
            _set(root, ".", info)
        else:
            with parent(root, info.name) as (fd, name):
                _set(fd, name, info)


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo, fd: int, name: str, root: int) -> None:
    st = diff.lstat(name, fd)
    if st is not None and not (info.isdir() and stat.S_ISDIR(st.st_mode)):
        try:
            remove(fd, name)
        except OSError as error:  # a file that is mounted is written to where it is
            if error.errno != errno.EBUSY or not info.isfile():
                raise
    if info.ischr():
        return
    if info.isdir():
        if st is None or not stat.S_ISDIR(st.st_mode):
            os.mkdir(name, 0o700, dir_fd=fd)
        return
    if info.islnk():
        with parent(root, info.linkname) as (other, first):
            os.link(first, name, src_dir_fd=other, dst_dir_fd=fd, follow_symlinks=False)
        return
    if info.issym():
        os.symlink(info.linkname, name, dir_fd=fd)
    elif info.isfifo():
        os.mkfifo(name, 0o600, dir_fd=fd)
    else:
        data = tar.extractfile(info)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=fd), "wb") as out:
            while data is not None and (block := data.read(_BLOCK)):
                out.write(block)
    _set(fd, name, info)


def _set(fd: int, name: str, info: tarfile.TarInfo) -> None:
    os.chown(name, info.uid, info.gid, dir_fd=fd, follow_symlinks=False)
    if not info.issym():
        os.chmod(name, info.mode, dir_fd=fd)  # after the owner: that clears setuid
    os.utime(name, (time.time(), info.mtime), dir_fd=fd, follow_symlinks=False)


def remove(fd: int, name: str) -> None:
    """Remove a file or a tree."""
    st = diff.lstat(name, fd)
    if st is not None and stat.S_ISDIR(st.st_mode):
        below = os.open(name, diff._DIRECTORY, dir_fd=fd)
        try:
            for child in os.listdir(below):
                remove(below, child)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=fd)
    elif st is not None:
        os.unlink(name, dir_fd=fd)
