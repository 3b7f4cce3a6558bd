"""A sandbox's upper layer as a tar stream, and back into a layer folder.

What overlayfs needs beyond a tar's own notions is kept so: a deleted path is the character device
0:0 that overlayfs itself uses, and an opaque folder has an extended header. No program in a
sandbox can make either.
"""

from __future__ import annotations

import os
import stat
import tarfile
import time
from pathlib import Path

from intercode.sandbox.native import diff

_OPAQUE_HEADER = "INTERCODE.opaque"
LONGEST = 3072
"""Bytes of a path in the layer: what has a longer one, which the machine could not name where
layers are kept, is left out. So is what is in folders nested deeper than `diff.MAX_DEPTH`."""
MOST_HOLES = 1 << 30
"""Bytes of holes in files, which travel as zeros: files with more are left out."""
_ST_BLOCK = 512


def write(upper: int, lower: int, merged: int, out: int, timeout: float) -> None:
    """Stream the upper layer into the descriptor `out`.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone.
    """
    with (
        open(out, "wb", closefd=False) as file,
        tarfile.open(
            fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape"
        ) as tar,
    ):
        _Writer(tar, time.monotonic() + timeout).folder("", upper, lower, merged, os.fstat(upper))


class _Writer:
    def __init__(self, tar: tarfile.TarFile, deadline: float) -> None:
        self.tar = tar
        self.deadline = deadline
        self.names: dict[tuple[int, int], str] = {}
        self.holes = 0

    def folder(
        self, path: str, upper: int, lower: int | None, merged: int | None, st: os.stat_result
    ) -> None:
        names = set(os.listdir(upper))
        info = self._info(path or ".", st, tarfile.DIRTYPE)
        if lower is not None and diff.is_opaque(names, lower, merged):
            info.pax_headers = {_OPAQUE_HEADER: "y"}
        self.tar.addfile(info)
        if path.count("/") + 1 >= diff.MAX_DEPTH:
            return
        for name in sorted(names):
            if time.monotonic() > self.deadline:
                raise TimeoutError("saving the file system took too long")
            child = diff.lstat(name, upper)
            if child is None:
                continue
            child_path = f"{path}/{name}" if path else name
            if len(os.fsencode(child_path)) > LONGEST:
                continue
            if stat.S_ISDIR(child.st_mode):
                old = diff.lstat(name, lower)
                below = lower if old is not None and stat.S_ISDIR(old.st_mode) else None
                with (
                    diff.directory(name, upper) as up,
                    diff.directory(name, below) as low,
                    diff.directory(name, merged) as both,
                ):
                    if up is not None:
                        self.folder(child_path, up, low, both, child)
            else:
                self._leaf(child_path, name, upper, child)

    def _leaf(self, path: str, name: str, fd: int, st: os.stat_result) -> None:
        if stat.S_ISREG(st.st_mode) and st.st_size > st.st_blocks * _ST_BLOCK:
            self.holes += st.st_size - st.st_blocks * _ST_BLOCK
            if self.holes > MOST_HOLES:
                return
        first = self.names.setdefault((st.st_dev, st.st_ino), path)
        if diff.is_whiteout(st):
            self.tar.addfile(self._info(path, st, tarfile.CHRTYPE))
        elif first != path:
            info = self._info(path, st, tarfile.LNKTYPE)
            info.linkname = first
            self.tar.addfile(info)
        elif stat.S_ISLNK(st.st_mode):
            info = self._info(path, st, tarfile.SYMTYPE)
            info.linkname = os.readlink(name, dir_fd=fd)
            self.tar.addfile(info)
        elif stat.S_ISFIFO(st.st_mode):
            self.tar.addfile(self._info(path, st, tarfile.FIFOTYPE))
        elif stat.S_ISREG(st.st_mode):
            info = self._info(path, st, tarfile.REGTYPE)
            with open(os.open(name, diff._FILE, dir_fd=fd), "rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                self.tar.addfile(info, file)
        # A socket means nothing without its process, and goes with it.

    @staticmethod
    def _info(path: str, st: os.stat_result, kind: bytes) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path)
        info.type = kind
        info.mode = stat.S_IMODE(st.st_mode)
        info.uid, info.gid = st.st_uid, st.st_gid
        info.mtime = st.st_mtime_ns / 1e9
        return info


def extract(source: int, folder: Path, opaque_attribute: str) -> None:
    """Read a stream of `write` from the descriptor `source` into a new layer folder.

    Args:
        source: Where to read.
        folder: An existing, empty folder.
        opaque_attribute: ``trusted.overlay.opaque`` as root, ``user.overlay.opaque`` otherwise.

    Raises:
        tarfile.TarError, OSError: The stream is broken, or the folder cannot be written.
    """
    owner = os.geteuid() == 0
    now = time.time()
    folders: list[tuple[Path, tarfile.TarInfo]] = []
    with (
        open(source, "rb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="r|", errors="surrogateescape") as tar,
    ):
        for info in tar:
            target = folder if info.name == "." else folder / _safe(info.name)
            _extract_one(tar, info, folder, target, opaque_attribute)
            if info.isdir():
                folders.append((target, info))
                continue
            if info.islnk():
                continue
            if owner:
                os.chown(target, info.uid, info.gid, follow_symlinks=False)
            if not info.issym() and not info.ischr():
                target.chmod(info.mode)
            os.utime(target, (now, info.mtime), follow_symlinks=False)
        while file.read(1 << 16):
            pass  # the padding: a writer still at work on it would get EPIPE
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for target, info in reversed(folders):
        if owner:
            os.chown(target, info.uid, info.gid)
        target.chmod(info.mode)
        os.utime(target, (now, info.mtime))


def _extract_one(
    tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path, target: Path, attribute: str
) -> None:
    if info.isdir():
        target.mkdir(mode=0o700, exist_ok=info.name == ".")
        if info.pax_headers.get(_OPAQUE_HEADER) == "y":
            os.setxattr(target, attribute, b"y")
    elif info.ischr():
        os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
    elif info.islnk():
        os.link(folder / _safe(info.linkname), target, follow_symlinks=False)
    elif info.issym():
        target.symlink_to(info.linkname)
    elif info.isfifo():
        os.mkfifo(target)
    else:
        data = tar.extractfile(info)
        with target.open("xb") as out:
            while data is not None and (block := data.read(1 << 20)):
                if block.count(0) == len(block):
                    out.seek(len(block), os.SEEK_CUR)  # a hole takes no room of the machine's
                else:
                    out.write(block)
            out.truncate()


def _safe(name: str) -> str:
    """A member's relative path, refused if it could lead out of the layer."""
    if name.startswith("/") or ".." in name.split("/"):
        raise tarfile.TarError(f"{name!r} leads out of the layer")
    return name
