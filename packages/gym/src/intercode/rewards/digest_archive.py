"""A program that prints a digest of the members of the archive on standard input.

The program is started as a script with its own limits, because the standard library's readers do
not withstand hostile archives. A header of 30 MB of digits occupies `tarfile` for hours, in which
no other thread runs. A name of 8 GiB, compressed to 8 MB, fills 8 GiB of memory. The readers may
raise any type of exception. Each of these failures ends only this process.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import resource
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, cast

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of an archive, and of all its members together; larger archives are not read."""
_SECONDS = 10
"""Seconds of processor time."""
_MEMORY = 1024 * 1024 * 1024


def _read_gzip(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    with gzip.open(file) as member_file:
        yield "", _digest(cast("IO[bytes]", member_file), MAX_BYTES)[0]


def _read_tar(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    remaining_bytes = MAX_BYTES
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            name = member.name.removeprefix("./").lstrip("/")
            if member.isfile() or member.islnk():  # a hard link refers to an earlier member
                member_file = archive.extractfile(member)
                assert member_file is not None
                digest, size = _digest(member_file, remaining_bytes)
                remaining_bytes -= size
                yield name, digest
            elif not member.isdir():
                yield name, f"{member.type!r} {member.linkname}"


def _read_zip(file: IO[bytes]) -> Iterator[tuple[str, str]]:
    remaining_bytes = MAX_BYTES
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                with archive.open(member) as member_file:
                    digest, size = _digest(member_file, remaining_bytes)
                remaining_bytes -= size
                yield member.filename, digest


def _digest(file: IO[bytes], max_bytes: int) -> tuple[str, int]:
    """Return the digest of a file, and its size in bytes.

    Raises:
        ValueError: The file is larger than `max_bytes`.
    """
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError("it is too large")
    return hashlib.sha256(content).hexdigest(), len(content)


READERS: Mapping[str, Callable[[IO[bytes]], Iterator[tuple[str, str]]]] = {
    "gzip": _read_gzip,
    "tar": _read_tar,
    "zip": _read_zip,
}

KINDS = tuple(READERS)


def main() -> None:
    """Print the digest of the archive's members; after any failure the exit status is not 0."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    file = io.BytesIO(sys.stdin.buffer.read())
    members = sorted({*READERS[sys.argv[1]](file)})  # a repeated member counts once
    print(hashlib.sha256(repr(members).encode("utf-8", "surrogateescape")).hexdigest())


if __name__ == "__main__":
    main()
