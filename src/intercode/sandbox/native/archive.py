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
from intercode.sandbox.native.identity import ID_COUNT

_OPAQUE_HEADER = "INTERCODE.opaque"
LONGEST = 3072
"""Bytes of a path in the layer: what has a longer one, which the machine could not name where
layers are kept, is left out. So is what is in folders nested deeper than `diff.MAX_DEPTH`."""
MOST_HOLES = 1 << 30
"""Bytes of holes in files, which travel as zeros: files with more are left out."""
_ST_BLOCK = 512
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID

Special = tuple[str, int]
"""A path in a layer, and the mode that it has in sandboxes, but not on the machine's disk."""


def write(upper: int, lower: int, merged: int, out: int, timeout: float) -> None:
    """Stream the upper layer into the descriptor `out`.

    Raises:
        TimeoutError: It took longer than `timeout` seconds.
        OSError: The reader is gone, or there is too much: see `diff.Bounds`.
    """
    with (
        open(out, "wb", closefd=False) as file,
        tarfile.open(
            fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape"
        ) as tar,
    ):
        _Writer(tar, diff.Bounds(timeout)).folder("", upper, lower, merged, os.fstat(upper))


class _Writer:
    def __init__(self, tar: tarfile.TarFile, bounds: diff.Bounds) -> None:
        self.tar = tar
        self.bounds = bounds
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
            self.bounds.check_time()
            child = diff.lstat(name, upper)
            if child is None:
                continue
            child_path = f"{path}/{name}" if path else name
            if len(os.fsencode(child_path)) > LONGEST:
                continue
            self.bounds.count(child_path)
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
        if stat.S_ISSOCK(st.st_mode):
            return  # it means nothing without its process, and goes with it
        first = self.names.setdefault((st.st_dev, st.st_ino), path) if st.st_nlink > 1 else path
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

    @staticmethod
    def _info(path: str, st: os.stat_result, kind: bytes) -> tarfile.TarInfo:
        info = tarfile.TarInfo(path)
        info.type = kind
        info.mode = stat.S_IMODE(st.st_mode)
        info.uid, info.gid = st.st_uid, st.st_gid
        info.mtime = st.st_mtime_ns / 1e9
        return info


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
        tarfile.TarError, OSError: The stream is broken, or the folder cannot be written.
    """
    now = time.time()
    with (
        open(source, "rb", closefd=False) as file,
        tarfile.open(fileobj=file, mode="r|", errors="surrogateescape") as tar,
    ):
        reader = _Reader(tar, folder, opaque_attribute)
        for info in tar:
            reader.take(info, now)
        while file.read(1 << 16):
            pass  # the padding: a writer still at work on it would get EPIPE
    # Last and deepest first: writing into a folder changes its times, and may need its old mode.
    for name, info in reversed(reader.folders.items()):
        reader.set(folder / name, info, now)
    return reader.special


class _Reader:
    def __init__(self, tar: tarfile.TarFile, folder: Path, opaque_attribute: str) -> None:
        self.tar = tar
        self.folder = folder
        self.opaque_attribute = opaque_attribute
        self.owner = os.geteuid() == 0
        self.folders: dict[str, tarfile.TarInfo] = {}
        self.files: set[str] = set()
        self.special: list[Special] = []

    def take(self, info: tarfile.TarInfo, now: float) -> None:
        """Make the next one."""
        target = self.folder / info.name
        if info.name == "." and not self.folders:
            self.folders["."] = info
            self.opaque(target, info)
            return
        above, _, name = info.name.rpartition("/")
        if (above or ".") not in self.folders or name in ("", ".", ".."):
            raise tarfile.TarError(f"{info.name!r} is in no folder of the stream")
        if info.isdir():
            target.mkdir(mode=0o700)
            self.folders[info.name] = info
            self.opaque(target, info)
            return
        if info.islnk():
            if info.linkname not in self.files:
                raise tarfile.TarError(f"{info.name!r} is a link to no file of the stream")
            os.link(self.folder / info.linkname, target, follow_symlinks=False)
            return
        if info.ischr():
            os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
        elif info.issym():
            target.symlink_to(info.linkname)
        elif info.isfifo():
            os.mkfifo(target)
        else:
            self.write(target, info)
        self.files.add(info.name)
        self.set(target, info, now)

    def opaque(self, target: Path, info: tarfile.TarInfo) -> None:
        """Mark a folder that hides what the image has there."""
        if info.pax_headers.get(_OPAQUE_HEADER) == "y":
            os.setxattr(target, self.opaque_attribute, b"y")

    def write(self, target: Path, info: tarfile.TarInfo) -> None:
        """Make a regular file."""
        data = self.tar.extractfile(info)
        with target.open("xb") as out:
            while data is not None and (block := data.read(1 << 20)):
                if block.count(0) == len(block):
                    out.seek(len(block), os.SEEK_CUR)  # a hole takes no room of the machine's
                else:
                    out.write(block)
            out.truncate()

    def set(self, target: Path, info: tarfile.TarInfo, now: float) -> None:
        """Give it its owner, mode and times."""
        if not 0 <= info.uid < ID_COUNT or not 0 <= info.gid < ID_COUNT:
            raise tarfile.TarError(f"{info.name!r} has an owner whose id no sandbox can have")
        if self.owner:
            os.chown(target, info.uid, info.gid, follow_symlinks=False)
        if not info.issym() and not info.ischr():
            mode = info.mode if info.isdir() else info.mode & ~_SPECIAL_BITS
            target.chmod(mode)
            if mode != info.mode and info.isreg():
                self.special.append((info.name, info.mode))
        os.utime(target, (now, info.mtime), follow_symlinks=False)
