"""The schema of an SQLite file, such that another engine can have the same.

To fill a server's empty database: run `schema_ddl.create_statements`, insert `rows` table by table,
run `schema_ddl.finish_statements`. Keys that the data itself breaks, as SQLite lets it, are left
out and listed in `Schema.left_out`; so are partial indexes, those over expressions, ``CHECK`` and
virtual tables. A generated column becomes one with its values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from intercode.databases.convert import listed
from intercode.databases.convert.schema_types import Type, choose, decode, fit, is_whole_text
from intercode.errors import TaskError
from intercode.syntax import quoted

LONGEST_KEY = 768
"""Characters of text in a key: InnoDB's 3072 bytes; PostgreSQL's limit is near it."""
_HIDDEN = 1  # a virtual table's column that a SELECT * does not show


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    declared: str
    """The column's type in SQLite, as it was written."""
    type: Type
    """The type of its actual content."""
    not_null: bool = False
    default: str | None = None
    """An expression of SQLite."""
    next_number: int | None = None
    """The number of the next row, if the column numbers the rows."""
    ignores_case: bool = False
    """Whether its texts compare without the case of A to Z (``COLLATE NOCASE``)."""
    longest: int = 0
    """How many characters its longest text has."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns that refer to another table's columns."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]
    on_delete: str = "NO ACTION"
    on_update: str = "NO ACTION"


@dataclass(frozen=True, slots=True)
class Index:
    """An index that is not a constraint."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    uniques: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[Index, ...] = ()

    def column(self, name: str) -> Column:
        """Return the column of a name."""
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class View:
    """One view."""

    name: str
    sql: str
    """The view's whole ``CREATE VIEW``, in SQLite's dialect."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One database."""

    tables: tuple[TableSchema, ...]
    """A table comes after those that it refers to, unless they refer to each other."""
    views: tuple[View, ...] = ()
    """A view comes after those that it reads."""
    left_out: tuple[str, ...] = ()
    """Descriptions of the parts that other engines would refuse."""


def read_schema(path: str | Path) -> Schema:
    """Read the schema of an SQLite file, with types chosen by the columns' content.

    Reads every row once for each column.

    Raises:
        TaskError: It is not an SQLite database, or a damaged one.
    """
    try:
        with closing(_open(path)) as connection:
            return _read(connection)
    except sqlite3.Error as error:
        raise TaskError(f"{path}: {error}") from error


def rows(path: str | Path, table: TableSchema) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, each value fitted to its column's type.

    Text that is not UTF-8 is read as Latin-1. U+0000 is left out of texts.

    Raises:
        TaskError: The file cannot be read.
    """
    names = listed(column.name for column in table.columns)
    types = [column.type for column in table.columns]
    try:
        with closing(_open(path)) as connection:
            for row in connection.execute(f"SELECT {names} FROM {quoted(table.name)}"):
                yield tuple(map(fit, row, types))
    except sqlite3.Error as error:
        raise TaskError(f"{path}: table {table.name}: {error}") from error


def _open(path: str | Path) -> sqlite3.Connection:
    # The file does not change, so it needs no lock, and no right to write beside it.
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
    keyed, broken = _with_keys(connection, tables)
    return Schema(keyed, views, (*left_out, *broken))


def _table(connection: sqlite3.Connection, name: str, sql: str) -> TableSchema:
    found = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
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
    """Add the number of the next row, where SQLite gives one: in an INTEGER PRIMARY KEY."""
    if len(table.primary_key) != 1:
        return table
    key = table.column(table.primary_key[0])
    if key.declared.upper() != "INTEGER" or not key.type.is_whole:
        return table
    most = connection.execute(
        f"SELECT MAX({quoted(key.name)}) FROM {quoted(table.name)}"
    ).fetchone()[0]
    numbered = replace(key, next_number=max(0, most or 0) + 1, not_null=True, default=None)
    columns = tuple(numbered if column is key else column for column in table.columns)
    return replace(table, columns=columns)


def _collations(name: str, sql: str, columns: list[str]) -> list[str]:
    """Return each column's collation. SQLite reports those of indexes: so some are made."""
    with closing(sqlite3.connect(":memory:")) as scratch:
        try:
            scratch.execute(sql)
            for number, column in enumerate(columns):
                scratch.execute(f"CREATE INDEX i{number} ON {quoted(name)} ({quoted(column)})")
            infos = [scratch.execute(f"PRAGMA index_xinfo(i{n})") for n in range(len(columns))]
            return [str(info.fetchone()[4]) for info in infos]
        except sqlite3.Error:
            # For instance, it has a function of the application's own.
            return ["BINARY"] * len(columns)


def _with_keys(
    connection: sqlite3.Connection, tables: Sequence[TableSchema]
) -> tuple[tuple[TableSchema, ...], list[str]]:
    """Return the tables with keys and indexes, in the order of dependency, and what is left out."""
    left_out: list[str] = []
    named = {table.name.lower(): _indexed(connection, table, left_out) for table in tables}
    wanted = {name: _foreign_keys(connection, table, named) for name, table in named.items()}
    order = _in_order({name: [k.table.lower() for k in keys] for name, keys in wanted.items()})
    for name in order:
        for key in wanted[name]:
            if reason := _add(connection, named, name, key):
                columns = ", ".join(key.columns)
                left_out.append(f"the foreign key {named[name].name}({columns}): {reason}")
    return tuple(named[name] for name in order), left_out


def _indexed(
    connection: sqlite3.Connection, table: TableSchema, left_out: list[str]
) -> TableSchema:
    """Return a table with its primary key, unique keys and indexes."""
    indexes: list[Index] = []
    uniques: list[tuple[str, ...]] = []
    key = table.primary_key
    if key and (reason := _unfit(connection, table, key, primary=True)):
        left_out.append(f"the primary key of {table.name}: {reason}")
        key = ()
    found = connection.execute(f"PRAGMA index_list({quoted(table.name)})").fetchall()
    for _, name, unique, origin, partial in reversed(found):
        columns = tuple(row[2] for row in connection.execute(f"PRAGMA index_info({quoted(name)})"))
        if origin == "pk" or columns == key:
            continue
        if partial or None in columns:
            left_out.append(f"the index {name} of {table.name}: over an expression, or partial")
        elif unique and not (reason := _unfit(connection, table, columns)):
            uniques.append(columns)
        elif unique:
            left_out.append(f"a unique key of {table.name}: {reason}")
        elif _is_short(table, columns):
            indexes.append(Index(name, columns))
        else:
            left_out.append(f"the index {name} of {table.name}: its text is too long")
    # A table can declare a unique key twice.
    different = tuple(dict.fromkeys(uniques))
    return replace(table, primary_key=key, uniques=different, indexes=tuple(indexes))


def _unfit(
    connection: sqlite3.Connection,
    table: TableSchema,
    columns: tuple[str, ...],
    primary: bool = False,
) -> str | None:
    """Return why other engines would refuse a key; SQLite allows NULL in most primary keys."""
    if not _is_short(table, columns):
        return "its text is too long"
    name = quoted(table.name)
    if primary:
        nulls = " OR ".join(f"{quoted(column)} IS NULL" for column in columns)
        if connection.execute(f"SELECT 1 FROM {name} WHERE {nulls} LIMIT 1").fetchone():
            return "it holds NULL"
    texts = [column for column in columns if table.column(column).type.is_text]
    if texts:
        # MySQL ignores spaces at the end.
        trimmed = ", ".join(
            f"rtrim({quoted(column)})" if column in texts else quoted(column) for column in columns
        )
        full = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns)
        query = f"SELECT 1 FROM {name} WHERE {full} GROUP BY {trimmed} HAVING COUNT(*) > 1 LIMIT 1"
        if connection.execute(query).fetchone():
            return "values of it differ only in spaces at their end"
    return None


def _is_short(table: TableSchema, columns: tuple[str, ...]) -> bool:
    found = [table.column(column) for column in columns]
    if any(column.type.kind == "blob" for column in found):
        return False
    return sum(column.longest for column in found) <= LONGEST_KEY


def _foreign_keys(
    connection: sqlite3.Connection, table: TableSchema, named: dict[str, TableSchema]
) -> list[ForeignKey]:
    """Return the declared foreign keys, whether or not their targets exist."""
    found = connection.execute(f"PRAGMA foreign_key_list({quoted(table.name)})").fetchall()
    keys = []
    for _, group in groupby(sorted(found, key=lambda row: (row[0], row[1])), lambda row: row[0]):
        parts = list(group)
        other = named.get(parts[0][2].lower())
        # SQLite takes names in any case; here they are the columns' own.
        columns = tuple(_own_name(table, part[3]) for part in parts)
        targets = tuple(_own_name(other, part[4]) for part in parts if part[4])
        if not targets and other is not None:
            targets = other.primary_key
        name = parts[0][2] if other is None else other.name
        keys.append(ForeignKey(columns, name, targets, parts[0][6], parts[0][5]))
    return sorted(set(keys), key=keys.index)


def _own_name(table: TableSchema | None, name: str) -> str:
    own = {c.name.lower(): c.name for c in table.columns} if table else {}
    return own.get(name.lower(), name)


def _in_order(needs: dict[str, list[str]]) -> list[str]:
    """Order names after those that they need, else as they come; circles are broken somewhere."""
    done: dict[str, None] = {}
    doing: set[str] = set()

    def visit(name: str) -> None:
        if name in done or name in doing or name not in needs:
            return
        doing.add(name)
        for needed in needs[name]:
            visit(needed)
        done[name] = None

    for name in needs:
        visit(name)
    return list(done)


def _add(
    connection: sqlite3.Connection, named: dict[str, TableSchema], name: str, key: ForeignKey
) -> str | None:
    """Give a table a foreign key; return why not, if others would refuse it."""
    table, other = named[name], named.get(key.table.lower())
    if other is None:
        return f"there is no table {key.table}"
    theirs = {column.name for column in other.columns}
    if len(key.targets) != len(key.columns) or not theirs.issuperset(key.targets):
        return f"there are no such columns in {other.name}"
    if key.targets != other.primary_key and key.targets not in other.uniques:
        return f"{other.name}({', '.join(key.targets)}) is not unique"
    if not _is_short(table, key.columns):
        return "its text is too long"
    pairs = list(zip(key.columns, key.targets, strict=True))
    same = " AND ".join(f"p.{quoted(target)} = c.{quoted(own)}" for own, target in pairs)
    full = " AND ".join(f"c.{quoted(own)} IS NOT NULL" for own, _ in pairs)
    orphan = connection.execute(
        f"SELECT 1 FROM {quoted(table.name)} AS c WHERE {full} AND NOT EXISTS "
        f"(SELECT 1 FROM {quoted(other.name)} AS p WHERE {same}) LIMIT 1"
    ).fetchone()
    if orphan:
        return f"values of it are not in {other.name}"
    for column, target in zip(key.columns, key.targets, strict=True):
        if reason := _align(connection, named, name, column, other.column(target).type):
            return reason
    table = named[name]
    named[name] = replace(table, foreign_keys=(*table.foreign_keys, key))
    return None


def _align(
    connection: sqlite3.Connection,
    named: dict[str, TableSchema],
    name: str,
    column: str,
    target: Type,
) -> str | None:
    """Make a column's type that of its target; return why not, if it cannot."""
    table = named[name]
    own = table.column(column)
    if own.type == target or (own.type.is_text and target.is_text):
        return None
    both_whole = own.type.is_whole and target.is_whole
    as_number = own.type.is_text and target.is_whole
    if not (both_whole or (as_number and is_whole_text(connection, table.name, column))):
        return f"its type is not that of what it refers to ({own.type.kind}, {target.kind})"
    changed = replace(own, type=target, longest=0, ignores_case=False)
    columns = tuple(changed if c.name == column else c for c in table.columns)
    named[name] = replace(table, columns=columns)
    return None
