"""An OCI image's layers, laid over one another into one folder."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib
import lzma
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from intercode.errors import ImageError
from intercode.files import remove_tree
from intercode.sandbox.images.oci_store import Store
from intercode.sandbox.images.unpack import Archive, Parts, Unpacker, split_name

_WHITEOUT = ".wh."
_MARK = ".wh..wh."
_OPAQUE = ".wh..wh..opq"
_ZSTD = (("compression.zstd", "ZstdFile"), ("pyzstd", "ZstdFile"), ("zstandard", "open"))


def unpack(store: Store, layers: Sequence[tuple[str, str]], folder: Path) -> None:
    """Lay layers over one another in an empty folder.

    Args:
        store: Where they are.
        layers: Each one's place, and the digest of what it holds; lowest first.
        folder: Where they go.

    Raises:
        ImageError: One is not what its digest says, or holds what no image may.
    """
    unpacker = _Unpacker(folder)
    for name, digest in layers:
        with store.open(name) as packed, _decompressed(packed) as file:
            source = _Hashed(file)
            unpacker.begin()
            with tarfile.open(
                fileobj=cast(IO[bytes], source),  # it only reads
                mode="r|",
                encoding="utf-8",
                errors="surrogateescape",
            ) as archive:
                for member in archive:
                    unpacker.add(archive, member)
            while source.read(1 << 20):
                pass
            if source.digest() != digest:
                raise ImageError(f"the layer {name!r} is not what its digest says")
    unpacker.finish()


class _Unpacker(Unpacker):
    """Writes layers over one another, the deletions that they ask for included."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (), ())
        self._new: set[Parts] = set()

    def begin(self) -> None:
        """Begin the next layer."""
        self._new.clear()

    def add(self, archive: Archive, member: tarfile.TarInfo) -> None:
        """Write one member, or delete what it says is to go."""
        parts = split_name(member.name)
        if not parts:
            return
        device = member.ischr() or member.isblk()
        if device and parts[0] == "dev":
            return  # a sandbox has a /dev of its own
        place = (*self._folder(parts[:-1], member.mtime), parts[-1])
        if parts[-1].startswith(_WHITEOUT):
            self._white_out(place)
            return
        if member.islnk():
            member.linkname = member.linkname.lstrip("/")
        self._make_room(place, member.isdir())
        super().add(archive, member)
        self._new |= {place[:count] for count in range(1, len(place) + 1)}

    def _white_out(self, place: Parts) -> None:
        *above, name = place
        if name == _OPAQUE:
            for entry in list(self._layer.joinpath(*above).iterdir()):
                self._delete((*above, entry.name))
        elif not name.startswith(_MARK):
            self._delete((*above, name.removeprefix(_WHITEOUT)))

    def _delete(self, place: Parts) -> None:
        """What lower layers have there; what is of this one stays."""
        path = self._layer.joinpath(*place)
        if place not in self._new:
            self._remove(place)
        elif path.is_dir() and not path.is_symlink():
            for entry in list(path.iterdir()):
                self._delete((*place, entry.name))

    def _make_room(self, place: Parts, for_folder: bool) -> None:
        path = self._layer.joinpath(*place)
        if os.path.lexists(path) and not (for_folder and path.is_dir() and not path.is_symlink()):
            self._remove(place)

    def _remove(self, place: Parts) -> None:
        if place[-1] in ("", ".", ".."):
            raise ImageError(f"{'/'.join(place)!r} cannot be deleted")
        remove_tree(self._layer.joinpath(*place))
        gone = [parts for parts in self._folders if parts[: len(place)] == place]
        for parts in gone:
            del self._folders[parts]
        self._resolved.clear()


class _Hashed:
    """A stream, with the digest of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hasher = hashlib.sha256()

    def read(self, size: int) -> bytes:
        """Some bytes."""
        data = self._file.read(size)
        self._hasher.update(data)
        return data

    def digest(self) -> str:
        """Of all so far."""
        return f"sha256:{self._hasher.hexdigest()}"


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if magic.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.LZMAFile(file))
    if magic.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(file))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(file)
    return file


def _zstd(file: IO[bytes]) -> IO[bytes]:
    for module, name in _ZSTD:
        try:
            reader = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        return cast(IO[bytes], reader(file, "rb"))
    raise ImageError("its layers are compressed with zstd: pip install zstandard")
