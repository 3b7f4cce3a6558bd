"""Where an image's parts are: an archive, or a folder. What is read is checked by its digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from intercode.errors import ImageError
from intercode.sandbox.images.unpack import split_name

_MOST = 64 << 20
"""Bytes of a manifest or configuration."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Files(Protocol):
    def open(self, name: str) -> IO[bytes] | None:
        """A file by its name, if it is there."""


class Store:
    """The parts of one or more images."""

    def __init__(self, files: _Files) -> None:
        self._files = files

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        file = self._files.open(name)
        if file is not None:
            file.close()
        return file is not None

    def open(self, name: str) -> IO[bytes]:
        """An open file.

        Raises:
            ImageError: There is none.
        """
        file = self._files.open(name)
        if file is None:
            raise ImageError(f"it lacks {name!r}")
        return file

    def json(self, name: str, digest: str = "") -> Any:
        """What a file says.

        Raises:
            ImageError: It is not there, is no JSON, or is not what its digest says.
        """
        with self.open(name) as file:
            data = file.read(_MOST + 1)
        if digest and digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            raise ImageError(f"{name!r} is not what its digest says")
        try:
            return json.loads(data)
        except ValueError:
            raise ImageError(f"{name!r} is no JSON") from None

    @staticmethod
    def blob(digest: str) -> str:
        """Where a layout has what is known by a digest.

        Raises:
            ImageError: It is none.
        """
        if not _DIGEST.fullmatch(digest):
            raise ImageError(f"{digest!r} is no SHA-256 digest")
        return f"blobs/sha256/{digest.removeprefix('sha256:')}"


@contextlib.contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """The store at a path, for as long as the block runs."""
    if path.is_dir():
        yield Store(_Folder(path))
        return
    with tarfile.open(path, "r:*") as archive:
        yield Store(_Archive(archive))


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> IO[bytes] | None:
        place = self._path.joinpath(*split_name(name))
        return place.open("rb") if place.is_file() else None


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: dict[str, str] | None = None

    def open(self, name: str) -> IO[bytes] | None:
        if self._names is None:
            self._names = {m.removeprefix("./"): m for m in self._archive.getnames()}
        if name not in self._names:
            return None
        return self._archive.extractfile(self._names[name])
