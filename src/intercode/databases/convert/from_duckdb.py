"""A DuckDB file's tables and views, made in SQLite.

Dates and times become text in ISO format, booleans 0 and 1, decimals and whole numbers beyond
64 bits floating-point numbers, lists and structures JSON.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.databases.convert.dump_table import quoted
from intercode.errors import TaskError, UsageError

if TYPE_CHECKING:
    import duckdb

_BATCH = 10_000
_LARGEST = 2**63


def convert(path: Path, connection: sqlite3.Connection, progress: Callable[[str], None]) -> None:
    """Make the content of a DuckDB file in an empty SQLite database.

    Args:
        path: The file.
        connection: To the empty database.
        progress: Is told what is left out.

    Raises:
        UsageError: DuckDB is not installed.
        TaskError: The file cannot be read.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError("DuckDB is needed: pip install 'intercode-gym[duckdb]'") from None
    try:
        # The file is data: it may make DuckDB read nothing else.
        config: dict[str, Any] = {"enable_external_access": False, "threads": 1}
        with duckdb.connect(str(path), read_only=True, config=config) as origin:
            for (table,) in _fetch(origin, "table_name FROM duckdb_tables()", "table_oid"):
                _copy_table(origin, connection, table)
            for name, sql in _fetch(origin, "view_name, sql FROM duckdb_views()", "view_oid"):
                if problem := _make_view(connection, sql):
                    progress(f"view {name} is left out: {problem}")
    except duckdb.Error as error:
        raise TaskError(f"{path}: {error}") from error


def _fetch(origin: duckdb.DuckDBPyConnection, what: str, order: str) -> list[tuple[Any, ...]]:
    where = "NOT internal AND schema_name = 'main' AND database_name = current_database()"
    return origin.execute(f"SELECT {what} WHERE {where} ORDER BY {order}").fetchall()


def _copy_table(
    origin: duckdb.DuckDBPyConnection, connection: sqlite3.Connection, table: str
) -> None:
    columns = origin.execute(
        "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = ? "
        "AND schema_name = 'main' AND database_name = current_database() ORDER BY column_index",
        [table],
    ).fetchall()
    lines = [
        f"{quoted([name])} {_declared(kind)}{'' if nullable else ' NOT NULL'}"
        for name, kind, nullable in columns
    ]
    lines += _constraints(origin, table)
    connection.execute(f"CREATE TABLE {quoted([table])} ({', '.join(lines)})")
    marks = ", ".join("?" * len(columns))
    rows = origin.execute(f"SELECT * FROM {quoted([table])}")
    while batch := rows.fetchmany(_BATCH):
        stored = (tuple(map(_stored, row)) for row in batch)
        connection.executemany(f"INSERT INTO {quoted([table])} VALUES ({marks})", stored)


def _constraints(origin: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    found = origin.execute(
        "SELECT constraint_type, constraint_column_names, referenced_table, "
        "referenced_column_names FROM duckdb_constraints() WHERE table_name = ? "
        "AND schema_name = 'main' AND database_name = current_database()",
        [table],
    ).fetchall()
    lines = []
    for kind, names, other, others in found:
        if kind in ("PRIMARY KEY", "UNIQUE"):
            lines.append(f"{kind} ({quoted(names)})")
        elif kind == "FOREIGN KEY":
            target = f"{quoted([other])} ({quoted(others)})"
            lines.append(f"FOREIGN KEY ({quoted(names)}) REFERENCES {target}")
    return lines


def _make_view(connection: sqlite3.Connection, statement: str) -> str | None:
    """Make a view; what is in the way, if it cannot be made."""
    import sqlglot

    try:
        connection.execute(sqlglot.transpile(statement, read="duckdb", write="sqlite")[0])
    except (sqlglot.errors.SqlglotError, sqlite3.Error) as error:
        return " ".join(str(error).split())[:200]
    return None


def _declared(kind: str) -> str:
    base = kind.partition("(")[0]
    if kind.endswith("]") or base in ("STRUCT", "MAP", "UNION", "ENUM", "JSON", "UUID", "INTERVAL"):
        return "TEXT"  # not as it is: SQLite would see the INT in it
    if base == "TIMESTAMP WITH TIME ZONE":
        return "TIMESTAMP"
    return "INTEGER" if base in ("HUGEINT", "UHUGEINT") else kind


def _stored(value: Any) -> Any:
    """A value as SQLite takes it."""
    if value is None or isinstance(value, (str, bytes, float)):
        return value
    if isinstance(value, int):
        return int(value) if -_LARGEST <= value < _LARGEST else float(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
