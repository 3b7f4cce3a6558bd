"""Downloads of Debian packages with known hashes, and the reader of a package's file.

The sources are a mirror, and Debian's snapshot archive, which has the packages of every day.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from intercode_sandbox.errors import ImageError
from intercode_sandbox.images.base import Progress
from intercode_sandbox.images.debian import MIRROR

SNAPSHOT = "http://snapshot.debian.org/archive/debian"
_MAX_DOWNLOADS = 4
_TRIES = 2
_TIMEOUT = 30.0
_CHUNK = 1 << 16
_PROGRESS_INTERVAL = 50
"""Number of packages after which the progress is reported."""


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A Debian package that is pinned to one file by its hash."""

    name: str
    version: str
    path: str
    """The path of the file in an archive of Debian: ``pool/main/…``."""
    size: int
    """Size of the file in bytes."""
    sha256: str


def fetch(
    packages: Sequence[DebianPackage], snapshot_time: str, folder: Path, progress: Progress
) -> None:
    """Download packages into a folder. The name of each file is the package's SHA-256.

    Args:
        packages: The packages.
        snapshot_time: A time at which Debian's archive had all of the packages:
            ``20260712T000000Z``.
        folder: The target folder.
        progress: A function that receives the messages.

    Raises:
        ImageError: Neither the mirror nor the snapshot archive has a package with the pinned hash.
    """
    mirror_url = os.environ.get("INTERCODE_DEBIAN_MIRROR") or MIRROR
    snapshot_url = os.environ.get("INTERCODE_DEBIAN_SNAPSHOT") or SNAPSHOT
    source_urls = [mirror_url.rstrip("/"), f"{snapshot_url.rstrip('/')}/{snapshot_time}"]
    pool = ThreadPoolExecutor(_MAX_DOWNLOADS)
    try:
        downloads = pool.map(lambda package: _fetch(package, source_urls, folder), packages)
        for count, _ in enumerate(downloads, 1):
            if count % _PROGRESS_INTERVAL == 0:
                progress(f"{count} of {len(packages)} packages")
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch(package: DebianPackage, source_urls: Sequence[str], folder: Path) -> None:
    urls = [f"{source_url}/{quote(package.path)}" for source_url in source_urls]
    failures = {}
    for url in urls * _TRIES:
        failures[url] = _failure(url, package, folder / package.sha256)
        if not failures[url]:
            return
    failure_text = "".join(f"  {url}: {failure}\n" for url, failure in failures.items())
    raise ImageError(
        f"cannot get the package {package.name} {package.version}:\n{failure_text}Set "
        "INTERCODE_DEBIAN_MIRROR to a mirror with this package, or INTERCODE_DEBIAN_SNAPSHOT to "
        "a copy of the snapshot archive; or import the image from another machine: 'intercode "
        "images export base FILE' there, 'intercode images import FILE' here"
    )


def _failure(url: str, package: DebianPackage, target_path: Path) -> str:
    """Download a package to a path; return the reason of a failure, or an empty text."""
    hasher, received_size = hashlib.sha256(), 0
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT) as response,
            target_path.open("wb") as file,
        ):
            while received_size <= package.size and (chunk := response.read(_CHUNK)):
                hasher.update(chunk)
                received_size += file.write(chunk)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return str(getattr(reason, "strerror", None) or reason or type(error).__name__)
    if (received_size, hasher.hexdigest()) == (package.size, package.sha256):
        return ""
    target_path.unlink()
    return "it has another content: its SHA-256 is not the pinned one"


@contextmanager
def open_package(path: Path) -> Iterator[tuple[str, tarfile.TarFile]]:
    """Open the file of a package; yield the text of its control file, and the archive of its files.

    Raises:
        OSError, ValueError, tarfile.TarError, …: The file is damaged; see `archive.DAMAGE`.
    """
    with path.open("rb") as file:
        members = dict(_members(file))
        control_tar, data_tar = (
            next(data_tar for name, data_tar in members.items() if name.startswith(f"{kind}.tar"))
            for kind in ("control", "data")
        )
        with tarfile.open(fileobj=io.BytesIO(control_tar)) as archive:
            control_file = archive.extractfile("./control")
            if control_file is None:
                raise ValueError("its control file is malformed")
            control_text = control_file.read().decode("utf-8")
        with tarfile.open(fileobj=io.BytesIO(data_tar)) as archive:
            yield control_text, archive


def _members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each member of an ``ar`` archive, a package's format.

    A member is a header of 60 bytes, the content, and a byte that makes an odd length even.
    """
    if file.read(8) != b"!<arch>\n":
        raise ValueError("it is not a Debian package")
    while header := file.read(60):
        size = int(header[48:58])
        yield header[:16].decode("ascii").strip().rstrip("/"), file.read(size)
        file.read(size % 2)
