"""Loader of WikiSQL (Zhong et al. 2017): questions about one table each, from the user's copy.

The copy has one of two layouts:

- the authors' layout: ``dev.jsonl``, ``dev.tables.jsonl`` and ``dev.db``. The data have structured
  queries, which the loader converts to SQL in SQLite's dialect, as the authors' program does. Texts
  in the SQL are in lower case, because the authors' database stores texts in lower case. The
  columns have the names ``col0``, ``col1``…. Therefore the task's query lists the table and the
  meaning of its columns;
- the 2023 release of InterCode: ``ic_wikisql_dev.json`` and ``ic_wikisql_dev.sql``. Of the 196
  golds, 174 are not valid SQL, because names and texts are not quoted (``SELECT COUNT
  School/Club_Team FROM … WHERE No. = 3``). Seven of the others return no rows for the same reason
  (``Record = 2-13``). The loader *repairs* these golds, whose form is too simple to be ambiguous.
  ``metadata["gold_as_published"]`` retains the published text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader
from intercode.datasets.files import locate, read_rows, read_tasks
from intercode.errors import TaskError
from intercode.sql_identifiers import quote_identifier
from intercode.task import Dataset

SPLITS = ("dev", "train", "test")
AGGREGATES = ("", "MAX", "MIN", "COUNT", "SUM", "AVG")
OPERATORS = ("=", ">", "<")

_RELEASE = ("ic_wikisql_dev.json", "ic_wikisql_dev.sql")
_PUBLISHED_QUERY = re.compile(
    r"SELECT (?:(MAX|MIN|COUNT|SUM|AVG) )?(\S+) FROM (\w+)(?: WHERE (.*))?", re.DOTALL
)
_CONDITION = re.compile(r"(\S+) ([=<>]) (.*)", re.DOTALL)
_NEXT_CONDITION = re.compile(r" AND (?=\S+ [=<>] )")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")


@cached_loader
def load(
    root: str | Path | None = None,
    split: str = "dev",
    repair: bool = True,
    databases: str | Path | None = None,
) -> Dataset:
    """Load a split of WikiSQL. A task's id is the number of its row.

    Args:
        root: A folder that contains one of the layouts, at most three levels deep; None: the folder
            that ``intercode datasets fetch wikisql`` has written.
        split: One of `SPLITS`; the 2023 release has only ``dev``.
        repair: Whether to convert golds of the 2023 release to valid SQL.
        databases: Another file of the database; None: the file in the layout.

    Returns:
        The dataset.

    Raises:
        TaskError: The split is unknown, absent or malformed.
    """
    if split not in SPLITS:
        raise TaskError(f"WikiSQL has no split {split!r}; known: {', '.join(SPLITS)}")
    files = (f"{split}.jsonl", f"{split}.tables.jsonl", f"{split}.db")
    dataset_folder, layout = locate(
        root, "wikisql", [files] + ([_RELEASE] if split == "dev" else [])
    )
    if layout == 1:
        tasks = read_tasks(
            dataset_folder / _RELEASE[0], lambda row, index: _released_fields(row, index, repair)
        )
    else:
        tables = _read_tables(dataset_folder / files[1])
        tasks = read_tasks(
            dataset_folder / files[0],
            lambda row, index: _authored_fields(row, index, split, tables),
        )
    name = "wikisql" if split == "dev" else f"wikisql-{split}"
    source, *_, database_file = _RELEASE if layout == 1 else files
    return Dataset(
        tasks, name, str(dataset_folder / source), str(databases or dataset_folder / database_file)
    )


def repair_query(gold: str) -> str | None:
    """Convert a gold of the 2023 release to valid SQL for MySQL.

    The result is None if the gold has not the form of the released golds.
    """
    match = _PUBLISHED_QUERY.fullmatch(gold.strip())
    if match is None:
        return None
    aggregate, column, table, where_clause = match.groups()
    selection = (
        f"{aggregate}({quote_identifier(column, '`')})"
        if aggregate
        else quote_identifier(column, "`")
    )
    sql = f"SELECT {selection} FROM {quote_identifier(table, '`')}"
    conditions = []
    for condition_text in _NEXT_CONDITION.split(where_clause) if where_clause else ():
        condition = _CONDITION.fullmatch(condition_text)
        if condition is None:
            return None
        name, operator, value = condition.groups()
        # In MySQL, unlike in SQLite, a backslash in a string begins an escape sequence.
        value = value.replace("\\", "\\\\")
        is_number = operator != "=" and _NUMBER.fullmatch(value)
        literal = value if is_number else quote_identifier(value, "'")
        conditions.append(f"{quote_identifier(name, '`')} {operator} {literal}")
    return f"{sql} WHERE {' AND '.join(conditions)}" if conditions else sql


def to_sql(query: Mapping[str, Any], table: str, types: Sequence[str]) -> str:
    """Convert a structured query of the authors to SQL for SQLite.

    Args:
        query: An object with three fields. ``sel`` is the index of the selected column, ``agg`` is
            an index in `AGGREGATES`. ``conds`` is a list of conditions: index of a column, index in
            `OPERATORS`, and value.
        table: The table's name in the database.
        types: The types of the table's columns, ``text`` or ``real``.

    Raises:
        TaskError: The query refers to a column or operator that does not exist.
    """
    try:
        selection = f"col{range(len(types))[query['sel']]}"
        if aggregate := AGGREGATES[query["agg"]]:
            selection = f"{aggregate}({selection})"
        conditions = [
            f"col{range(len(types))[column]} {OPERATORS[operator]} {_value(value, types[column])}"
            for column, operator, value in query["conds"]
        ]
    except (IndexError, ValueError, TypeError) as error:
        raise TaskError(f"field 'sql' is not a query: {error}") from None
    sql = f"SELECT {selection} FROM {table}"
    return f"{sql} WHERE {' AND '.join(conditions)}" if conditions else sql


def _value(value: object, kind: str) -> str:
    if kind == "real" and isinstance(value, str):
        match = _NUMBER.search(value.replace(",", ""))
        return match[0] if match else quote_identifier(value.lower(), "'")
    if isinstance(value, (int, float)):
        return quote_identifier(str(value), "'") if kind != "real" else json.dumps(value)
    return quote_identifier(str(value).lower(), "'")


def _authored_fields(
    row: Mapping[str, Any], index: int, split: str, tables: Mapping[str, Any]
) -> dict[str, Any]:
    identifier = row["table_id"]
    if identifier not in tables:
        raise TaskError(f"field 'table_id': there is no table {identifier!r}")
    header, types = tables[identifier]
    table = "table_" + identifier.replace("-", "_")
    columns_text = ", ".join(
        f"col{column_index} is {name!r}" for column_index, name in enumerate(header)
    )
    return {
        "task_id": index,
        "query": f"{row['question']} (Use table {table}, in which {columns_text})",
        "gold": to_sql(row["sql"], table, types),
        "db": split,
        "dialect": "sqlite",
        "sql": row["sql"],
        "db_tables": {table: list(header)},
    }


def _released_fields(row: Mapping[str, Any], index: int, repair: bool) -> dict[str, Any]:
    fields = {**row, "task_id": index, "dialect": "mysql"}
    if repair and (valid_query := repair_query(row["gold"])):
        fields |= {"gold": valid_query, "gold_as_published": row["gold"]}
    return fields


def _read_tables(path: Path) -> dict[str, tuple[list[str], list[str]]]:
    return dict(_table(path, *row) for row in read_rows(path))


def _table(path: Path, location: str, row: Any) -> tuple[str, tuple[list[str], list[str]]]:
    try:
        return row["id"], ([str(name) for name in row["header"]], list(row["types"]))
    except (KeyError, TypeError) as error:
        raise TaskError(f"{path}: {location}: no description of a table: {error!r}") from None
