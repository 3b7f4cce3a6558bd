"""Choice of a type for a column of SQLite, for engines whose columns have strict types.

SQLite does not enforce the declared type of a column. So the choice depends on the declared type
and on the column's actual content. For example, an ``INTEGER`` column that contains a word becomes
text. A ``DATE`` column becomes a real date only if each of its values is a date.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal

from intercode.sql_identifiers import quote_identifier

Kind = Literal[
    "integer", "bigint", "double", "decimal", "varchar", "text", "blob", "date", "datetime", "time"
]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column type that MySQL, PostgreSQL and DuckDB have."""

    kind: Kind
    size: int = 0
    """A number that depends on the kind; 0 for other kinds.

    The number counts the characters of a ``varchar``, the digits of a ``decimal``, or the digits of
    the fraction of a second of a ``datetime``.
    """
    scale: int = 0
    """The digits of a ``decimal`` after the point."""

    @property
    def is_text(self) -> bool:
        """Whether the type holds characters."""
        return self.kind in ("varchar", "text")

    @property
    def is_whole(self) -> bool:
        """Whether the type holds whole numbers."""
        return self.kind in ("integer", "bigint")


@dataclass(frozen=True, slots=True)
class _ColumnContent:
    """A summary of a column's values, without NULL."""

    storage: frozenset[str]
    """SQLite's storage classes of the values."""
    min_value: Any
    max_value: Any
    max_length: int


_SIZE = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_INT32 = 2**31
_MAX_DIGITS = 38  # the limit of DuckDB, which is the lowest of all engines
_MAX_CHARACTERS = 10_000

# Each condition checks the form of a value, and its validity: SQLite turns 30 February into March.
_DIGIT = "[0-9]"
_DAY = f"{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT}-{_DIGIT}{_DIGIT}-{_DIGIT}{_DIGIT}"
_CLOCK = f"{_DIGIT}{_DIGIT}:{_DIGIT}{_DIGIT}"
_IS_DAY = f"(c GLOB '{_DAY}' AND date(c) IS c AND c >= '0001')"
_IS_TIME = f"(c GLOB '{_CLOCK}:{_DIGIT}{_DIGIT}' AND time(c) IS c)"
_IS_MOMENT = (
    f"(date(c) IS substr(c, 1, 10) AND c >= '0001'"
    f" AND strftime('%H:%M', c) IS substr(c, 12, 5) AND ("
    f"c GLOB '{_DAY}[ T]{_CLOCK}' OR c GLOB '{_DAY}[ T]{_CLOCK}:{_DIGIT}{_DIGIT}'"
    f" OR c GLOB '{_DAY}[ T]{_CLOCK}:{_DIGIT}{_DIGIT}.{_DIGIT}{_DIGIT}{_DIGIT}'"
    f" OR c GLOB '{_DAY}[ "
    f"T]{_CLOCK}:{_DIGIT}{_DIGIT}.{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT}{_DIGIT}'))"
)
_MOMENTS = ("DATE", "DATETIME", "TIMESTAMP", "SMALLDATETIME", "DATETIME2", "TIMESTAMPTZ")


def choose_type(
    connection: sqlite3.Connection, table: str, column: str, declared_type: str
) -> tuple[ColumnType, int]:
    """Return the type for a column, and the length of its longest value as text, in characters.

    Args:
        connection: A connection to the SQLite file.
        table: The table's name.
        column: The column's name.
        declared_type: The type that the table's definition declares.
    """
    column_sql, table_sql = quote_identifier(column), quote_identifier(table)
    values = f"(SELECT {column_sql} AS c FROM {table_sql}) WHERE c IS NOT NULL"
    content = _survey(connection, values)
    declared_type = " ".join(declared_type.upper().split())

    def is_always_true(condition: str) -> bool:
        query = f"SELECT 1 FROM {values} AND NOT ({condition}) LIMIT 1"
        return connection.execute(query).fetchone() is None

    return _choose_for_content(declared_type, content, is_always_true), content.max_length


def _survey(connection: sqlite3.Connection, values: str) -> _ColumnContent:
    storage_rows = connection.execute(
        f"SELECT typeof(c), MIN(c), MAX(c), MAX(LENGTH(CAST(c AS TEXT))) FROM {values} GROUP BY 1"
    ).fetchall()
    numeric_rows = [row for row in storage_rows if row[0] in ("integer", "real")]
    return _ColumnContent(
        storage=frozenset(row[0] for row in storage_rows),
        min_value=min((row[1] for row in numeric_rows), default=0),
        max_value=max((row[2] for row in numeric_rows), default=0),
        max_length=max((row[3] for row in storage_rows), default=0),
    )


def _choose_for_content(
    declared_type: str, content: _ColumnContent, is_always_true: Callable[[str], bool]
) -> ColumnType:
    base = declared_type.partition("(")[0].strip()
    if not content.storage:
        return _declared_type(declared_type, base)
    if content.storage == {"blob"}:
        return ColumnType("blob")
    if content.storage == {"text"}:
        return _moment_type(declared_type, base, is_always_true) or _text_type(
            declared_type, content.max_length
        )
    if content.storage & {"text", "blob"}:
        return ColumnType("text")
    if (size := _SIZE.search(declared_type)) and base in ("DECIMAL", "NUMERIC", "DEC", "NUMBER"):
        digits, scale = int(size[1]), int(size[2] or 0)
        condition = f"abs(c) < 1e{digits - scale} AND round(c, {scale}) = c"
        if scale <= digits <= _MAX_DIGITS and is_always_true(condition):
            return ColumnType("decimal", digits, scale)
    if "real" in content.storage or _is_float(base):
        return ColumnType("double")
    is_small = max(-content.min_value - 1, content.max_value) < _INT32
    return ColumnType("integer" if is_small and "BIG" not in base else "bigint")


def _moment_type(
    declared_type: str, base: str, is_always_true: Callable[[str], bool]
) -> ColumnType | None:
    """Return a date or time type that all values fit, if the column declares one; or None."""
    if base == "TIME" and is_always_true(_IS_TIME):
        return ColumnType("time")
    if base not in _MOMENTS and not declared_type.startswith("TIMESTAMP "):
        return None
    if is_always_true(_IS_DAY):
        return ColumnType("date")
    if is_always_true(f"{_IS_DAY} OR {_IS_MOMENT}"):
        return ColumnType("datetime", 0 if is_always_true("c NOT LIKE '%.%'") else 6)
    return None


def _declared_type(declared_type: str, base: str) -> ColumnType:
    """Return the type for an empty column, by its declared type alone.

    The function looks for the syllables that SQLite looks for, and for names of dates and decimals.
    """
    size = _SIZE.search(declared_type)
    if "INT" in base:
        return ColumnType("bigint" if "BIG" in base else "integer")
    if any(word in base for word in ("CHAR", "CLOB", "TEXT")):
        return _text_type(declared_type, 0)
    if "BLOB" in base:
        return ColumnType("blob")
    if base == "DATE" or base == "TIME":
        return ColumnType("date" if base == "DATE" else "time")
    if base in _MOMENTS or base.startswith("TIMESTAMP"):
        return ColumnType("datetime")
    if size and base in ("DECIMAL", "NUMERIC", "DEC") and int(size[1]) <= _MAX_DIGITS:
        return ColumnType("decimal", int(size[1]), min(int(size[1]), int(size[2] or 0)))
    if _is_float(base) or base in ("NUMERIC", "DECIMAL", "NUMBER"):
        return ColumnType("double")
    return (
        ColumnType("integer") if base in ("BOOL", "BOOLEAN", "YEAR", "BIT") else ColumnType("text")
    )


def _text_type(declared_type: str, max_length: int) -> ColumnType:
    size = _SIZE.search(declared_type)
    if "CHAR" in declared_type and size and max(1, max_length) <= int(size[1]) <= _MAX_CHARACTERS:
        return ColumnType("varchar", int(size[1]))
    return ColumnType("text")


def _is_float(base: str) -> bool:
    return any(word in base for word in ("REAL", "FLOA", "DOUB"))


def is_whole_text(connection: sqlite3.Connection, table: str, column: str) -> bool:
    """Return whether all texts of a column are whole 32-bit numbers in canonical form."""
    name = quote_identifier(column)
    query = (
        f"SELECT 1 FROM {quote_identifier(table)} WHERE {name} IS NOT NULL AND (CAST(CAST({name} "
        f"AS INTEGER) AS TEXT) <> {name} OR abs(CAST({name} AS INTEGER)) >= {_INT32}) LIMIT 1"
    )
    return connection.execute(query).fetchone() is None


def fit(value: Any, kind: ColumnType) -> Any:
    """Convert a value of SQLite to a value of a type.

    Raises:
        ValueError, ArithmeticError: The value cannot have this type.
    """
    return None if value is None else _CONVERTERS[kind.kind](value, kind)


def _as_text(value: Any, _: ColumnType) -> str:
    if isinstance(value, bytes):
        value = decode(value)
    return str(value).replace("\0", "")  # PostgreSQL's text cannot contain U+0000


def decode(content: bytes) -> str:
    """Decode text as UTF-8; if that fails, as Latin-1, which some databases of benchmarks have."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


_CONVERTERS: dict[str, Callable[[Any, ColumnType], Any]] = {
    "integer": lambda value, _: int(value),
    "bigint": lambda value, _: int(value),
    "double": lambda value, _: float(value),
    "decimal": lambda value, kind: round(Decimal(str(value)), kind.scale),
    "varchar": _as_text,
    "text": _as_text,
    "blob": lambda value, _: value,
    "date": lambda value, _: date.fromisoformat(value),
    "datetime": lambda value, _: datetime.fromisoformat(value),
    "time": lambda value, _: time.fromisoformat(value),
}
