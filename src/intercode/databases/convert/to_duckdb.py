"""A DuckDB file with the content of a source, whatever the source is: built once, and kept."""

from __future__ import annotations

import importlib.metadata
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode.databases.convert import schema as schemas
from intercode.databases.convert.build import Progress, as_sqlite, cached
from intercode.databases.convert.schema_ddl import identifier, identifiers
from intercode.databases.source import Source
from intercode.errors import TaskError

if TYPE_CHECKING:
    import duckdb

VERSION = 1
"""Of what is built. Count it on with every change that makes other files."""

_BATCH = 10_000
_SETTINGS: dict[str, Any] = {
    "enable_external_access": False,  # a view may name a file
    "pandas_analyze_sample": _BATCH,  # a column's type is seen in all of its values
    "threads": 1,
}


def as_duckdb(source: Source, progress: Progress | None = None) -> Path:
    """A DuckDB file, not to be written to, with the content of a source.

    Raises:
        TaskError: The source cannot be read, or DuckDB cannot hold it.
    """
    if source.kind == "duckdb":
        log = source.path.with_name(f"{source.path.name}.wal")
        if log.is_file() and log.stat().st_size:
            raise TaskError(f"{source.path}: part of it is still in {log.name}: CHECKPOINT it")
        return source.path
    tell = progress or (lambda line: None)
    path = as_sqlite(source, progress)
    content = source.digest if path == source.path else path.stem
    key = f"{content}-duckdb{importlib.metadata.version('duckdb')}-v{VERSION}"
    return cached(key, lambda made: _build(source, path, made, tell))


def _build(source: Source, path: Path, made: Path, progress: Progress) -> None:
    import duckdb

    progress(f"building the DuckDB database {source.name}")
    schema = schemas.read_schema(path)
    try:
        with duckdb.connect(made, config=_SETTINGS) as connection:
            for statement in schemas.create_statements(schema, "duckdb", progress):
                connection.execute(statement)
            for table in schema.tables:
                _fill(connection, path, table)
            for statement in schemas.finish_statements(schema, "duckdb", progress):
                _finish(connection, statement, progress)
    except duckdb.Error as error:
        raise TaskError(f"{source.path}: database {source.name!r}: {error}") from error


def _fill(connection: duckdb.DuckDBPyConnection, path: Path, table: schemas.TableSchema) -> None:
    """Insert a table's rows, a batch at a time as columns: DuckDB is slow with single rows."""
    import numpy as np

    names = tuple(column.name for column in table.columns)
    target = f"{identifier(table.name, 'duckdb')} ({identifiers(names, 'duckdb')})"
    rows = schemas.rows(path, table)
    while batch := list(itertools.islice(rows, _BATCH)):
        columns = {}
        for number, values in enumerate(zip(*batch, strict=True)):
            columns[f"c{number}"] = array = np.empty(len(batch), dtype=object)
            array[:] = values
        connection.register("batch", columns)
        connection.execute(f"INSERT INTO {target} SELECT * FROM batch")
        connection.unregister("batch")


def _finish(connection: duckdb.DuckDBPyConnection, statement: str, progress: Progress) -> None:
    import duckdb

    try:
        connection.execute(statement)
    except duckdb.Error as error:
        progress(f"left out: {statement.partition('(')[0].strip()}: {error}")
