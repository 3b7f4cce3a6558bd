"""Where a benchmark lies: what its loader looks for, in a folder and a little below it.

Archives of the same benchmark differ in how many folders they put around it, so what is looked
for is the files, not the folders' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode.datasets.files import read_rows
from intercode.errors import TaskError
from intercode.files import cache_root
from intercode.task import Task

_DEPTH = 3


def home(name: str) -> Path:
    """Where ``intercode datasets fetch`` puts a dataset, and its loader looks first."""
    return cache_root() / "datasets" / name


def installed(package: str) -> Path | None:
    """Where an installed package lies, which is not imported; None: nowhere."""
    spec = find_spec(package)
    return next(map(Path, spec.submodule_search_locations or ()), None) if spec else None


def locate(
    root: str | Path | None, name: str, layouts: Sequence[Sequence[str]]
) -> tuple[Path, int]:
    """The folder that has all files of one of the layouts, and which layout that is.

    Args:
        root: Where to look, in it and a few folders below; None: where the dataset was fetched to.
        name: The dataset.
        layouts: Each a list of files and folders, relative to the folder; the first counts most.

    Raises:
        TaskError: There is none; the message says what was looked for.
    """
    place = home(name) if root is None else Path(root)
    if place.is_dir():
        for folder in _folders(place.resolve(), _DEPTH):
            for number, files in enumerate(layouts):
                if all((folder / file).exists() for file in files):
                    return folder, number
    looked = "; or ".join(" and ".join(files) for files in layouts)
    advice = f"; to get it: intercode datasets fetch {name}" if root is None else ""
    raise TaskError(f"{place}: dataset {name!r} is not there; looked for {looked}{advice}")


def _folders(place: Path, depth: int) -> list[Path]:
    """A folder and those below it, the nearer ones first."""
    found = [place]
    level = [place]
    for _ in range(depth):
        level = sorted(
            child
            for folder in level
            for child in folder.iterdir()
            if child.is_dir() and not child.name.startswith((".", "__"))
        )
        found += level
    return found


def read_tasks(
    path: Path, convert: Callable[[Mapping[str, Any], int], Mapping[str, Any]]
) -> list[Task]:
    """The tasks of a benchmark's own file.

    Args:
        path: The file.
        convert: A row and its number → the fields of a task (see `Task.from_dict`).

    Raises:
        TaskError: The file is malformed; the message names file and row.
    """
    return [_task(path, convert, index, *row) for index, row in enumerate(read_rows(path))]


def _task(
    path: Path,
    convert: Callable[[Mapping[str, Any], int], Mapping[str, Any]],
    index: int,
    where: str,
    row: Any,
) -> Task:
    try:
        if not isinstance(row, dict):
            raise TaskError(f"must be an object, not {type(row).__name__}")
        return Task.from_dict(convert(row, index), index)
    except KeyError as error:
        raise TaskError(f"{path}: {where}: field {error} is missing") from None
    except TaskError as error:
        raise TaskError(f"{path}: {where}: {error}") from None


def read_tables(path: Path) -> dict[str, dict[str, list[str]]]:
    """Database → table → columns, from a ``tables.json`` as Spider and BIRD have it.

    Raises:
        TaskError: It is malformed.
    """
    return dict(_tables(path, *row) for row in read_rows(path))


def _tables(path: Path, where: str, row: Any) -> tuple[str, dict[str, list[str]]]:
    try:
        names = row["table_names_original"]
        tables: dict[str, list[str]] = {name: [] for name in names}
        for table, column in row["column_names_original"]:
            if table >= 0:  # -1 is that of "*"
                tables[names[table]].append(column)
        return row["db_id"], tables
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise TaskError(f"{path}: {where}: no description of a database: {error!r}") from None
