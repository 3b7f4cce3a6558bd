"""Data files: JSON (an object or a list), JSONL, CSV, TSV, YAML, told apart by their suffix.

Whatever is wrong with a file is a `TaskError` that names file, row and field, before anything is
started. Rows count from 0, as the ids that the 2023 data's rows get; where a format has lines of
its own, the line is named too. Pickle is refused: to read it is to run what it says.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from intercode.errors import TaskError
from intercode.task import Dataset, Task

Row = tuple[str, Any]
"""Where it stands (``row 3 (line 7)``), and what was read there."""


def load_file(path: str | Path, name: str | None = None) -> Dataset:
    """The tasks in a file.

    Args:
        path: The file.
        name: The dataset's name; default: the file's, without its suffix.

    Raises:
        TaskError: It cannot be read, or is malformed.
    """
    path = Path(path)
    tasks = []
    for index, (where, row) in enumerate(read_rows(path)):
        if not isinstance(row, dict):
            raise TaskError(f"{path}: {where} must be an object, not {type(row).__name__}")
        try:
            tasks.append(Task.from_dict(row, index))
        except TaskError as error:
            raise TaskError(f"{path}: {where}, {error}") from None
    if not tasks:
        raise TaskError(f"{path}: holds no tasks")
    return Dataset(tasks, path.stem if name is None else name, str(path))


def read_rows(path: Path) -> list[Row]:
    """The rows of a file as they are, each with where it stands.

    An object with nothing but ``canary`` is no row: its text keeps a file out of training corpora.

    Raises:
        TaskError: It cannot be read, or is malformed.
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
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        rows = list(_READERS[suffix](text))
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path}: {error}") from None
    return [(where, row) for where, row in rows if not _is_canary(row)]


def _is_canary(row: object) -> bool:
    return isinstance(row, dict) and row.keys() == {"canary"}


def _numbered(data: object) -> Iterator[Row]:
    """The rows of a parsed document: one object, or a list of them."""
    if not isinstance(data, (list, dict)):
        raise ValueError(f"must hold an object or a list of objects, not {type(data).__name__}")
    rows = data if isinstance(data, list) else [data]
    yield from ((f"row {index}", row) for index, row in enumerate(rows))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of a field that stands in it twice, JSON would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is given twice in one object")
    return found


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None


def _json(text: str) -> Iterator[Row]:
    return _numbered(_parse(text))


def _jsonl(text: str) -> Iterator[Row]:
    index = 0
    # Not splitlines(): U+2028 and its like may stand unescaped within a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"row {index} (line {number})"
        try:
            yield where, _parse(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        index += 1


def _table(delimiter: str) -> Callable[[str], Iterator[Row]]:
    def read(text: str) -> Iterator[Row]:
        # NUL is refused here because before Python 3.11 the reader fails on it by itself.
        if "\0" in text:
            raise ValueError(f"holds a NUL in line {text[: text.index(chr(0))].count(chr(10)) + 1}")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) < len(header) or "" in header:
                raise ValueError("line 1: the header has an empty or repeated field name")
            for index, cells in enumerate(row for row in reader if row):
                where = f"row {index} (line {reader.line_num})"
                if len(cells) != len(header):
                    raise ValueError(f"{where}: has {len(cells)} cells, the header {len(header)}")
                # An empty cell is an absent field: a table has no other way to say so.
                row = {key: cell for key, cell in zip(header, cells, strict=True) if cell}
                yield where, _typed(row)
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None

    return read


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """A table's row, with its one number a number."""
    # Where it is none, the task's own check says so, and where.
    with suppress(KeyError, ValueError):
        row["timeout"] = float(row["timeout"])
    return row


def _yaml(text: str) -> Iterator[Row]:
    try:
        import yaml
    except ImportError:
        raise TaskError(
            "YAML needs PyYAML: pip install 'intercode-gym[yaml]' (or use JSON)"
        ) from None
    try:
        return _numbered(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None


_READERS: dict[str, Callable[[str], Iterator[Row]]] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".yaml": _yaml,
    ".yml": _yaml,
}
