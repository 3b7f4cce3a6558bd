"""The layers of one of our images as the one tree that they make, in a tar stream for an engine."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from intercode.sandbox.images.layers import Found, look, visible

_ATTRIBUTE = "SCHILY.xattr."
_KEPT = ("security.capability", "user.")


def write(layers: Sequence[Path], out: IO[bytes]) -> None:
    """Stream the merged tree.

    Raises:
        OSError: A layer cannot be read, or the reader is gone.
    """
    with tarfile.open(
        fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape"
    ) as tar:
        _Writer(tar).folder("", layers[::-1])


class _Writer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self.tar = tar
        self.names: dict[tuple[int, int], str] = {}
        # An ordinary user's files are theirs on this machine, and root's in an image.
        self.own = os.geteuid()

    def folder(self, path: str, folders: Sequence[Path]) -> None:
        names = sorted({path.name for folder in folders for path in folder.iterdir()})
        for name in names:
            entries = visible(folders, name)
            if not entries:
                continue
            place = f"{path}/{name}" if path else name
            self._add(place, entries[0])
            if entries[0].is_dir:
                self.folder(place, [entry.path for entry in entries])

    def _add(self, place: str, found: Found) -> None:
        st = found.info
        info = tarfile.TarInfo(place)
        seconds, rest = divmod(st.st_mtime_ns, 10**9)
        info.mode, info.mtime = stat.S_IMODE(st.st_mode), seconds
        info.uid = 0 if st.st_uid == self.own else st.st_uid
        info.gid = 0 if self.own and st.st_gid == os.getegid() else st.st_gid
        # As text: a number with a fraction would be rounded.
        info.pax_headers = {"mtime": f"{seconds}.{rest:09}", **_attributes(found.path)}
        first = self.names.setdefault((st.st_dev, st.st_ino), place)
        if found.is_dir:
            info.type = tarfile.DIRTYPE
        elif found.is_link:
            info.type, info.linkname = tarfile.SYMTYPE, str(found.path.readlink())
        elif first != place:
            info.type, info.linkname = tarfile.LNKTYPE, first
        elif stat.S_ISREG(st.st_mode):
            info.size = st.st_size
            with found.path.open("rb") as file:
                self.tar.addfile(info, file)
            return
        elif stat.S_ISFIFO(st.st_mode):
            info.type = tarfile.FIFOTYPE
        else:
            return  # no image of ours has devices, and a socket is nothing
        self.tar.addfile(info)


def _attributes(path: Path) -> dict[str, str]:
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith(_KEPT) and not name.startswith("user.overlay."):
            value = os.getxattr(path, name, follow_symlinks=False)
            found[_ATTRIBUTE + name] = value.decode("utf-8", "surrogateescape")
    return found


def read(layers: Sequence[Path], path: str) -> str | None:
    """The content of a small file of the merged tree; None if it has no such file."""
    found = look(layers, path.strip("/").split("/"))
    if found is None or not stat.S_ISREG(found.info.st_mode):
        return None
    return os.fsdecode(found.path.read_bytes())
