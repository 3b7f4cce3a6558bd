"""The schema of an SQLite file, and how to make the same in another engine.

To fill a server's empty database: run `create_statements`, insert `rows` table by table, run
`finish_statements`. Keys that the data itself breaks, as SQLite lets it, are left out, and said in
`Schema.left_out`; so are partial indexes, those over expressions, ``CHECK`` and virtual tables. A
generated column becomes one with its values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from intercode.databases.convert.dump_table import quoted
from intercode.databases.convert.schema_ddl import create_statements, finish_statements
from intercode.databases.convert.schema_keys import with_keys
from intercode.databases.convert.schema_model import (
    Column,
    ForeignKey,
    Index,
    Schema,
    TableSchema,
    View,
)
from intercode.databases.convert.schema_types import Type, choose, decode, fit
from intercode.errors import TaskError

__all__ = [
    "Column",
    "ForeignKey",
    "Index",
    "Schema",
    "TableSchema",
    "Type",
    "View",
    "create_statements",
    "finish_statements",
    "read_schema",
    "rows",
]

_HIDDEN = 1  # a virtual table's column that is none to those who look


def read_schema(path: str | Path) -> Schema:
    """The schema of an SQLite file, its types chosen by what the columns hold.

    Reads every row once for each column.

    Raises:
        TaskError: It is no SQLite database, or a damaged one.
    """
    try:
        with closing(_open(path)) as connection:
            return _read(connection)
    except sqlite3.Error as error:
        raise TaskError(f"{path}: {error}") from error


def rows(path: str | Path, table: TableSchema) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, each value fitted to its column's type.

    Text that is not UTF-8 is taken for Latin-1. U+0000 is left out of texts.

    Raises:
        TaskError: The file cannot be read.
    """
    names = quoted([column.name for column in table.columns])
    types = [column.type for column in table.columns]
    try:
        with closing(_open(path)) as connection:
            for row in connection.execute(f"SELECT {names} FROM {quoted([table.name])}"):
                yield tuple(map(fit, row, types))
    except sqlite3.Error as error:
        raise TaskError(f"{path}: table {table.name}: {error}") from error


def _open(path: str | Path) -> sqlite3.Connection:
    # What is read here does not change, so it needs no lock, and no right to write beside it.
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = decode
    return connection


def _read(connection: sqlite3.Connection) -> Schema:
    made = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid"
    ).fetchall()
    left_out = []
    tables = []
    for kind, name, sql in made:
        if kind == "table" and sql.upper().split()[1] == "VIRTUAL":
            left_out.append(f"the virtual table {name}")
        elif kind == "table":
            tables.append(_table(connection, name, sql))
    views = tuple(View(name, sql) for kind, name, sql in made if kind == "view")
    keyed, broken = with_keys(connection, tables)
    return Schema(keyed, views, (*left_out, *broken))


def _table(connection: sqlite3.Connection, name: str, sql: str) -> TableSchema:
    found = connection.execute(f"PRAGMA table_xinfo({quoted([name])})").fetchall()
    found = [row for row in found if row[6] != _HIDDEN]
    key = tuple(row[1] for row in sorted(found, key=lambda row: row[5]) if row[5])
    collations = _collations(name, sql, [row[1] for row in found])
    columns = []
    for (_, column, declared, not_null, default, *_), collation in zip(
        found, collations, strict=True
    ):
        kind, longest = choose(connection, name, column, declared)
        columns.append(
            Column(
                name=column,
                declared=declared,
                type=kind,
                not_null=bool(not_null),
                default=default,
                ignores_case=kind.is_text and collation == "NOCASE",
                longest=longest if kind.is_text else 0,
            )
        )
    table = TableSchema(name, tuple(columns), key)
    return _numbered(connection, table)


def _numbered(connection: sqlite3.Connection, table: TableSchema) -> TableSchema:
    """With the number of the next row, where SQLite gives one: in an INTEGER PRIMARY KEY."""
    if len(table.primary_key) != 1:
        return table
    key = table.column(table.primary_key[0])
    if key.declared.upper() != "INTEGER" or not key.type.is_whole:
        return table
    most = connection.execute(
        f"SELECT MAX({quoted([key.name])}) FROM {quoted([table.name])}"
    ).fetchone()[0]
    numbered = replace(key, next_number=max(0, most or 0) + 1, not_null=True, default=None)
    columns = tuple(numbered if column is key else column for column in table.columns)
    return replace(table, columns=columns)


def _collations(name: str, sql: str, columns: list[str]) -> list[str]:
    """Each column's collation. SQLite tells it of indexes only: so some are made, on nothing."""
    with closing(sqlite3.connect(":memory:")) as scratch:
        try:
            scratch.execute(sql)
            for number, column in enumerate(columns):
                scratch.execute(f"CREATE INDEX i{number} ON {quoted([name])} ({quoted([column])})")
            infos = [scratch.execute(f"PRAGMA index_xinfo(i{n})") for n in range(len(columns))]
            return [str(info.fetchone()[4]) for info in infos]
        except sqlite3.Error:
            # For instance a function in it that is the application's own.
            return ["BINARY"] * len(columns)
