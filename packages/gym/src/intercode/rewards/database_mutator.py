"""Mutated databases: seeded variations of an SQLite file.

Some rows are deleted, some get values of other rows, and some are duplicated under a new key. An
empty table gets rows. Columns that a query compares with constants get values that its conditions
accept, or that lie at a bound. In the copy, the query then mostly finds other rows, or rows where
it found none. Primary keys, unique columns, NOT NULL and the foreign keys that the data satisfied
still hold, and values keep their types.

A lookup is a comparison that finds a row by a value (`sql_conditions`). If a looked-up value occurs
once in the data, the value occurs at most once in every copy. A subquery that returned one row by
such a lookup therefore never returns several. The same bound protects a looked-up value that is
missing from a column of distinct values, and a row that several comparisons together find.

A gentle mutation also preserves other facts on which an agent that reads the data may rely. Columns
of unique names, and columns in which a condition of the query finds exactly one row, keep their
values without new duplicates. An agent may have looked up a value: the key of the one student of
that name. An answer with this value is then also right in the copy. After a rough mutation, the
name may belong to another row.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from intercode.databases.convert.schema import ColumnSchema, ForeignKey, TableSchema, read_schema
from intercode.rewards.sql_conditions import QueryConditions, RowLookup
from intercode.sql_identifiers import quote_identifier

VERSION = 13
"""The version of the mutation. Increase the number with every change that gives other rows."""

_MAX_CHANGED_ROWS = 300
"""The most rows of a table that are deleted or changed, and the most that are inserted."""
_MIN_NEW_ROWS = 12
"""The fewest rows that are inserted into a table."""
_NAMES = ("amber", "birch", "cedar", "delta", "ember")


def mutate(
    origin: Path, path: Path, conditions: QueryConditions, seed: int, *, is_gentle: bool = False
) -> None:
    """Write a mutated copy of a database; the same arguments give the same copy.

    Args:
        origin: An SQLite file.
        path: The file to write.
        conditions: The conditions of the query whose result should differ in the copy.
        seed: The seed of the random choices.
        is_gentle: Whether names that occur once in the data stay unique.

    Raises:
        TaskError: `origin` is not an SQLite database.
    """
    schema = read_schema(origin)
    shutil.copyfile(origin, path)
    path.chmod(0o600)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        # The copy need not survive a crash: an incomplete file is discarded.
        connection.executescript("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; BEGIN")
        triggers = _take_triggers(connection)
        mutation = _DatabaseMutator(
            connection, schema.tables, conditions, random.Random(seed), is_gentle
        )
        for table in schema.tables:
            mutation.change(table)
        mutation.delete_doubles()
        if not is_gentle:
            mutation.disturb_lookups()
            mutation.delete_doubles()
        mutation.delete_orphans()
        for trigger in triggers:
            connection.execute(trigger)
        connection.execute("COMMIT")


def _take_triggers(connection: sqlite3.Connection) -> list[str]:
    cursor = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    triggers = cursor.fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {quote_identifier(name)}")
    return [sql for _, sql in triggers]


class _DatabaseMutator:
    """The mutation of one database, with a fixed seed."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        tables: Sequence[TableSchema],
        query_conditions: QueryConditions,
        random_source: random.Random,
        is_gentle: bool,
    ) -> None:
        self._connection = connection
        self._tables = {table.name.lower(): table for table in tables}
        self._conditions = query_conditions.conditions
        self._lookups = [
            (table, where_clause, values, rows)
            for table in tables
            for lookup in query_conditions.lookups
            for where_clause, values in _lookup_conditions(table, lookup)
            if len(rows := self._rows(table, where_clause, *values)) <= 1
            if rows or self._is_distinct(table, lookup)
        ]
        # Table → columns that keep their values.
        self._names = {
            table.name: self._name_columns(table) if is_gentle else set() for table in tables
        }
        # With six times the largest count that the query requires, one of a few values may reach
        # that count.
        self._new_row_count = min(max(_MIN_NEW_ROWS, 6 * query_conditions.count), _MAX_CHANGED_ROWS)
        self._random = random_source
        self._deleted_share = random_source.choice((0.0, 0.1, 0.3))
        self._planted_share = random_source.choice((0.3, 0.5, 0.8))
        # The share of inserted texts that are replaced by a text that is new to the column.
        self._new_text_share = 0.0 if is_gentle else 0.2

    def change(self, table: TableSchema) -> None:
        """Delete, change and insert rows of a table.

        The tables to which the table's foreign keys refer have already changed, except in a cycle.
        """
        rows = self._rows(table)
        if not rows:
            for _ in range(self._new_row_count):
                self._insert(table, None)
            return
        rows = self._random.sample(rows, min(len(rows), _MAX_CHANGED_ROWS))
        retained_rows = rows[int(len(rows) * self._deleted_share) :]
        singled_out_rows = self._singled_out_rows(table)
        for row in rows[: len(rows) - len(retained_rows)]:
            if row not in singled_out_rows:
                self._run(f"DELETE FROM {quote_identifier(table.name)} WHERE rowid = ?", row)
        for row in retained_rows:
            self._alter(table, row, retained_rows)
        for _ in range(self._new_row_count):
            self._insert(table, self._random.choice(retained_rows))

    def delete_orphans(self) -> None:
        """Delete the rows that refer to a deleted row, directly or through other rows."""
        for _ in self._tables:
            change_count = self._connection.total_changes
            for table in self._tables.values():
                for key in table.foreign_keys:
                    self._delete_orphans(table, key)
            if self._connection.total_changes == change_count:
                return

    def disturb_lookups(self) -> None:
        """Try to make each lookup find another row, a row with other values, or no row."""
        for table, where_clause, values, _ in self._lookups:
            keys = {names[0] for names in (table.primary_key, *table.uniques) if len(names) == 1}
            free_columns = self._stored_columns(table) - keys
            for row in self._rows(table, where_clause, *values):
                other_rows = self._referenced_rows(table) or self._rows(table)
                lookup_columns = {
                    name for name in free_columns if f"{quote_identifier(name)} " in where_clause
                }
                draw = self._random.random()
                if draw < 0.4:
                    self._exchange(table, lookup_columns, row, self._random.choice(other_rows))
                    continue
                if draw < 0.6:
                    self._run(f"DELETE FROM {quote_identifier(table.name)} WHERE rowid = ?", row)
                    continue
                searches = [
                    (search_condition, search_values)
                    for lookup_table, search_condition, search_values, _ in self._lookups
                    if lookup_table is table
                ]
                lookup_rows = [
                    other_row
                    for search_condition, search_values in searches
                    for other_row in self._rows(table, search_condition, *search_values)
                ]
                other_row = self._random.choice(self._random.choice((lookup_rows, other_rows)))
                for name in sorted(free_columns - lookup_columns):
                    if self._random.random() < 0.5:
                        self._copy(table, name, other_row, row)

    def _referenced_rows(self, table: TableSchema) -> list[int]:
        """List the rows of a table to which rows of other tables refer, by row number."""
        name, row_ids = quote_identifier(table.name), set[int]()
        for child in self._tables.values():
            for key in child.foreign_keys:
                if key.table.lower() == table.name.lower():
                    pairs = zip(key.targets, key.columns, strict=True)
                    join = " AND ".join(
                        f"{name}.{quote_identifier(key_column)} = "
                        f"o.{quote_identifier(target_column)}"
                        for key_column, target_column in pairs
                    )
                    child_table = quote_identifier(child.name)
                    clause = f"WHERE EXISTS (SELECT 1 FROM {child_table} AS o WHERE {join})"
                    row_ids.update(self._rows(table, clause))
        return sorted(row_ids)

    def _exchange(
        self, table: TableSchema, columns: set[str], first_row: int, second_row: int
    ) -> None:
        """Exchange the values of two rows in some columns."""
        if first_row == second_row or not columns:
            return
        names = ", ".join(map(quote_identifier, sorted(columns)))
        sql = f"SELECT {names} FROM {quote_identifier(table.name)} WHERE rowid = ?"
        first_values, second_values = (
            self._connection.execute(sql, (row,)).fetchone() for row in (first_row, second_row)
        )
        marks = ", ".join(f"{quote_identifier(name)} = ?" for name in sorted(columns))
        sql = f"UPDATE OR IGNORE {quote_identifier(table.name)} SET {marks} WHERE rowid = ?"
        self._run(sql, *second_values, first_row)
        self._run(sql, *first_values, second_row)

    def _copy(self, table: TableSchema, column: str, origin: int, row: int) -> None:
        """Copy another row's value in a column to a row."""
        name, value = quote_identifier(table.name), quote_identifier(column)
        subquery = f"(SELECT o.{value} FROM {name} AS o WHERE o.rowid = ?)"
        self._run(f"UPDATE OR IGNORE {name} SET {value} = {subquery} WHERE rowid = ?", origin, row)

    def delete_doubles(self) -> None:
        """Delete the rows that each lookup finds, except the original row.

        If the original row no longer matches, the first row is kept.
        """
        for table, where_clause, values, origin in self._lookups:
            rows = self._rows(table, where_clause, *values)
            retained_rows = origin if origin and origin[0] in rows else rows[:1]
            for row in rows:
                if row not in retained_rows:
                    self._run(f"DELETE FROM {quote_identifier(table.name)} WHERE rowid = ?", row)

    def _rows(self, table: TableSchema, where_clause: str = "", *values: Any) -> list[int]:
        """List the row numbers (``rowid``) of a table; empty for a table without row numbers."""
        sql = f"SELECT rowid FROM {quote_identifier(table.name)} {where_clause}"
        with suppress(sqlite3.OperationalError):
            return [row for (row,) in self._connection.execute(sql, values)]
        return []

    def _is_distinct(self, table: TableSchema, lookup: RowLookup) -> bool:
        """Return whether a lookup compares a single column, whose values all differ."""
        if len(lookup.comparisons) > 1:
            return False
        name = quote_identifier(lookup.comparisons[0].column)
        sql = f"SELECT COUNT({name}), COUNT(DISTINCT {name}) FROM {quote_identifier(table.name)}"
        count, distinct_count = self._connection.execute(sql).fetchone()
        return bool(1 < count == distinct_count)

    def _name_columns(self, table: TableSchema) -> set[str]:
        """Return the text columns that serve as names of rows.

        All values of such a column are unique, or a condition of the query accepts a value that
        occurs once. Columns that refer to another table are excluded: their values are shared on
        purpose.
        """
        referring_columns = {name for key in table.foreign_keys for name in key.columns}
        column_names: set[str] = set()
        for column in table.columns:
            if not column.type.is_text or column.name in referring_columns:
                continue
            name = quote_identifier(column.name)
            sql = (
                f"SELECT COUNT({name}), COUNT(DISTINCT {name}) FROM {quote_identifier(table.name)}"
            )
            count, distinct_count = self._connection.execute(sql).fetchone()
            accepted_values = self._accepted_values(table, column)
            if 1 < count == distinct_count or any(
                self._count(table, column, value) == 1 for value in accepted_values
            ):
                column_names.add(column.name)
        return column_names

    def _singled_out_rows(self, table: TableSchema) -> set[int]:
        """Return the rows whose name a condition of the query accepts, by row number."""
        return {
            row
            for column in table.columns
            if column.name in self._names[table.name]
            for value in self._accepted_values(table, column)
            for row in self._rows(
                table, f"WHERE {quote_identifier(column.name)} = ? COLLATE NOCASE", value
            )
        }

    def _is_taken(self, table: TableSchema, column: ColumnSchema, value: Any) -> bool:
        """Return whether a value is in a column already and must stay unique there."""
        must_be_unique = column.name in self._names[table.name] or any(
            lookup is table
            and values == [value]
            and f"{quote_identifier(column.name)} " in where_clause
            for lookup, where_clause, values, _ in self._lookups
        )
        return must_be_unique and self._count(table, column, value) == 1

    def _count(self, table: TableSchema, column: ColumnSchema, value: Any) -> int:
        """Count the rows with a value in a column, regardless of case."""
        match_condition = f"{quote_identifier(column.name)} = ? COLLATE NOCASE"
        sql = f"SELECT COUNT(*) FROM {quote_identifier(table.name)} WHERE {match_condition}"
        count: int = self._connection.execute(sql, (value,)).fetchone()[0]
        return count

    def _accepted_values(self, table: TableSchema, column: ColumnSchema) -> list[Any]:
        """List the values that the conditions of the query accept in a column."""
        return [
            fitted_value
            for condition in self._conditions
            if condition.column == column.name.lower()
            and condition.table in ("", table.name.lower())
            for value in condition.values
            if (fitted_value := _fit_value(value, column)) is not None
        ]

    def _alter(self, table: TableSchema, row: int, other_rows: Sequence[int]) -> None:
        """Give a row values of other rows, and values that the query's conditions accept."""
        stored_columns = (
            self._stored_columns(table) - _unique_columns(table) - self._names[table.name]
        )
        free_columns = [column for column in table.columns if column.name in stored_columns]
        name = quote_identifier(table.name)
        if free_columns and self._random.random() < 0.2:
            self._copy(
                table, self._random.choice(free_columns).name, self._random.choice(other_rows), row
            )
        for column_name, value in self._plant_values(table, free_columns).items():
            sql = f"UPDATE OR IGNORE {name} SET {quote_identifier(column_name)} = ? WHERE rowid = ?"
            self._run(sql, value, row)

    def _insert(self, table: TableSchema, row: int | None) -> None:
        """Insert a copy of a row with a new key, or a row of random values.

        Args:
            table: The table.
            row: The number of the row to copy; None: random values.
        """
        columns = () if row is not None else table.columns
        new_values: dict[str, Any] = {column.name: self._random_value(column) for column in columns}
        for column in table.columns:
            is_new = column.type.is_text and self._random.random() < self._new_text_share
            if is_new or column.name in _unique_columns(table) | self._names[table.name]:
                new_values[column.name] = self._fresh_value(table, column)
        for key in table.foreign_keys:
            if row is None or set(key.columns) & new_values.keys() or self._random.random() < 0.5:
                new_values.update(self._reference(key))
        new_values.update(self._plant_values(table, table.columns))
        self._store(table, row, new_values)

    def _store(self, table: TableSchema, row: int | None, new_values: Mapping[str, Any]) -> None:
        """Insert a row into a table.

        Args:
            table: The table.
            row: The number of the row that supplies the other values; None: no other values.
            new_values: Column → value.
        """
        stored_columns = self._stored_columns(table)
        columns = [column.name for column in table.columns if column.name in stored_columns]
        values = ["?" if name in new_values else quote_identifier(name) for name in columns]
        table_name = quote_identifier(table.name)
        origin = "" if row is None else f" FROM {table_name} WHERE rowid = ?"
        names = ", ".join(map(quote_identifier, columns))
        sql = f"INSERT OR IGNORE INTO {table_name} ({names}) SELECT {', '.join(values)}"
        parameters = [new_values[name] for name in columns if name in new_values]
        self._run(sql + origin, *parameters, *([] if row is None else [row]))

    def _plant_values(self, table: TableSchema, columns: Sequence[ColumnSchema]) -> dict[str, Any]:
        """Choose values that the query's conditions accept, for a random part of the columns."""
        planted_values = {}
        for column in columns:
            values = self._accepted_values(table, column)
            values = [value for value in values if not self._is_taken(table, column, value)]
            if values and self._random.random() < self._planted_share:
                planted_values[column.name] = self._random.choice(values)
                self._adopt(table, column, planted_values[column.name])
        return planted_values

    def _adopt(self, table: TableSchema, column: ColumnSchema, value: Any) -> None:
        """Insert the row that a foreign key refers to, if a planted value is such a key."""
        for key in table.foreign_keys:
            parent = self._tables.get(key.table.lower())
            if key.columns == (column.name,) and parent is not None and parent is not table:
                rows = self._rows(parent)
                row = self._random.choice(rows) if rows else None
                parent_values = {
                    parent_column.name: self._fresh_value(parent, parent_column)
                    for parent_column in parent.columns
                    if row is None
                    or parent_column.name in _unique_columns(parent) | self._names[parent.name]
                }
                self._store(parent, row, {**parent_values, key.targets[0]: value})

    def _reference(self, key: ForeignKey) -> dict[str, Any]:
        """Return the key of a random row in the referenced table, or NULL if the table is empty."""
        targets = ", ".join(map(quote_identifier, key.targets))
        key_rows = self._connection.execute(
            f"SELECT {targets} FROM {quote_identifier(key.table)}"
        ).fetchall()
        key_values = self._random.choice(key_rows) if key_rows else (None,) * len(key.columns)
        return dict(zip(key.columns, key_values, strict=True))

    def _fresh_value(self, table: TableSchema, column: ColumnSchema) -> Any:
        """Return a value of the column's kind, new to the column if possible."""
        name = quote_identifier(column.name)
        sql = f"SELECT MAX({name}), COUNT(*) FROM {quote_identifier(table.name)}"
        max_value, count = self._connection.execute(sql).fetchone()
        kind = column.type.kind
        if column.type.is_text:
            return f"{self._random.choice(_NAMES)}{count}"
        if kind in ("date", "datetime"):
            day = date.fromisoformat(max_value[:10]) if max_value else date(2020, 1, 1)
            return (day + timedelta(days=1)).isoformat() + (max_value[10:] if max_value else "")
        return max_value + 1 if isinstance(max_value, (int, float)) else self._random_value(column)

    def _random_value(self, column: ColumnSchema) -> Any:
        """Return a random value of the column's kind."""
        digit = self._random.randrange(1, 6)
        kind = column.type.kind
        if column.type.is_text:
            return self._random.choice(_NAMES)
        if kind in ("date", "datetime"):
            return f"2020-01-0{digit}" + (" 12:00:00" if kind == "datetime" else "")
        if kind == "time":
            return f"0{digit}:30:00"
        return digit

    def _stored_columns(self, table: TableSchema) -> set[str]:
        """Return the names of the columns that are stored, not generated from other columns."""
        sql = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0"
        return {name for (name,) in self._connection.execute(sql, (table.name,))}

    def _delete_orphans(self, table: TableSchema, key: ForeignKey) -> None:
        child, parent = quote_identifier(table.name), quote_identifier(key.table)
        not_null_condition = " AND ".join(
            f"{child}.{quote_identifier(name)} IS NOT NULL" for name in key.columns
        )
        pairs = zip(key.targets, key.columns, strict=True)
        join_condition = " AND ".join(
            f"p.{quote_identifier(target_name)} = {child}.{quote_identifier(column_name)}"
            for target_name, column_name in pairs
        )
        parent_condition = f"EXISTS (SELECT 1 FROM {parent} AS p WHERE {join_condition})"
        self._run(f"DELETE FROM {child} WHERE {not_null_condition} AND NOT {parent_condition}")

    def _run(self, sql: str, *parameters: Any) -> None:
        with suppress(sqlite3.IntegrityError):  # a change that violates a constraint is left out
            self._connection.execute(sql, parameters)


def _unique_columns(table: TableSchema) -> set[str]:
    return {*table.primary_key, *(name for names in table.uniques for name in names)}


def _fit_value(value: Any, column: ColumnSchema) -> Any:
    """Return the value converted to the column's kind; None if no conversion is possible."""
    if column.type.is_text:
        return str(value)
    kind = column.type.kind
    if kind in ("date", "datetime"):
        text = str(value)
        day = text[:10] + "-06-15"[len(text) - 10 :] if len(text) in (4, 7) else text[:10]
        with suppress(ValueError):
            day = date.fromisoformat(day).isoformat()
            return day + (text[10:] or " 12:00:00") if kind == "datetime" else day
        return None
    if kind in ("time", "blob"):
        return None
    with suppress(ValueError, OverflowError):
        numeric_value = float(value)
        return int(numeric_value) if column.type.is_whole else numeric_value
    return None


def _lookup_conditions(table: TableSchema, lookup: RowLookup) -> Iterator[tuple[str, list[Any]]]:
    """Yield a WHERE clause for a lookup, with its values: exact, and regardless of case.

    No clause is yielded if the lookup does not fit the table: its name, columns and their types.
    """
    columns = {column.name.lower(): column for column in table.columns}
    if lookup.table not in ("", table.name.lower()):
        return
    if not all(comparison.column in columns for comparison in lookup.comparisons):
        return
    values = [
        condition.value
        if condition.operator == "LIKE"
        else _fit_value(condition.value, columns[condition.column])
        for condition in lookup.comparisons
    ]
    if None in values:
        return
    for collation in ("BINARY", "NOCASE"):
        search_values = [
            f"{quote_identifier(columns[condition.column].name)} {condition.operator} ? COLLATE "
            f"{collation}"
            for condition in lookup.comparisons
        ]
        yield f"WHERE {' AND '.join(search_values)}", values
