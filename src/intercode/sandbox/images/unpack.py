"""Turning an archive's members into entries of a layer, trusting none of them.

Paths are resolved as the kernel would inside the image: a symbolic link among a member's parents,
be it the archive's or the image's, is followed within the image and never beyond its root.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from intercode.errors import ImageError
from intercode.sandbox.images.layers import Found, look

_MAX_LINKS = 40
_MAX_ID = 65535

Parts = tuple[str, ...]


class Archive(Protocol):
    """Where the members' content is."""

    def extractfile(self, member: tarfile.TarInfo) -> IO[bytes] | None:
        """The content of a regular file."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    mode: int
    uid: int
    gid: int
    mtime: float


class Unpacker:
    """Writes one layer."""

    def __init__(self, layer: Path, below: Sequence[Path], mounted: Sequence[str]) -> None:
        """Prepare.

        Args:
            layer: An empty folder of ours.
            below: The layers under it, lowest first.
            mounted: Top-level names that something is mounted over: what is put there is not seen.
        """
        self._layer = layer
        self._below = below
        self._mounted = frozenset(mounted)
        self._owner = os.geteuid() == 0
        # Directories get their metadata last: until then they must be open to us, and their
        # times are changed by what is put into them.
        self._folders: dict[Parts, _Metadata] = {}
        self._resolved: dict[Parts, Parts] = {}
        self._shared: set[Parts] = {()}  # those that the layers below have too

    def add(self, archive: Archive, member: tarfile.TarInfo) -> None:
        """Write one member.

        Raises:
            ImageError: It is of a kind, or has a name, that no image may have.
        """
        parts = split_name(member.name)
        if not parts:
            return  # "./": the root directory stays as it is
        metadata = _Metadata(
            member.mode & 0o7777, _owner(member.uid), _owner(member.gid), member.mtime
        )
        parent = self._folder(parts[:-1], metadata.mtime)
        place = (*parent, parts[-1])
        if place[0] in self._mounted and not (member.isdir() and len(place) == 1):
            raise ImageError(
                f"{member.name!r} would be hidden: in the image 'host' /{place[0]} is this "
                "machine's own, read-only"
            )
        if member.isdir():
            self._folders[self._folder(parts, metadata.mtime)] = metadata
            return
        path = self._layer.joinpath(*place)
        self._clear(path, place, member.name)
        if member.islnk():
            self._link(member, path)
            return
        if member.issym():
            path.symlink_to(member.linkname)
        elif member.isfile():
            self._write(archive, member, path)
        elif member.isfifo():
            os.mkfifo(path, 0o600)
        else:
            raise ImageError(f"{member.name!r} is a device or of an unknown type")
        self._set(path, metadata)

    def finish(self) -> None:
        """Give the directories their modes, owners and times."""
        for parts in sorted(self._folders, key=len, reverse=True):
            self._set(self._layer.joinpath(*parts), self._folders[parts])

    def _folder(self, parts: Parts, mtime: float) -> Parts:
        """Where a directory really is, made in the layer with all above it."""
        if (known := self._resolved.get(parts)) is not None:
            return known
        here: Parts = ()
        pending = list(reversed(parts))
        links = 0
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                here = here[:-1]
                continue
            place = (*here, name)
            found = self._look(place)
            if found is not None and found.is_link:
                links += 1
                target = str(found.path.readlink())
                if links > _MAX_LINKS:
                    raise ImageError(f"{'/'.join(parts)!r} goes through too many symbolic links")
                here = () if target.startswith("/") else here
                pending += reversed(target.split("/"))
                continue
            if found is not None and not found.is_dir:
                raise ImageError(f"{'/'.join(place)!r} is both a file and a directory")
            self._make(place, found, mtime)
            here = place
        self._resolved[parts] = here
        return here

    def _look(self, place: Parts) -> Found | None:
        return look((*self._below, self._layer), place)

    def _make(self, place: Parts, below: Found | None, mtime: float) -> None:
        """A directory in the layer: like the image's where it has one, else an ordinary one."""
        if place in self._folders:
            return
        self._layer.joinpath(*place).mkdir(mode=0o700)
        if below is None:
            self._folders[place] = _Metadata(0o755, 0, 0, mtime)
        else:
            self._shared.add(place)
            info = below.info
            mode = stat.S_IMODE(info.st_mode)
            self._folders[place] = _Metadata(mode, info.st_uid, info.st_gid, info.st_mtime)

    def _clear(self, path: Path, place: Parts, name: str) -> None:
        """Make room for what is not a directory; a later member replaces an earlier one."""
        if place in self._folders:
            raise ImageError(f"{name!r} is both a file and a directory")
        found = look(self._below, place) if place[:-1] in self._shared else None
        if found is not None and found.is_dir:
            raise ImageError(f"{name!r} would replace a directory of the image")
        if os.path.lexists(path):
            path.unlink()
            self._resolved.clear()  # it may have been a link on the way to others

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        parts = split_name(member.linkname)
        parent = self._folder(parts[:-1], member.mtime)
        target = self._layer.joinpath(*parent, *parts[-1:])
        if not _is_plain(target):
            raise ImageError(
                f"{member.name!r} is a hard link to {member.linkname!r}, "
                "which is no file that comes before it in the archive"
            )
        os.link(target, path, follow_symlinks=False)

    def _write(self, archive: Archive, member: tarfile.TarInfo, path: Path) -> None:
        source = archive.extractfile(member)
        assert source is not None  # a regular file's
        written = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with source, os.fdopen(descriptor, "wb") as target:
            while block := source.read(1 << 20):
                written += target.write(block)
        if written != member.size:
            raise tarfile.ReadError(f"{member.name!r} ends early")

    def _set(self, path: Path, metadata: _Metadata) -> None:
        if self._owner:
            os.chown(path, metadata.uid, metadata.gid, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(metadata.mode)  # after the owner: that clears setuid
        os.utime(path, (metadata.mtime, metadata.mtime), follow_symlinks=False)


def split_name(name: str) -> Parts:
    """The names on the way to a member.

    Raises:
        ImageError: It leads elsewhere.
    """
    if name.startswith("/"):
        raise ImageError(f"{name!r} is an absolute name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ImageError(f"{name!r} leads out of the archive")
    if "\0" in name:
        raise ImageError(f"{name!r} holds a NUL")
    return parts


def _owner(number: int) -> int:
    """Sandboxes have these ids and no others; what belongs to another is root's."""
    return number if 0 <= number <= _MAX_ID else 0


def _is_plain(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False
