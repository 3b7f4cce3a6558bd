"""Download of datasets, and safe unpacking of their archives.

A dataset is downloaded and unpacked in a temporary folder, and loaded there as a test. Only then
is the dataset moved to the folder that its loader searches::

    ROOT/datasets/NAME          complete, or absent
    ROOT/datasets/.NAME.part/   download in progress
    ROOT/datasets/.NAME.lock    lock of the process that fetches the dataset

ROOT is InterCode's cache.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, cast

from intercode.datasets.catalog import DatasetCatalogEntry, find
from intercode.datasets.files import home
from intercode.downloads import Progress, download
from intercode.errors import FetchError, TaskError, UsageError
from intercode.registry import DATASETS
from intercode.task import Dataset
from intercode_sandbox.host_files import file_lock, remove_tree, sha256 as digest
from intercode_sandbox.units import format_count

LIMIT = 16 << 30
"""The maximum size of an unpacked archive in bytes (16 GiB)."""

_MOST_MEMBERS = 200_000
_BLOCK = 1 << 20
_ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeError,
)


def fetch(
    name: str,
    *,
    origin: str = "",
    sha256: str = "",
    force: bool = False,
    report_line: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Fetch a dataset into InterCode's cache, unless the cache has the dataset already.

    Args:
        name: The name of a dataset that is not bundled. Without `origin`, the catalogue must have
            an address for the dataset.
        origin: A replacement for the catalogue's address: another URL of the archive, the path of
            the archive, or a folder with the dataset. The cache then has a link to the folder.
        sha256: The digest of the archive in hexadecimal; empty: the catalogue's digest for a
            download from the catalogue's address, otherwise no verification. Without effect if
            `origin` is a folder.
        force: Whether to fetch a dataset again that the cache has.
        report_line: A function that receives a line of text at each step.
        progress: A callback that receives the progress of the download.

    Returns:
        The loaded dataset.

    Raises:
        UsageError: The dataset is unknown, bundled or has no address, or `origin` is unusable.
        FetchError: The dataset cannot be downloaded, unpacked, loaded or stored, or the archive has
            another digest.
        TaskError: The dataset in the cache is malformed.
    """
    entry = find(name)
    if entry.bundled:
        raise UsageError(f"dataset {name!r} comes with InterCode; there is nothing to fetch")
    if not (entry.url or origin):
        raise UsageError(f"dataset {name!r} has no address to fetch it from; {entry.advice}")
    dataset_folder = home(name)
    report_step = report_line or (lambda line: None)
    work_folder = dataset_folder.with_name(f".{name}.part")
    try:
        dataset_folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(
            dataset_folder.with_name(f".{name}.lock"),
            on_wait=lambda: report_step("waiting for another process that is fetching it"),
        ):
            if force or not dataset_folder.exists():
                remove_tree(work_folder)
                work_folder.mkdir()
                try:
                    _fetch(
                        entry, dataset_folder, work_folder, origin, sha256, report_step, progress
                    )
                finally:
                    remove_tree(work_folder)
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"cannot store datasets in {dataset_folder.parent}: {error}") from error
    return _load(name, dataset_folder)


def _fetch(
    entry: DatasetCatalogEntry,
    dataset_folder: Path,
    work_folder: Path,
    origin: str,
    sha256: str,
    report_step: Callable[[str], None],
    progress: Progress | None,
) -> None:
    unpack_folder = work_folder / "unpacked"
    local = Path(origin).expanduser() if origin and "://" not in origin else None
    if local is not None and local.is_dir():
        if local.resolve() in (dataset_folder.parent.resolve() / dataset_folder.name).parents:
            raise UsageError(
                f"{origin}: contains InterCode's cache; name a folder that contains only the data"
            )
        unpack_folder.symlink_to(local.resolve())
        archive = None
    elif local is not None:
        if not local.is_file():
            raise UsageError(f"{origin}: there is no such file or folder")
        if sha256:
            _check_digest(local, sha256)
        archive = local
    else:
        archive = work_folder / "archive"
        url = origin or entry.url
        report_step(f"fetching {url} ({entry.licence}; {entry.home})")
        required_digest = sha256 or ("" if origin else entry.sha256)
        download(url, archive, sha256=required_digest, progress=progress)
    try:
        if archive is not None:
            report_step("unpacking")
            unpack(archive, unpack_folder)
        dataset = _load(entry.name, unpack_folder)
    except (FetchError, TaskError) as error:
        raise FetchError(f"the fetched file is not {entry.name!r}: {error}") from error
    if dataset_folder.is_symlink() or dataset_folder.exists():
        dataset_folder.rename(work_folder / "old")
    unpack_folder.rename(dataset_folder)
    report_step(f"{format_count(len(dataset), 'task')}, in {dataset_folder}")


def _check_digest(archive: Path, sha256: str) -> None:
    """Refuse a local archive with another SHA-256 than the required one."""
    try:
        actual_digest = digest(archive)
    except OSError as error:
        raise FetchError(f"{archive}: cannot be read: {error.strerror}") from error
    if actual_digest != sha256.lower():
        raise FetchError(f"{archive}: SHA-256 is {actual_digest}, not {sha256}")


def _load(name: str, root: Path) -> Dataset:
    return cast(Dataset, DATASETS.get(name)(root=root))


def unpack(archive: Path, folder: Path, limit: int = LIMIT) -> None:
    """Unpack an untrusted ZIP or TAR archive.

    A ZIP archive of databases within the archive (``*databases.zip``) is unpacked, too. Only
    folders and plain files are unpacked, and only into `folder`. An archive is refused if a member
    is a link or a device, is encrypted, or has a path outside the folder. An archive is also
    refused if it has more than 200,000 members, or more bytes than `limit`. Modes, owners and times
    are ignored.

    Args:
        archive: The path of the archive.
        folder: The folder to unpack into, which must not exist. The folder is removed if the
            archive cannot be unpacked.
        limit: The maximum number of bytes of all files together.

    Raises:
        FileExistsError: The folder exists already. The folder and its files stay.
        FetchError: The file is not a ZIP or TAR archive, is damaged, or is refused. All unpacked
            files are removed.
    """
    folder.mkdir(parents=True)
    try:
        _ArchiveUnpacker(limit).unpack(archive, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _ArchiveUnpacker:
    """The state of unpacking an archive. The archive and its inner archives share the limits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._remaining_bytes = limit
        self._members = 0

    def unpack(self, archive: Path, folder: Path) -> None:
        self._unpack_one(archive, folder)
        for inner_archive in sorted(folder.rglob("*databases.zip")):
            self._unpack_one(inner_archive, inner_archive.parent)
            inner_archive.unlink()

    def _unpack_one(self, archive: Path, folder: Path) -> None:
        try:
            is_zip = zipfile.is_zipfile(archive)
            if not is_zip and not tarfile.is_tarfile(archive):
                raise FetchError(f"{archive}: is neither a ZIP nor a TAR archive")
            for name, content in _zip_members(archive) if is_zip else _tar_members(archive):
                self._add(folder, name, content)
        except FetchError:
            raise
        except _ARCHIVE_ERRORS as error:
            raise FetchError(f"{archive.name}: is damaged: {error}") from error
        except (OSError, RuntimeError) as error:
            # The module zipfile raises RuntimeError for an encrypted member. OSError is raised for
            # damaged bzip2 data, among other reasons.
            raise FetchError(f"{archive.name}: cannot be unpacked: {error}") from error

    def _add(self, folder: Path, name: str, content: IO[bytes] | None) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise FetchError(f"the archive has more than {_MOST_MEMBERS} members")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise FetchError(f"the archive has a member {name!r}, which is outside of the archive")
        if "__MACOSX" in path.parts or path.name == ".DS_Store":
            return  # macOS adds these files to archives; they are not data
        target = folder.joinpath(*path.parts)
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while block := content.read(_BLOCK):
                self._remaining_bytes -= len(block)
                if self._remaining_bytes < 0:
                    raise FetchError(f"the archive unpacks to more than {self._limit} bytes")
                file.write(block)


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Yield the name and the content of each member of a ZIP archive; None: a folder."""
    with zipfile.ZipFile(archive) as archive_file:
        for info in archive_file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise FetchError(f"the archive has a member {info.filename!r} that is not a file")
            if info.is_dir():
                yield info.filename, None
                continue
            with archive_file.open(info) as content:
                yield info.filename, content


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(archive) as archive_file:
        for member in archive_file:
            if member.isdir():
                yield member.name, None
                continue
            content = archive_file.extractfile(member) if member.isfile() else None
            if content is None:
                raise FetchError(f"the archive has a member {member.name!r} that is not a file")
            with closing(content):
                yield member.name, content
