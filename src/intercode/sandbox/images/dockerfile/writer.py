"""Putting files into a layer: those of a tree or an archive, single ones, new folders."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
from pathlib import Path
from typing import IO

from intercode.sandbox.images.base import Image
from intercode.sandbox.images.host import host_mounts
from intercode.sandbox.images.tree import Tree
from intercode.sandbox.images.unpack import Unpacker, split_name


class Writer:
    """Puts files into a layer, as root or for an owner.

    Args:
        base: The image below.
        layer: An empty folder.
        owner: Whose they become, but for an archive's members; None: root's.
        mode: Theirs, if not their own.
        keep_owner: Whether, without an owner, files keep their own.
    """

    def __init__(
        self,
        base: Image,
        layer: Path,
        owner: tuple[int, int] | None,
        mode: int | None,
        keep_owner: bool = False,
    ) -> None:
        mounted = host_mounts() if base.host else ()
        below = tuple(name.strip("/") for name in mounted)
        self._tree = Tree((*base.layers, layer))
        self._unpacker = Unpacker(layer, base.layers, below)
        self._owner, self._mode, self._keep_owner = owner, mode, keep_owner
        self._now = time.time()

    def finish(self) -> None:
        """To be called at the end."""
        self._unpacker.finish()

    def folders(self, path: str) -> None:
        """A directory, and those above it, where they are not there."""
        parts = split_name(path.strip("/"))
        for count in range(1, len(parts) + 1):
            place = "/".join(parts[:count])
            if not self._tree.is_dir(place):
                self._add(_header(place, tarfile.DIRTYPE, 0o755, self._now), keep_mode=True)

    def text(self, path: str, content: bytes) -> None:
        """A file of this content."""
        self.folders(os.path.dirname(path))  # noqa: PTH120 - it is the image's
        header = _header(path, tarfile.REGTYPE, 0o644, self._now)
        header.size = len(content)
        self._add(header, content)

    def file(self, source: Path, path: str) -> None:
        """What is at `source`: a file, a link, a pipe."""
        self.folders(os.path.dirname(path))  # noqa: PTH120 - it is the image's
        self._entry(source, source.lstat(), path)

    def tree(self, tree: Tree, parts: tuple[str, ...], path: str) -> None:
        """The content of a directory. One that is there already keeps its owner and mode."""
        self.folders(path)
        for place, below in tree.walk(parts):
            inner = "/".join(place[len(parts) :])
            self._entry(below.path, below.info, f"{path.rstrip('/')}/{inner}")

    def archive(self, source: Path, path: str) -> None:
        """An archive's members, with the owners that it names, as Docker has it."""
        self.folders(path)
        with tarfile.open(source, mode="r:*", encoding="utf-8", errors="surrogateescape") as file:
            for member in file:
                parts = split_name(member.name)
                if not parts:
                    continue
                member.name = "/".join((path.strip("/"), *parts)).strip("/")
                if member.islnk():
                    link = split_name(member.linkname)
                    member.linkname = "/".join((path.strip("/"), *link)).strip("/")
                self._unpacker.add(file, member)

    def _entry(self, source: Path, info: os.stat_result, path: str) -> None:
        kinds = {
            stat.S_IFDIR: tarfile.DIRTYPE,
            stat.S_IFLNK: tarfile.SYMTYPE,
            stat.S_IFREG: tarfile.REGTYPE,
            stat.S_IFIFO: tarfile.FIFOTYPE,
        }
        kind = kinds.get(stat.S_IFMT(info.st_mode))
        if kind is None:
            return  # a socket, which means nothing without its process
        header = _header(path, kind, stat.S_IMODE(info.st_mode), info.st_mtime)
        if self._keep_owner:
            header.uid, header.gid = info.st_uid, info.st_gid
        if kind == tarfile.SYMTYPE:
            header.linkname = str(source.readlink())
            self._add(header)
        elif kind == tarfile.REGTYPE:
            header.size = info.st_size
            self._add(header, source)
        else:
            self._add(header)

    def _add(
        self, header: tarfile.TarInfo, content: bytes | Path = b"", keep_mode: bool = False
    ) -> None:
        if self._owner is not None:
            header.uid, header.gid = self._owner
        if self._mode is not None and not keep_mode:
            header.mode = self._mode
        self._unpacker.add(_Content(content), header)


class _Content:
    """One file's content, as an archive gives it."""

    def __init__(self, content: bytes | Path) -> None:
        self._content = content

    def extractfile(self, member: tarfile.TarInfo) -> IO[bytes]:
        """An open file."""
        if isinstance(self._content, bytes):
            return io.BytesIO(self._content)
        return self._content.open("rb")


def _header(path: str, kind: bytes, mode: int, mtime: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path.strip("/"))
    header.type, header.mode, header.mtime = kind, mode, mtime
    return header


def is_archive(path: Path) -> bool:
    """Whether a file is a tarball, compressed or not."""
    try:
        return not path.is_symlink() and tarfile.is_tarfile(path)
    except (OSError, EOFError, ValueError):
        return False
