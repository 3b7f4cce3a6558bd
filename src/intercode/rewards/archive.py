"""Archives by what is in them: two of the same files differ in times, order and compression."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, cast

from intercode.errors import OutputLimitError
from intercode.sandbox.base import MIB, Sandbox

_LARGEST = 64 * MIB
"""Bytes of an archive, and of all that is in it, up to which it is looked into."""


def content(sandbox: Sandbox, path: str, kind: str) -> str:
    """A digest of what is in an archive of a sandbox's; empty if there is none that can be read.

    Args:
        sandbox: Where it is.
        path: Absolute.
        kind: One of `KINDS`.

    Raises:
        SandboxError: The sandbox failed.
    """
    try:
        data = sandbox.read_file(path, _LARGEST)
        members = sorted({*_KINDS[kind](io.BytesIO(data))})  # one that comes twice is there once
    except (
        OSError, OutputLimitError, EOFError, KeyError, ValueError, RuntimeError,
        NotImplementedError, tarfile.TarError, zipfile.BadZipFile, zlib.error,
    ):  # fmt: skip
        return ""  # the agent's, or whoever's: it is no such archive
    return hashlib.sha256(repr(members).encode("utf-8", "surrogateescape")).hexdigest()


def _of_gzip(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    with gzip.open(file) as unpacked:
        yield "", _digest(cast("IO[bytes]", unpacked), _LARGEST)[0]


def _of_tar(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    left = _LARGEST
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            name = member.name.removeprefix("./").lstrip("/")
            if member.isfile() or member.islnk():  # a hard link is a file that came before
                unpacked = archive.extractfile(member)
                assert unpacked is not None
                found, size = _digest(unpacked, left)
                left -= size
                yield name, found
            elif not member.isdir():
                yield name, f"{member.type!r} {member.linkname}"


def _of_zip(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    left = _LARGEST
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as unpacked:
                    found, size = _digest(unpacked, left)
                left -= size
                yield member.filename, found


def _digest(file: IO[bytes], most: int) -> tuple[str, int]:
    """Of a file, and its size.

    Raises:
        ValueError: It is larger than that.
    """
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError("it is too large")
    return hashlib.sha256(data).hexdigest(), len(data)


_KINDS: Mapping[str, Callable[[IO[bytes]], Iterator[tuple[str, str]]]] = {
    "gzip": _of_gzip,
    "tar": _of_tar,
    "zip": _of_zip,
}
KINDS = tuple(_KINDS)
