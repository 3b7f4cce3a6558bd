"""The store of local models' files::

    ROOT/models/NAME/FILE.gguf        complete and verified, or missing
    ROOT/models/NAME/.FILE.gguf.new   the received part of an interrupted download
    ROOT/models/.NAME.lock            lock of the process that fetches or removes the model
    ROOT/models/logs/                 logs of running servers, and of servers that failed

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
from intercode.models.local.catalog import HOST, LocalModelEntry, find_entry
from intercode.models.local.gguf import ModelFileHeader, read_header
from intercode_sandbox.host_files import (
    atomic_file,
    cache_root,
    file_lock,
    remove_tree,
    sha256,
    tree_size,
)

SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class ModelWeightsFile:
    """A model's file on this machine."""

    path: Path
    size: int
    """The size of the file in bytes."""
    header: ModelFileHeader
    sha256: str
    """The SHA-256 of the file, in hexadecimal."""


def folder() -> Path:
    """Return the folder of all fetched models."""
    return cache_root() / "models"


def home(entry: LocalModelEntry) -> Path:
    """Return the path of a model's file, whether it exists or not."""
    return folder() / entry.name / entry.file


def is_path(name: str) -> bool:
    """Return whether a model's name is the path of its file."""
    return name.endswith(SUFFIX)


def find_weights(name: str) -> ModelWeightsFile:
    """Return the file of a model.

    Args:
        name: A path that ends in ``.gguf``, or a name of the catalog.

    Raises:
        UsageError: The file or model is unknown or not fetched yet, or the file has the wrong size
            or is not a valid GGUF file.
    """
    if is_path(name):
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"local/{name}: there is no such file")
        return ModelWeightsFile(
            path.resolve(), path.stat().st_size, read_header(path), sha256(path)
        )
    entry = find_entry(name)
    path = home(entry)
    if not path.is_file():
        raise UsageError(f"local/{name} is not on this machine: intercode models fetch {name}")
    if (size := path.stat().st_size) != entry.size:
        raise UsageError(
            f"{path}: has {size:,} bytes and not {entry.size:,}: "
            f"intercode models remove {name}, and fetch it again"
        )
    return ModelWeightsFile(path, entry.size, read_header(path), entry.sha256)


def fetch(
    entry: LocalModelEntry,
    *,
    origin: str | Path = "",
    report_line: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a model's file unless it exists; an interrupted download is resumed.

    Args:
        entry: The model.
        origin: A local copy of the file, or another URL; empty: the publisher's URL.
        report_line: Called with a line of text for each step; None: no output.
        progress: Called repeatedly during the download; None: no report.

    Returns:
        The path of the file.

    Raises:
        UsageError: The local copy does not exist.
        FetchError: The file cannot be fetched, or has another digest.
    """
    model_file = home(entry)
    report_step = report_line or (lambda line: None)
    try:
        model_file.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(
            folder() / f".{entry.name}.lock",
            on_wait=lambda: report_step(
                f"waiting for another process that is fetching {entry.name}"
            ),
        ):
            if not model_file.exists():
                if origin and "://" not in str(origin):
                    _copy(entry, Path(origin).expanduser(), model_file)
                else:
                    url = str(origin) or entry.url
                    report_step(f"fetching {url} ({entry.licence}; {HOST}/{entry.repository})")
                    download(
                        url, model_file, sha256=entry.sha256, progress=progress, resumable=True
                    )
                model_file.chmod(0o444)
    except OSError as error:
        if isinstance(error, FetchError):
            raise
        raise FetchError(f"cannot store models in {folder()}: {error}") from error
    finally:
        with suppress(OSError):  # the folder is missing or not empty
            model_file.parent.rmdir()
    return model_file


def ensure(name: str | None, report_line: Callable[[str], None]) -> None:
    """Fetch the model of a run if the model is in the catalog and its file is not on this machine.

    Args:
        name: ``PROVIDER/NAME``; every name except ``local/NAME`` is ignored.
        report_line: Called with a line of text for each step, and for each tenth of the download.

    Raises:
        UsageError: The catalog has no such model.
        FetchError: The file cannot be fetched, or has another digest.
    """
    provider, _, model = (name or "").partition("/")
    if provider != PROVIDER or is_path(model):
        return
    entry = find_entry(model)
    if not home(entry).exists():
        fetch(entry, report_line=report_line, progress=tenth_progress(report_line))


def remove(entry: LocalModelEntry) -> int | None:
    """Remove a model's files.

    Returns:
        The freed bytes on disk; None: the model had no files.
    """
    model_folder = home(entry).parent
    if not model_folder.exists():
        return None
    with file_lock(folder() / f".{entry.name}.lock"):
        size = tree_size(model_folder)
        remove_tree(model_folder)
    return size


def _copy(entry: LocalModelEntry, origin: Path, target: Path) -> None:
    if not origin.is_file():
        raise UsageError(f"{origin}: there is no such file")
    with atomic_file(target) as partial_file:
        shutil.copyfile(origin, partial_file)
        if (file_digest := sha256(partial_file)) != entry.sha256:
            raise FetchError(
                f"{origin}: is not {entry.file} of {entry.repository}: SHA-256 is {file_digest}, "
                f"not {entry.sha256}; to run your own file, name local/{origin}"
            )
