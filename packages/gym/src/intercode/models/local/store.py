"""The files of local models::

    ROOT/models/NAME/FILE.gguf        whole and verified, or not there
    ROOT/models/NAME/.FILE.gguf.new   what has come of a download that broke off
    ROOT/models/.NAME.lock            held by the process that fetches it

where ROOT is InterCode's cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from intercode.downloads import Progress, download, tenth_progress
from intercode.errors import FetchError, UsageError
from intercode.models.local import PROVIDER
from intercode.models.local.catalog import HOST, ModelEntry, find_entry
from intercode.models.local.gguf import Header, read_header
from intercode_sandbox.files import (
    atomic_file,
    cache_root,
    file_lock,
    remove_tree,
    sha256,
    tree_size,
)

SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file on this machine."""

    path: Path
    size: int
    """Bytes."""
    header: Header
    sha256: str
    """Of the file, in hexadecimal."""


def folder() -> Path:
    """Return the folder of all fetched models."""
    return cache_root() / "models"


def home(entry: ModelEntry) -> Path:
    """Return the place of a model's file, whether it is there or not."""
    return folder() / entry.name / entry.file


def is_path(name: str) -> bool:
    """Tell whether a model is named by its file."""
    return name.endswith(SUFFIX)


def find_weights(name: str) -> Weights:
    """Return the file of a model.

    Args:
        name: A path that ends in ``.gguf``, or a name of the catalog.

    Raises:
        UsageError: There is no such file or model, it is not fetched yet, or it is damaged.
    """
    if is_path(name):
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"local/{name}: there is no such file")
        return Weights(path.resolve(), path.stat().st_size, read_header(path), sha256(path))
    entry = find_entry(name)
    path = home(entry)
    if not path.is_file():
        raise UsageError(f"local/{name} is not on this machine: intercode models fetch {name}")
    if (size := path.stat().st_size) != entry.size:
        raise UsageError(
            f"{path}: has {size:,} bytes and not {entry.size:,}: "
            f"intercode models remove {name}, and fetch it again"
        )
    return Weights(path, entry.size, read_header(path), entry.sha256)


def fetch(
    entry: ModelEntry,
    *,
    origin: str | Path = "",
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a model's file, unless it is there; a download that broke off is continued.

    Args:
        entry: The model.
        origin: The same file on this machine, or another URL of it; empty: its publisher's.
        say: Called with lines of text about the steps.
        progress: Called during the download.

    Returns:
        The file's place.

    Raises:
        UsageError: There is no such file.
        FetchError: The file cannot be had, or is another one.
    """
    place = home(entry)
    tell = say or (lambda line: None)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(
            folder() / f".{entry.name}.lock",
            on_wait=lambda: tell(f"waiting for another process that is fetching {entry.name}"),
        ):
            if not place.exists():
                if origin and "://" not in str(origin):
                    _copy(entry, Path(origin).expanduser(), place)
                else:
                    url = str(origin) or entry.url
                    tell(f"fetching {url} ({entry.licence}; {HOST}/{entry.repository})")
                    download(url, place, sha256=entry.sha256, progress=progress, resumable=True)
                place.chmod(0o444)
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"cannot store models in {folder()}: {error}") from error
    finally:
        with suppress(OSError):  # not there, or not empty
            place.parent.rmdir()
    return place


def ensure(name: str | None, say: Callable[[str], None]) -> None:
    """Fetch a model that a run names, if it is one of the catalog and not on this machine.

    Args:
        name: ``PROVIDER/NAME``; only ``local/NAME`` is looked at.
        say: Called with lines of text about the download, one for each tenth of it.

    Raises:
        UsageError: There is no such model.
        FetchError: The file cannot be had, or is another one.
    """
    provider, _, model = (name or "").partition("/")
    if provider != PROVIDER or is_path(model):
        return
    entry = find_entry(model)
    if not home(entry).exists():
        fetch(entry, say=say, progress=tenth_progress(say))


def remove(entry: ModelEntry) -> int | None:
    """Remove a model's files.

    Returns:
        The bytes on disk that this freed; None: there were none.
    """
    place = home(entry).parent
    if not place.exists():
        return None
    with file_lock(folder() / f".{entry.name}.lock"):
        size = tree_size(place)
        remove_tree(place)
    return size


def _copy(entry: ModelEntry, origin: Path, place: Path) -> None:
    if not origin.is_file():
        raise UsageError(f"{origin}: there is no such file")
    with atomic_file(place) as part:
        shutil.copyfile(origin, part)
        if (file_digest := sha256(part)) != entry.sha256:
            raise FetchError(
                f"{origin}: is not {entry.file} of {entry.repository}: SHA-256 is {file_digest}, "
                f"not {entry.sha256}; to run your own file, name local/{origin}"
            )
