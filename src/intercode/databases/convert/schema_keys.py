"""Keys and indexes of SQLite's tables: those that other engines, which enforce them, can have."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from intercode.databases.convert.dump_table import quoted
from intercode.databases.convert.schema_model import ForeignKey, Index, TableSchema
from intercode.databases.convert.schema_types import Type, is_whole_text

LONGEST_KEY = 768
"""Characters of text in a key: InnoDB's 3072 bytes; PostgreSQL's limit is near it."""


def with_keys(
    connection: sqlite3.Connection, tables: Sequence[TableSchema]
) -> tuple[tuple[TableSchema, ...], list[str]]:
    """The tables with their keys and indexes, in the order of dependency, and what is left out."""
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
    """A table with its primary key, unique keys and indexes."""
    indexes: list[Index] = []
    uniques: list[tuple[str, ...]] = []
    key = table.primary_key
    if key and (reason := _unfit(connection, table, key, primary=True)):
        left_out.append(f"the primary key of {table.name}: {reason}")
        key = ()
    found = connection.execute(f"PRAGMA index_list({quoted([table.name])})").fetchall()
    for _, name, unique, origin, partial in reversed(found):
        columns = tuple(
            row[2] for row in connection.execute(f"PRAGMA index_info({quoted([name])})")
        )
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
    # A table can say twice that something is unique.
    different = tuple(dict.fromkeys(uniques))
    return replace(table, primary_key=key, uniques=different, indexes=tuple(indexes))


def _unfit(
    connection: sqlite3.Connection,
    table: TableSchema,
    columns: tuple[str, ...],
    primary: bool = False,
) -> str | None:
    """Why other engines would refuse the key; SQLite allows NULL in most primary keys."""
    if not _is_short(table, columns):
        return "its text is too long"
    name = quoted([table.name])
    if primary:
        nulls = " OR ".join(f"{quoted([column])} IS NULL" for column in columns)
        if connection.execute(f"SELECT 1 FROM {name} WHERE {nulls} LIMIT 1").fetchone():
            return "it holds NULL"
    texts = [column for column in columns if table.column(column).type.is_text]
    if texts:
        # MySQL ignores spaces at the end.
        trimmed = ", ".join(
            f"rtrim({quoted([column])})" if column in texts else quoted([column])
            for column in columns
        )
        full = " AND ".join(f"{quoted([column])} IS NOT NULL" for column in columns)
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
    """What the table says it refers to, whether or not that is there."""
    found = connection.execute(f"PRAGMA foreign_key_list({quoted([table.name])})").fetchall()
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
    """Names after those that they need, else as they come; circles are broken somewhere."""
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
    """Give a table a foreign key; why not, if others would refuse it."""
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
    same = " AND ".join(f"p.{quoted([target])} = c.{quoted([own])}" for own, target in pairs)
    full = " AND ".join(f"c.{quoted([own])} IS NOT NULL" for own, _ in pairs)
    orphan = connection.execute(
        f"SELECT 1 FROM {quoted([table.name])} AS c WHERE {full} AND NOT EXISTS "
        f"(SELECT 1 FROM {quoted([other.name])} AS p WHERE {same}) LIMIT 1"
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
    """Make a column's type that of what it refers to; why not, if that cannot be."""
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
