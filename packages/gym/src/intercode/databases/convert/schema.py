"""Schema of an SQLite file, in a form that other engines can reproduce.

To fill a server's empty database, run `schema_ddl.create_statements`, insert `rows` table by table,
run `schema_ddl.view_statements` by `intercode.databases.convert.make_views`, and run
`schema_ddl.finish_statements`. SQLite permits data that violates keys. Keys that the data violates
are left out and listed in `DatabaseSchema.omissions`. Also left out are partial indexes,
indexes over expressions, ``CHECK`` and virtual tables. A generated column becomes an ordinary
column with its values.
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

from intercode.databases.convert import join_quoted
from intercode.databases.convert.schema_types import (
    ColumnType,
    choose_type,
    decode,
    fit,
    is_whole_text,
)
from intercode.errors import TaskError
from intercode.sql_identifiers import quote_identifier

MAX_KEY_LENGTH = 768
"""Maximum characters of text in a key: InnoDB's limit is 3072 bytes, PostgreSQL's is similar."""
_HIDDEN_COLUMN = 1  # marks a virtual table's column that SELECT * omits


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """One column of a table."""

    name: str
    declared_type: str
    """The column's declared type in SQLite, unchanged."""
    type: ColumnType
    """The type that fits the column's actual content."""
    not_null: bool = False
    default: str | None = None
    """The default value, as an expression in SQLite's dialect; None: no default."""
    next_number: int | None = None
    """The number of the next row, if SQLite numbers the rows by this column; None otherwise."""
    ignores_case: bool = False
    """Whether comparisons of texts ignore the case of A to Z (``COLLATE NOCASE``)."""
    max_length: int = 0
    """Characters of the longest value in a column of text; 0 for other types."""


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key: columns that refer to columns of another table, or of the same table."""

    columns: tuple[str, ...]
    table: str
    targets: tuple[str, ...]
    on_delete: str = "NO ACTION"
    on_update: str = "NO ACTION"


@dataclass(frozen=True, slots=True)
class IndexSchema:
    """An index that enforces no constraint."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one table."""

    name: str
    columns: tuple[ColumnSchema, ...]
    primary_key: tuple[str, ...] = ()
    uniques: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[IndexSchema, ...] = ()

    def column(self, name: str) -> ColumnSchema:
        """Return the column with that name."""
        return next(column for column in self.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class ViewSchema:
    """The schema of one view."""

    name: str
    sql: str
    """The complete ``CREATE VIEW`` statement, in SQLite's dialect."""


@dataclass(frozen=True, slots=True)
class DatabaseSchema:
    """The schema of one database."""

    tables: tuple[TableSchema, ...]
    """The tables; each table follows the tables to which it refers, except in a cycle."""
    views: tuple[ViewSchema, ...] = ()
    """The views, in the order of their creation."""
    omissions: tuple[str, ...] = ()
    """Descriptions of the virtual tables, keys and indexes that are left out."""


def read_schema(path: str | Path) -> DatabaseSchema:
    """Read the schema of an SQLite file, with types that fit the columns' content.

    The function reads every row at least once for each column.

    Raises:
        TaskError: The file is not an SQLite database, or is damaged.
    """
    try:
        with closing(_open(path)) as connection:
            return _read(connection)
    except sqlite3.Error as error:
        raise TaskError(f"{path}: {error}") from error


def rows(path: str | Path, table: TableSchema) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table, each value converted to the type of its column.

    Text that is not UTF-8 is read as Latin-1. U+0000 is removed from texts.

    Raises:
        TaskError: The file cannot be read.
    """
    names = join_quoted(column.name for column in table.columns)
    types = [column.type for column in table.columns]
    try:
        with closing(_open(path)) as connection:
            for row in connection.execute(f"SELECT {names} FROM {quote_identifier(table.name)}"):
                yield tuple(map(fit, row, types))
    except sqlite3.Error as error:
        raise TaskError(f"{path}: table {table.name}: {error}") from error


def _open(path: str | Path) -> sqlite3.Connection:
    # The file does not change, so it needs no lock, and no permission to write beside it.
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = decode
    return connection


def _read(connection: sqlite3.Connection) -> DatabaseSchema:
    catalog_rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid"
    ).fetchall()
    omissions = []
    tables = []
    for kind, name, sql in catalog_rows:
        if kind == "table" and sql.upper().split()[1] == "VIRTUAL":
            omissions.append(f"the virtual table {name}")
        elif kind == "table":
            tables.append(_table(connection, name, sql))
    views = tuple(ViewSchema(name, sql) for kind, name, sql in catalog_rows if kind == "view")
    keyed_tables, broken_keys = _add_keys(connection, tables)
    return DatabaseSchema(keyed_tables, views, (*omissions, *broken_keys))


def _table(connection: sqlite3.Connection, name: str, sql: str) -> TableSchema:
    column_rows = connection.execute(f"PRAGMA table_xinfo({quote_identifier(name)})").fetchall()
    column_rows = [row for row in column_rows if row[6] != _HIDDEN_COLUMN]
    key = tuple(row[1] for row in sorted(column_rows, key=lambda row: row[5]) if row[5])
    collations = _collations(name, sql, [row[1] for row in column_rows])
    columns = []
    for (_, column, declared_type, not_null, default, *_), collation in zip(
        column_rows, collations, strict=True
    ):
        kind, max_length = choose_type(connection, name, column, declared_type)
        columns.append(
            ColumnSchema(
                name=column,
                declared_type=declared_type,
                type=kind,
                not_null=bool(not_null),
                default=default,
                ignores_case=kind.is_text and collation == "NOCASE",
                max_length=max_length if kind.is_text else 0,
            )
        )
    table = TableSchema(name, tuple(columns), key)
    return _add_next_number(connection, table)


def _add_next_number(connection: sqlite3.Connection, table: TableSchema) -> TableSchema:
    """Return the table with the next number of its INTEGER PRIMARY KEY, if it has such a key."""
    if len(table.primary_key) != 1:
        return table
    key = table.column(table.primary_key[0])
    if key.declared_type.upper() != "INTEGER" or not key.type.is_whole:
        return table
    max_number = connection.execute(
        f"SELECT MAX({quote_identifier(key.name)}) FROM {quote_identifier(table.name)}"
    ).fetchone()[0]
    numbered_key = replace(
        key, next_number=max(0, max_number or 0) + 1, not_null=True, default=None
    )
    columns = tuple(numbered_key if column is key else column for column in table.columns)
    return replace(table, columns=columns)


def _collations(name: str, sql: str, columns: list[str]) -> list[str]:
    """Return each column's collation.

    SQLite reports the collations of indexes only. So the table and an index for each column are
    created in an empty database in memory.
    """
    with closing(sqlite3.connect(":memory:")) as scratch_connection:
        try:
            scratch_connection.execute(sql)
            for index_number, column in enumerate(columns):
                scratch_connection.execute(
                    f"CREATE INDEX i{index_number} ON {quote_identifier(name)} "
                    f"({quote_identifier(column)})"
                )
            infos = [
                scratch_connection.execute(f"PRAGMA index_xinfo(i{n})") for n in range(len(columns))
            ]
            return [str(info.fetchone()[4]) for info in infos]
        except sqlite3.Error:
            # For instance, the definition uses a function that an application defines.
            return ["BINARY"] * len(columns)


def _add_keys(
    connection: sqlite3.Connection, tables: Sequence[TableSchema]
) -> tuple[tuple[TableSchema, ...], list[str]]:
    """Return the tables with keys and indexes, ordered by dependency, and the omitted keys."""
    omissions: list[str] = []
    tables_by_name = {
        table.name.lower(): _add_indexes(connection, table, omissions) for table in tables
    }
    keys_by_table = {
        name: _foreign_keys(connection, table, tables_by_name)
        for name, table in tables_by_name.items()
    }
    order = _sort_by_dependency(
        {name: [k.table.lower() for k in keys] for name, keys in keys_by_table.items()}
    )
    for name in order:
        for key in keys_by_table[name]:
            if reason := _add_foreign_key(connection, tables_by_name, name, key):
                columns = ", ".join(key.columns)
                omissions.append(
                    f"the foreign key {tables_by_name[name].name}({columns}): {reason}"
                )
    return tuple(tables_by_name[name] for name in order), omissions


def _add_indexes(
    connection: sqlite3.Connection, table: TableSchema, omissions: list[str]
) -> TableSchema:
    """Return a table with its primary key, unique keys and indexes, without the omitted ones.

    Args:
        connection: A connection to the SQLite file.
        table: The table, with its declared primary key.
        omissions: A list to which the function adds a description of each omitted key or index.
    """
    indexes: list[IndexSchema] = []
    uniques: list[tuple[str, ...]] = []
    key = table.primary_key
    if key and (reason := _refusal_reason(connection, table, key, primary=True)):
        omissions.append(f"the primary key of {table.name}: {reason}")
        key = ()
    index_rows = connection.execute(f"PRAGMA index_list({quote_identifier(table.name)})").fetchall()
    for _, name, is_unique, origin, is_partial in reversed(index_rows):
        columns = tuple(
            row[2] for row in connection.execute(f"PRAGMA index_info({quote_identifier(name)})")
        )
        if origin == "pk" or columns == key:
            continue
        if is_partial or None in columns:
            omissions.append(f"the index {name} of {table.name}: over an expression, or partial")
        elif is_unique and not (reason := _refusal_reason(connection, table, columns)):
            uniques.append(columns)
        elif is_unique:
            omissions.append(f"a unique key of {table.name}: {reason}")
        elif _is_short(table, columns):
            indexes.append(IndexSchema(name, columns))
        else:
            omissions.append(f"the index {name} of {table.name}: its text is too long")
    # A table can declare the same unique key twice.
    distinct_keys = tuple(dict.fromkeys(uniques))
    return replace(table, primary_key=key, uniques=distinct_keys, indexes=tuple(indexes))


def _refusal_reason(
    connection: sqlite3.Connection,
    table: TableSchema,
    columns: tuple[str, ...],
    primary: bool = False,
) -> str | None:
    """Return the reason why other engines would refuse a key; None if they would accept it.

    One reason is NULL in a primary key, which SQLite permits in most tables.
    """
    if not _is_short(table, columns):
        return "its text is too long"
    name = quote_identifier(table.name)
    if primary:
        nulls = " OR ".join(f"{quote_identifier(column)} IS NULL" for column in columns)
        if connection.execute(f"SELECT 1 FROM {name} WHERE {nulls} LIMIT 1").fetchone():
            return "it holds NULL"
    texts = [column for column in columns if table.column(column).type.is_text]
    if texts:
        # MySQL ignores trailing spaces, so such values are equal in a key.
        group = ", ".join(
            f"rtrim({quote_identifier(column)})" if column in texts else quote_identifier(column)
            for column in columns
        )
        clause = " AND ".join(f"{quote_identifier(column)} IS NOT NULL" for column in columns)
        query = f"SELECT 1 FROM {name} WHERE {clause} GROUP BY {group} HAVING COUNT(*) > 1 LIMIT 1"
        if connection.execute(query).fetchone():
            return "values of it differ only in spaces at their end"
    return None


def _is_short(table: TableSchema, columns: tuple[str, ...]) -> bool:
    key_columns = [table.column(column) for column in columns]
    if any(column.type.kind == "blob" for column in key_columns):
        return False
    return sum(column.max_length for column in key_columns) <= MAX_KEY_LENGTH


def _foreign_keys(
    connection: sqlite3.Connection, table: TableSchema, tables_by_name: dict[str, TableSchema]
) -> list[ForeignKey]:
    """Return the declared foreign keys, also those whose targets do not exist."""
    key_rows = connection.execute(
        f"PRAGMA foreign_key_list({quote_identifier(table.name)})"
    ).fetchall()
    keys = []
    for _, group in groupby(sorted(key_rows, key=lambda row: (row[0], row[1])), lambda row: row[0]):
        column_rows = list(group)
        target_table = tables_by_name.get(column_rows[0][2].lower())
        # SQLite accepts names in any case; the schema has the columns' exact names.
        columns = tuple(_exact_name(table, column_row[3]) for column_row in column_rows)
        targets = tuple(
            _exact_name(target_table, column_row[4]) for column_row in column_rows if column_row[4]
        )
        if not targets and target_table is not None:
            targets = target_table.primary_key
        name = column_rows[0][2] if target_table is None else target_table.name
        keys.append(ForeignKey(columns, name, targets, column_rows[0][6], column_rows[0][5]))
    return sorted(set(keys), key=keys.index)


def _exact_name(table: TableSchema | None, name: str) -> str:
    exact_names = {c.name.lower(): c.name for c in table.columns} if table else {}
    return exact_names.get(name.lower(), name)


def _sort_by_dependency(requirements: dict[str, list[str]]) -> list[str]:
    """Sort names such that each follows the names that it requires; cycles are broken anywhere.

    The names keep their order, except that a required name moves before the first name that
    requires it.
    """
    ordered_names: dict[str, None] = {}
    active_names: set[str] = set()

    def visit(name: str) -> None:
        if name in ordered_names or name in active_names or name not in requirements:
            return
        active_names.add(name)
        for required_name in requirements[name]:
            visit(required_name)
        ordered_names[name] = None

    for name in requirements:
        visit(name)
    return list(ordered_names)


def _add_foreign_key(
    connection: sqlite3.Connection,
    tables_by_name: dict[str, TableSchema],
    name: str,
    key: ForeignKey,
) -> str | None:
    """Add a foreign key to a table; return the reason if other engines would refuse the key."""
    table, target_table = tables_by_name[name], tables_by_name.get(key.table.lower())
    if target_table is None:
        return f"there is no table {key.table}"
    target_columns = {column.name for column in target_table.columns}
    if len(key.targets) != len(key.columns) or not target_columns.issuperset(key.targets):
        return f"there are no such columns in {target_table.name}"
    if key.targets != target_table.primary_key and key.targets not in target_table.uniques:
        return f"{target_table.name}({', '.join(key.targets)}) is not unique"
    if not _is_short(table, key.columns):
        return "its text is too long"
    pairs = list(zip(key.columns, key.targets, strict=True))
    join_condition = " AND ".join(
        f"p.{quote_identifier(target)} = c.{quote_identifier(source_column)}"
        for source_column, target in pairs
    )
    clause = " AND ".join(
        f"c.{quote_identifier(source_column)} IS NOT NULL" for source_column, _ in pairs
    )
    orphan = connection.execute(
        f"SELECT 1 FROM {quote_identifier(table.name)} AS c WHERE {clause} AND NOT EXISTS "
        f"(SELECT 1 FROM {quote_identifier(target_table.name)} AS p WHERE {join_condition}) LIMIT 1"
    ).fetchone()
    if orphan:
        return f"values of it are not in {target_table.name}"
    for column, target in zip(key.columns, key.targets, strict=True):
        if reason := _align_type(
            connection, tables_by_name, name, column, target_table.column(target).type
        ):
            return reason
    table = tables_by_name[name]
    tables_by_name[name] = replace(table, foreign_keys=(*table.foreign_keys, key))
    return None


def _align_type(
    connection: sqlite3.Connection,
    tables_by_name: dict[str, TableSchema],
    name: str,
    column: str,
    target: ColumnType,
) -> str | None:
    """Change a column's type to the type of the column that a foreign key refers to.

    Returns:
        The reason why this is impossible; None for success.
    """
    table = tables_by_name[name]
    source_column = table.column(column)
    if source_column.type == target or (source_column.type.is_text and target.is_text):
        return None
    has_integer_types = source_column.type.is_whole and target.is_whole
    is_text_reference = source_column.type.is_text and target.is_whole
    if not (
        has_integer_types or (is_text_reference and is_whole_text(connection, table.name, column))
    ):
        return (
            f"its type is not that of what it refers to ({source_column.type.kind}, {target.kind})"
        )
    aligned_column = replace(source_column, type=target, max_length=0, ignores_case=False)
    columns = tuple(aligned_column if c.name == column else c for c in table.columns)
    tables_by_name[name] = replace(table, columns=columns)
    return None
