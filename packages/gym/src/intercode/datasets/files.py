"""Readers of data files, the search for copies of benchmarks, and reviews of their golds.

The suffix of a data file determines its format: JSON (an object or a list), JSONL, CSV, TSV or
YAML. For a malformed file, a `TaskError` with file, row and field is raised, before any episode
starts. Rows are counted from 1, because editors count lines from 1. For JSONL and tables, messages
also name the line. Pickle is refused, because reading a pickle executes its code.

A copy of a benchmark is recognised by the files that its loader needs. `locate` searches for them
in a folder and three levels deep, because archives of the same benchmark differ in the number of
outer folders.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.errors import TaskError
from intercode.json_checks import build_object, check_plain, read_yaml
from intercode.task import CANNOT, FIELDS, Dataset, Task, freeze
from intercode_sandbox.host_files import cache_root

Row = tuple[str, Any]
"""A row's location, such as ``row 3 (line 7)``, and its content."""


def load_file(path: str | Path, name: str | None = None) -> Dataset:
    """Load the tasks in a data file.

    Args:
        path: The path of the file.
        name: The dataset's name; None: the file's name without its suffix.

    Returns:
        The dataset. Relative paths in a task are relative to the file's folder.

    Raises:
        TaskError: The file cannot be read, is malformed or holds no tasks.
    """
    path = Path(path)
    folder = path.absolute().parent
    tasks: list[Task] = []
    rows: dict[str, str] = {}
    extra_fields: set[str] = set()
    for index, (location, row) in enumerate(read_rows(path)):
        if not isinstance(row, dict):
            advice = ": rename the file to .json" if _is_rows(row) else ""
            raise TaskError(
                f"{path}: {location} must be an object, not {type(row).__name__}{advice}"
            )
        list_fields = [key for key, value in row.items() if value and _is_rows(value)]
        if list_fields and "query" not in row:
            raise TaskError(
                f"{path}: must hold a list of tasks, and holds an object with such a list under "
                f"{list_fields[0]!r}: write the list alone"
            )
        try:
            tasks.append(Task.from_dict(row, index, folder))
        except TaskError as error:
            raise TaskError(f"{path}: {location}, {error}") from None
        rows.setdefault(tasks[-1].task_id, location)
        extra_fields |= row.keys() - FIELDS
    if not tasks:
        raise TaskError(f"{path}: holds no tasks")
    name = path.stem if name is None else name
    return Dataset(tasks, name, str(path), rows=rows, retained_tasks=sorted(extra_fields))


load_cached_file = cached_loader(load_file)
"""The function `load_file` with a cache, which all environments of a process share."""


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a data file, each with its location, without converting them to tasks.

    An object with only the key ``canary`` is skipped. The canary is a text by which authors of
    training corpora recognise benchmark data, and exclude the file.

    Raises:
        TaskError: The file has an unknown suffix, cannot be read or is malformed.
    """
    suffix = path.suffix.lower()
    if suffix in (".pkl", ".pickle"):
        raise TaskError(f"{path}: pickle is refused, because reading it runs code; use JSON")
    if suffix not in _READERS:
        raise TaskError(
            f"{path}: unknown format {suffix or '(no suffix)'}; "
            f"known: {', '.join(sorted(_READERS))}"
        )
    try:
        text = track_file(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        rows = list(_READERS[suffix](text))
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from None
    return [(location, row) for location, row in rows if not _is_canary(row)]


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _is_canary(row: object) -> bool:
    return isinstance(row, dict) and row.keys() == {"canary"}


def _enumerate_rows(document: object) -> Iterator[Row]:
    """Yield the rows of a parsed document, which is an object or a list of objects."""
    if not isinstance(document, (list, dict)):
        raise ValueError(f"must hold an object or a list of objects, not {type(document).__name__}")
    rows = document if isinstance(document, list) else [document]
    yield from ((f"row {row_number}", row) for row_number, row in enumerate(rows, start=1))


def _parse(text: str) -> Any:
    try:
        document = json.loads(text, object_pairs_hook=build_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    check_plain(document, len(text))
    return document


def _json(text: str) -> Iterator[Row]:
    try:
        return _enumerate_rows(_parse(text))
    except ValueError as error:
        first_line, _, remaining_text = text.strip().partition("\n")
        if remaining_text and "Extra data" in str(error) and _is_object(first_line):
            raise ValueError("holds an object in each line: rename the file to .jsonl") from None
        raise


def _is_object(text: str) -> bool:
    try:
        return isinstance(_parse(text), dict)
    except ValueError:
        return False


def _jsonl(text: str) -> Iterator[Row]:
    row = 0
    # `str.splitlines` would also split at U+2028 and similar characters, which a JSON text may
    # contain without escapes.
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row += 1
        location = f"row {row} (line {line_number})"
        try:
            yield location, _parse(line)
        except ValueError as error:
            raise ValueError(f"{location}: {error}") from None


def _table(delimiter: str) -> Callable[[str], Iterator[Row]]:
    def read(text: str) -> Iterator[Row]:
        # Python's CSV reader accepts NUL characters, which are not valid in a table of texts.
        if "\0" in text:
            raise ValueError(f"holds a NUL in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
        # In a file with Windows line ends (CRLF), line breaks within cells are CRLF, too. The line
        # ends are replaced, so a task's text does not depend on the line ends of its file.
        text = text.replace("\r\n", "\n")
        # The default limit of the module csv is 128 KiB for a cell. The limit is global to the
        # process, so it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if len(header) == 1 and (
                other_delimiter := next(
                    (character for character in ";\t|" if character in header[0]), ""
                )
            ):
                raise ValueError(
                    f"line 1: the cells are separated by {other_delimiter!r}, not {delimiter!r}"
                )
            if len(set(header)) < len(header) or "" in header:
                raise ValueError("line 1: the header has an empty or repeated field name")
            for row_number, cells in enumerate(filter(None, reader), start=1):
                location = f"row {row_number} (line {reader.line_num})"
                if len(cells) != len(header):
                    raise ValueError(
                        f"{location}: has {len(cells)} cells, the header {len(header)}"
                    )
                # An empty cell stands for an absent field, because a table cannot express absence
                # otherwise.
                yield location, {key: cell for key, cell in zip(header, cells, strict=True) if cell}
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None

    return read


def _yaml(text: str) -> Iterator[Row]:
    try:
        return _enumerate_rows(read_yaml(text))
    except ImportError:
        raise TaskError(
            "YAML needs PyYAML: pip install 'intercode-gym[yaml]' (or use JSON)"
        ) from None


_READERS: dict[str, Callable[[str], Iterator[Row]]] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".yaml": _yaml,
    ".yml": _yaml,
}
_DEPTH = 3


def home(name: str) -> Path:
    """Return the folder of a fetched dataset in InterCode's cache, which its loader searches."""
    return cache_root() / "datasets" / name


def find_installed(package: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if not installed."""
    spec = find_spec(package)
    return next(map(Path, spec.submodule_search_locations or ()), None) if spec else None


def locate(
    root: str | Path | None, name: str, layouts: Sequence[Sequence[str]]
) -> tuple[Path, int]:
    """Find the nearest folder that has all files of a layout.

    Args:
        root: The folder to search, three levels deep; None: the folder of the fetched dataset in
            the cache.
        name: The dataset's name.
        layouts: For each layout, the names of files and folders that a folder must contain. If a
            folder matches several layouts, the first counts.

    Returns:
        The folder, and the index of its layout in `layouts`.

    Raises:
        TaskError: No folder has the files of a layout; the message lists them.
    """
    root_folder = home(name) if root is None else Path(root)
    if track_file(root_folder).is_dir():
        for folder in _folders(root_folder.resolve(), _DEPTH):
            for layout_index, files in enumerate(layouts):
                if all((folder / file).exists() for file in files):
                    return folder, layout_index
    layouts_text = "; or ".join(" and ".join(files) for files in layouts)
    advice = f"; to get it: intercode datasets fetch {name}" if root is None else ""
    raise TaskError(
        f"{root_folder}: dataset {name!r} is not there; looked for {layouts_text}{advice}"
    )


def _folders(root_folder: Path, depth: int) -> list[Path]:
    """Return a folder and the folders in it, `depth` levels deep, with the nearer levels first.

    Hidden folders, and folders such as ``__MACOSX``, are omitted.
    """
    folders = [root_folder]
    level = [root_folder]
    for _ in range(depth):
        level = sorted(
            child
            for folder in level
            for child in track_file(folder).iterdir()
            if child.is_dir() and not child.name.startswith((".", "__"))
        )
        folders += level
    return folders


def read_tasks(
    path: Path, convert: Callable[[Mapping[str, Any], int], Mapping[str, Any]]
) -> list[Task]:
    """Read the tasks in a benchmark's file.

    Args:
        path: The path of the file.
        convert: A function that converts a row and its index, counted from 0, to the fields of a
            task (see `Task.from_dict`).

    Raises:
        TaskError: The file is malformed; the message names file and row.
    """
    tasks = []
    for index, (location, row) in enumerate(read_rows(path)):
        if not isinstance(row, dict):
            raise TaskError(f"{path}: {location}: must be an object, not {type(row).__name__}")
        try:
            tasks.append(Task.from_dict(convert(row, index), index))
        except KeyError as error:
            raise TaskError(f"{path}: {location}: field {error} is missing") from None
        except TaskError as error:
            raise TaskError(f"{path}: {location}: {error}") from None
    return tasks


def read_tables(path: Path) -> dict[str, dict[str, list[str]]]:
    """Read the tables of databases from a ``tables.json`` in the format of Spider and BIRD.

    Returns:
        Name of a database → name of a table → names of its columns.

    Raises:
        TaskError: The file is malformed; the message names file and row.
    """
    schemas = {}
    for location, row in read_rows(path):
        tables: dict[str, list[str]] = {}
        try:
            names = row["table_names_original"]
            tables |= {name: [] for name in names}
            for table, column in row["column_names_original"]:
                if table >= 0:  # the pseudo-column "*" has the table number -1
                    tables[names[table]].append(column)
            # Many tasks share the schema of a database, so it is made immutable.
            schemas[row["db_id"]] = freeze(tables)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise TaskError(
                f"{path}: {location}: no description of a database: {error!r}"
            ) from None
    return schemas


def apply(task: Task, review: Mapping[str, Any] | None) -> Task:
    """Return a benchmark's task with the corrections of InterCode's review.

    A file of reviews has a line for each task about which the reviewers have a remark. The fields
    of a line are as follows. ``row`` identifies the task. ``gold`` is ``right`` or ``wrong``, a
    verdict on the published gold. ``golds`` are other right golds, and ``tests`` are further tests.
    ``cannot`` is the reason why right and wrong answers cannot be distinguished: such a task gets
    the reason in its metadata, and no other correction. ``db`` is the task's database. ``note`` is
    a remark for readers. All reviews were written for this project and quote nothing from the data.

    Args:
        task: The task.
        review: The line of the task; None: the task is returned unchanged.

    Raises:
        TaskError: The review names another database than the task, so the data is of another
            version.
    """
    if review is None:
        return task
    if review.get("db", task.db) != task.db:
        raise TaskError(
            f"task {task.task_id!r} uses the database {task.db!r}, but its review "
            f"{review['db']!r}: this is another version of the data"
        )
    if CANNOT in review:
        return replace(task, metadata={**task.metadata, CANNOT: review[CANNOT]})
    published_golds = task.gold if review["gold"] == "right" else ()
    tests = (*task.tests, *review.get("tests", ()))
    return replace(task, gold=(*published_golds, *review["golds"]), tests=tests)


@cache
def reviews(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read a file of reviews; `apply` describes the fields of a line.

    Returns:
        Value of a line's field ``row``, as text → the whole line.
    """
    return {str(row["row"]): row for _, row in read_rows(file)}
