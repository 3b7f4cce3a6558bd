"""Parquet files, written by DuckDB."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from intercode.errors import RecordError, UsageError
from intercode.files import replaced
from intercode.syntax import quoted


def write_parquet(
    path: Path, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write a table.

    Args:
        path: The file.
        columns: Name → SQL type.
        rows: Plain values under those names.

    Raises:
        UsageError: DuckDB is not installed.
        RecordError: It cannot be written.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            "Parquet is written by DuckDB, which is not installed: "
            "pip install 'intercode-gym[duckdb]', or choose --to csv"
        ) from error
    types = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
    # Not beside the file: DuckDB would take a folder's * or [ for a pattern.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".jsonl") as lines:
        lines.writelines(f"{json.dumps(row)}\n" for row in rows)
        lines.flush()
        try:
            with replaced(path) as made, duckdb.connect() as connection:
                source, target = quoted(lines.name, "'"), quoted(str(made), "'")
                connection.execute(
                    f"COPY (SELECT * FROM read_json({source}, columns = {{{types}}}, "
                    "format = 'newline_delimited', maximum_object_size = 1073741824)) "
                    f"TO {target} (FORMAT parquet)"
                )
        except (duckdb.Error, OSError) as error:
            raise RecordError(f"cannot write {path}: {error}") from error
