"""Fetching a dataset: downloaded, unpacked, tried, and only then where its loader looks.

::

    ROOT/datasets/NAME          whole, or not there
    ROOT/datasets/.NAME.part/   what is being fetched, kept to go on with
    ROOT/datasets/.NAME.lock    held by who fetches it

where ROOT is InterCode's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from intercode.datasets.catalog import Entry, find
from intercode.datasets.download import Progress, download
from intercode.datasets.layout import home
from intercode.datasets.unpack import unpack
from intercode.errors import FetchError, TaskError, UsageError
from intercode.files import locked, remove_tree
from intercode.registry import DATASETS
from intercode.task import Dataset


def fetch(
    name: str,
    *,
    origin: str = "",
    sha256: str = "",
    force: bool = False,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Fetch a dataset, unless it is there.

    Args:
        name: One of the catalogue that has a place, or any of it with `origin`.
        origin: Instead of that place: another URL of the same archive, the archive as a file, or
            a folder that holds the dataset, which is linked to.
        sha256: What the archive must be; default: what the catalogue says, where it comes from
            the catalogue's place.
        force: Fetch it again.
        say: Is told, as a line of text, what happens.
        progress: Is told how the download goes.

    Returns:
        The dataset, loaded.

    Raises:
        UsageError: There is nothing to fetch under this name.
        FetchError: It cannot be fetched.
        TaskError: What is there by that name is malformed.
    """
    entry = find(name)
    if entry.bundled:
        raise UsageError(f"dataset {name!r} comes with InterCode; there is nothing to fetch")
    if not (entry.url or origin):
        raise UsageError(f"dataset {name!r} has no place to fetch it from; {entry.advice}")
    place = home(name)
    tell = say or (lambda line: None)

    def waiting() -> None:
        tell("waiting for another process that fetches it")

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.with_name(f".{name}.lock"), waiting=waiting):
            if force or not place.exists():
                _fetch(entry, place, origin, sha256, tell, progress)
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"cannot keep datasets in {place.parent}: {error}") from error
    return _load(name, place)


def is_here(name: str) -> bool:
    """Whether the dataset has been fetched."""
    return home(name).exists()


def _fetch(
    entry: Entry,
    place: Path,
    origin: str,
    sha256: str,
    tell: Callable[[str], None],
    progress: Progress | None,
) -> None:
    work = place.with_name(f".{entry.name}.part")
    work.mkdir(exist_ok=True)
    local = Path(origin).expanduser() if origin and "://" not in origin else None
    fresh = work / "unpacked"
    remove_tree(fresh)
    if local is not None and local.is_dir():
        if local.resolve() in (place.parent.resolve() / place.name).parents:
            raise UsageError(f"{origin}: holds the cache itself; name a folder nearer to the data")
        fresh.symlink_to(local.resolve())
        archive = None
    else:
        archive = local or work / "archive"
        if local is None:
            url = origin or entry.url
            tell(f"fetching {url} ({entry.licence}; {entry.home})")
            digest = sha256 or ("" if origin else entry.sha256)
            download(url, archive, sha256=digest, progress=progress)
        elif not archive.is_file():
            raise UsageError(f"{origin}: there is no such file or folder")
        tell("unpacking")
    try:
        if archive is not None:
            unpack(archive, fresh)
        dataset = _load(entry.name, fresh)
    except (FetchError, TaskError) as error:
        remove_tree(fresh)
        if archive is not None and local is None:
            archive.unlink()
        raise FetchError(f"what was fetched is not {entry.name!r}: {error}") from error
    _replace(fresh, place)
    remove_tree(work)
    tell(f"{len(dataset)} tasks, in {place}")


def _load(name: str, root: Path) -> Dataset:
    return cast(Dataset, DATASETS.get(name)(root=root))


def _replace(fresh: Path, place: Path) -> None:
    old = fresh.with_name("old")
    remove_tree(old)
    if place.is_symlink() or place.exists():
        place.rename(old)
    fresh.rename(place)
