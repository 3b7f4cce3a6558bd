"""Conversion of SQLite files to DuckDB files, and the reverse.

In an SQLite file, DuckDB's dates and times become text in ISO format, and booleans become 0 and 1.
Decimals, and whole numbers beyond 64 bits, become floating-point numbers. Lists and structures
become JSON.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.databases.convert import Progress, join_quoted, make_views, schema, schema_ddl
from intercode.errors import TaskError, UsageError
from intercode.sql_identifiers import quote_identifier

if TYPE_CHECKING:
    import duckdb

_BATCH = 10_000
_INT64_LIMIT = 2**63
_RESTRICTIONS: dict[str, Any] = {"enable_external_access": False, "threads": 1}
"""Settings for a database file.

The file is data of the task. A view in the file must not make DuckDB read another file of the host.
"""


def from_sqlite(path: Path, new_path: Path, database_label: str, progress: Progress) -> None:
    """Create a DuckDB file with the content of an SQLite file.

    Args:
        path: The SQLite file.
        new_path: The path of the new file.
        database_label: The name of the database for error messages.
        progress: A function that is called with a line for each part that is left out.

    Raises:
        TaskError: DuckDB cannot hold the content.
    """
    import duckdb

    shape = schema.read_schema(path)
    # The setting makes DuckDB infer the type of a column from all values of a batch.
    config = {**_RESTRICTIONS, "pandas_analyze_sample": _BATCH}
    try:
        with duckdb.connect(new_path, config=config) as connection:
            for statement in schema_ddl.create_statements(shape, "duckdb", progress):
                connection.execute(statement)
            for table in shape.tables:
                _insert_rows(connection, path, table)
            views = schema_ddl.view_statements(shape, "duckdb", progress)
            problems = make_views(views, lambda view: _run_optional_statement(connection, view))
            for statement in schema_ddl.finish_statements(shape, "duckdb"):
                if problem := _run_optional_statement(connection, statement):
                    problems[statement] = problem
            for statement, problem in problems.items():
                progress(f"left out: {statement.partition('(')[0].strip()}: {problem}")
    except duckdb.Error as error:
        raise TaskError(f"{database_label}: {error}") from error


def _insert_rows(
    connection: duckdb.DuckDBPyConnection, path: Path, table: schema.TableSchema
) -> None:
    """Insert a table's rows in batches, column by column: DuckDB is slow with single rows."""
    import numpy as np

    names = schema_ddl.identifiers(tuple(column.name for column in table.columns), "duckdb")
    target = f"{schema_ddl.identifier(table.name, 'duckdb')} ({names})"
    rows = schema.rows(path, table)
    while batch := list(itertools.islice(rows, _BATCH)):
        columns = {}
        for column_index, values in enumerate(zip(*batch, strict=True)):
            columns[f"c{column_index}"] = array = np.empty(len(batch), dtype=object)
            array[:] = values
        connection.register("batch", columns)
        connection.execute(f"INSERT INTO {target} SELECT * FROM batch")
        connection.unregister("batch")


def _run_optional_statement(connection: duckdb.DuckDBPyConnection, statement: str) -> str | None:
    """Run a statement; return the error, or None for success."""
    import duckdb

    try:
        connection.execute(statement)
    except duckdb.Error as error:
        return str(error)
    return None


def to_sqlite(path: Path, connection: sqlite3.Connection, progress: Progress) -> None:
    """Copy the tables and views of a DuckDB file's schema ``main`` into an empty SQLite database.

    Defaults, checks and indexes are left out.

    Args:
        path: The DuckDB file.
        connection: A connection to the empty database.
        progress: A function that is called with a line for each view that cannot be translated.

    Raises:
        UsageError: DuckDB is not installed.
        TaskError: The file cannot be read.
        sqlite3.Error: SQLite rejects a table or a row.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError("DuckDB is needed: pip install 'intercode-gym[duckdb]'") from None
    try:
        with duckdb.connect(str(path), read_only=True, config=_RESTRICTIONS) as origin:
            for (table,) in _fetch_rows(origin, "table_name FROM duckdb_tables()", "table_oid"):
                _copy_table(origin, connection, table)
            for name, sql in _fetch_rows(origin, "view_name, sql FROM duckdb_views()", "view_oid"):
                if problem := _make_view(connection, sql):
                    progress(f"view {name} is left out: {problem}")
    except duckdb.Error as error:
        raise TaskError(f"{path}: {error}") from error


def _fetch_rows(
    origin: duckdb.DuckDBPyConnection, columns: str, order: str
) -> list[tuple[Any, ...]]:
    condition = "NOT internal AND schema_name = 'main' AND database_name = current_database()"
    return origin.execute(f"SELECT {columns} WHERE {condition} ORDER BY {order}").fetchall()


def _copy_table(
    origin: duckdb.DuckDBPyConnection, connection: sqlite3.Connection, table: str
) -> None:
    columns = origin.execute(
        "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = ? "
        "AND schema_name = 'main' AND database_name = current_database() ORDER BY column_index",
        [table],
    ).fetchall()
    lines = [
        f"{quote_identifier(name)} {_sqlite_type(kind)}{'' if nullable else ' NOT NULL'}"
        for name, kind, nullable in columns
    ]
    lines += _constraint_clauses(origin, table)
    connection.execute(f"CREATE TABLE {quote_identifier(table)} ({', '.join(lines)})")
    marks = ", ".join("?" * len(columns))
    rows = origin.execute(f"SELECT * FROM {quote_identifier(table)}")
    while batch := rows.fetchmany(_BATCH):
        converted_rows = (tuple(map(_sqlite_value, row)) for row in batch)
        connection.executemany(
            f"INSERT INTO {quote_identifier(table)} VALUES ({marks})", converted_rows
        )


def _constraint_clauses(origin: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    constraint_rows = origin.execute(
        "SELECT constraint_type, constraint_column_names, referenced_table, "
        "referenced_column_names FROM duckdb_constraints() WHERE table_name = ? "
        "AND schema_name = 'main' AND database_name = current_database()",
        [table],
    ).fetchall()
    lines = []
    for kind, names, target_table, target_columns in constraint_rows:
        if kind in ("PRIMARY KEY", "UNIQUE"):
            lines.append(f"{kind} ({join_quoted(names)})")
        elif kind == "FOREIGN KEY":
            target = f"{quote_identifier(target_table)} ({join_quoted(target_columns)})"
            lines.append(f"FOREIGN KEY ({join_quoted(names)}) REFERENCES {target}")
    return lines


def _make_view(connection: sqlite3.Connection, statement: str) -> str | None:
    """Create a view of DuckDB in SQLite; return the error, or None for success."""
    import sqlglot

    try:
        connection.execute(sqlglot.transpile(statement, read="duckdb", write="sqlite")[0])
    except (sqlglot.errors.SqlglotError, sqlite3.Error) as error:
        return " ".join(str(error).split())[:200]
    return None


def _sqlite_type(kind: str) -> str:
    base = kind.partition("(")[0]
    if kind.endswith("]") or base in ("STRUCT", "MAP", "UNION", "ENUM", "JSON", "UUID", "INTERVAL"):
        return "TEXT"  # the type's own name could contain INT, which SQLite would take for a number
    if base == "TIMESTAMP WITH TIME ZONE":
        return "TIMESTAMP"
    return "INTEGER" if base in ("HUGEINT", "UHUGEINT") else kind


def _sqlite_value(value: Any) -> Any:
    """Return a value of DuckDB as a value that SQLite can store."""
    if value is None or isinstance(value, (str, bytes, float)):
        return value
    if isinstance(value, int):
        return int(value) if -_INT64_LIMIT <= value < _INT64_LIMIT else float(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
