"""Unpacking an archive that somebody else made: only plain files, only below one folder.

What would lie elsewhere, links, devices, encrypted members and what is larger than the limit are
refused, and the archive with them. Modes, owners and times are not taken over.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO

from intercode.errors import FetchError

LIMIT = 16 << 30
"""Bytes that an archive may unpack to."""

_MOST_MEMBERS = 200_000
_BLOCK = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeError,
)


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> None:
    """Unpack a ZIP or TAR archive; ZIP archives of databases that it holds, too.

    Args:
        archive: The file.
        folder: Where to; it must not be there.
        limit: Bytes, for all files together.

    Raises:
        FetchError: It is no such archive, is damaged, or holds what it should not. What was
            unpacked till then is removed.
    """
    try:
        folder.mkdir(parents=True)
        _Unpacker(limit).unpack(archive, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _Unpacker:
    """Counts what comes out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit
        self._members = 0

    def unpack(self, archive: Path, folder: Path) -> None:
        self._unpack_one(archive, folder)
        for inner in sorted(folder.rglob("*databases.zip")):
            self._unpack_one(inner, inner.parent)
            inner.unlink()

    def _unpack_one(self, archive: Path, folder: Path) -> None:
        try:
            is_zip = zipfile.is_zipfile(archive)
            if not is_zip and not tarfile.is_tarfile(archive):
                raise FetchError(f"{archive}: is neither a ZIP nor a TAR archive")
            for name, content in _zip_members(archive) if is_zip else _tar_members(archive):
                self._add(folder, name, content)
        except FetchError:
            raise
        except _DAMAGED as error:
            raise FetchError(f"{archive.name}: is damaged: {error}") from error
        except (OSError, RuntimeError) as error:
            # RuntimeError: a member is encrypted. OSError: bzip2's damage, among others.
            raise FetchError(f"{archive.name}: cannot be unpacked: {error}") from error

    def _add(self, folder: Path, name: str, content: IO[bytes] | None) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise FetchError(f"the archive has more than {_MOST_MEMBERS} members")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise FetchError(f"the archive has a member {name!r}, which would lie elsewhere")
        if "__MACOSX" in path.parts or path.name == ".DS_Store":
            return  # what some systems put into every archive
        place = folder.joinpath(*path.parts)
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            while block := content.read(_BLOCK):
                self._left -= len(block)
                if self._left < 0:
                    raise FetchError(f"the archive unpacks to more than {self._limit} bytes")
                file.write(block)


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content, which is None for a folder."""
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise FetchError(f"the archive has a member {info.filename!r} that is no file")
            if info.is_dir():
                yield info.filename, None
                continue
            with opened.open(info) as content:
                yield info.filename, content


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.isdir():
                yield member.name, None
                continue
            content = opened.extractfile(member) if member.isfile() else None
            if content is None:
                raise FetchError(f"the archive has a member {member.name!r} that is no file")
            with closing(content):
                yield member.name, content
