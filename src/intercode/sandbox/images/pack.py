"""A folder as a tarball that can be laid over an image: binary files, with their layout."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO

from intercode.errors import ImageError
from intercode.files import cache_root
from intercode.sandbox.images.sources import keep


def pack(folder: Path, at: str, without: Collection[str] = ()) -> Path:
    """The folder's content as a tarball in the cache, for ``IMAGE+TARBALL``.

    It is named by its bytes, and these depend only on the files' names, content and whether they
    can be executed: two copies of a folder give the same, whoever made them and when.

    Args:
        folder: What is packed.
        at: The absolute path in the image that it will have.
        without: Names at its top that are left out.

    Raises:
        ImageError: It cannot be read, or the cache not be written.
    """
    if not folder.is_dir():
        raise ImageError(f"there is no folder {folder}")
    home = cache_root() / "packs"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=home, prefix=".", delete=False) as file:
            temporary = Path(file.name)
            try:
                write(file, folder, at, without)
                file.seek(0)
                place = home / f"{_digest(file)}.tar"
                keep(temporary, place)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ImageError(f"cannot pack the folder {folder}: {error}") from error
    return place


def write(
    file: IO[bytes],
    folder: Path,
    at: str,
    without: Collection[str] = (),
    *,
    keep_times: bool = False,
) -> None:
    """The folder's content as a tarball, in a file that is open for writing.

    Args:
        file: Where it goes.
        folder: What is packed.
        at: The absolute path in the image that it will have.
        without: Names at its top that are left out.
        keep_times: Whether files keep their times, to the second; else they have none.
    """
    left_out = {f"{at.strip('/')}/{name}" for name in without}

    def prepared(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name in left_out:
            return None
        mtime = int(member.mtime) if keep_times else 0
        return _same_everywhere(member, mtime)

    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        _add_parents(archive, PurePosixPath(at))
        archive.add(folder, at.strip("/"), filter=prepared)


def _add_parents(archive: tarfile.TarFile, at: PurePosixPath) -> None:
    for parent in reversed(at.relative_to("/").parents):
        if parent.parts:
            member = tarfile.TarInfo(str(parent))
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)


def _same_everywhere(member: tarfile.TarInfo, mtime: int) -> tarfile.TarInfo:
    """Without what differs between two copies of the same files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = mtime
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _digest(file: IO[bytes]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    while block := file.read(1 << 20):
        hasher.update(block)
    return hasher.hexdigest()
