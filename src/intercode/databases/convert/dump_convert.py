"""A database of a MySQL dump, made in SQLite.

What is the same: tables, columns in order with their declared types, primary and foreign keys,
unique and other indexes, defaults, all rows, views that translate.

What differs, as SQLite has nothing like it:

- Text columns are ``COLLATE NOCASE`` unless their MySQL collation is a binary or case-sensitive
  one. MySQL's ``utf8mb4_general_ci`` also ignores accents, the case of other letters than A to Z,
  and spaces at the end; SQLite does not.
- Dates and times are text in ISO format; decimals, and whole numbers beyond 64 bits with a sign,
  are binary floating-point numbers.
- A key over the first so many characters of a column is over all of it. Full-text and spatial
  indexes, ``CHECK``, ``ON UPDATE CURRENT_TIMESTAMP``, the formulas of generated columns (their
  values stay), triggers and routines are left out.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from decimal import Decimal

from intercode.databases.convert import dump, dump_values
from intercode.databases.convert.dump_table import convert_table, quoted

Progress = Callable[[str], None]

_VIEW = re.compile(
    r"CREATE\b.*?\bVIEW\s+(?:`((?:[^`]|``)+)`|(\w+))\s*(\([^)]*\)\s*)?AS\s+(.*)",
    re.IGNORECASE | re.DOTALL,
)
_HARMLESS = re.compile(
    r"(?:SET|DROP|LOCK|UNLOCK|START|BEGIN|COMMIT)\b|ALTER\s.*(?:DIS|EN)ABLE\s+KEYS$",
    re.IGNORECASE | re.DOTALL,
)
_LARGEST = 2**63
_SURROGATE = re.compile("[\udc80-\udcff]")


def convert(text: str, name: str, connection: sqlite3.Connection, progress: Progress) -> None:
    """Make one database of a dump in an empty SQLite database.

    Args:
        text: The dump.
        name: The database.
        connection: To the empty one.
        progress: Is told what is left out.

    Raises:
        TaskError: The dump is torn, or cannot be understood.
        sqlite3.Error: SQLite does not take it.
    """
    views: dict[str, str] = {}
    for statement in dump.section(text, name):
        meaning = dump.plain(statement)
        words = meaning.upper().split(None, 2)
        if words[0] in ("INSERT", "REPLACE"):
            _insert(connection, dump_values.parse(meaning))
        elif words[:2] == ["CREATE", "TABLE"]:
            for made in convert_table(meaning):
                connection.execute(made)
        elif view := _VIEW.match(meaning):
            # A dump makes each view twice: first as a stand-in, so that others can refer to it.
            key = view[2] or view[1].replace("``", "`")
            views.pop(key, None)
            views[key] = view[4]
        elif not _HARMLESS.match(meaning):
            progress(f"{name}: left out: {' '.join(meaning.split())[:100]}")
    for key, problem in _make_views(connection, views).items():
        progress(f"{name}: view {key} is left out: {problem}")


def _insert(connection: sqlite3.Connection, insert: dump_values.Insert) -> None:
    table = quoted([insert.table])
    kinds = {row[1]: row[2].lower() for row in connection.execute(f"PRAGMA table_info({table})")}
    fits = [_FITS.get(kinds.get(name, ""), _stored) for name in insert.columns or kinds]
    columns = f" ({quoted(insert.columns)})" if insert.columns else ""
    for row in insert.rows:
        pairs = list(zip(fits, row, strict=True))
        # The usual statement is the same for all rows, and compiled once.
        marks = ", ".join(
            "CAST(? AS TEXT)" if fit is _stored and _is_torn(value) else "?" for fit, value in pairs
        )
        statement = f"INSERT INTO {table}{columns} VALUES ({marks})"
        connection.execute(statement, [fit(value) for fit, value in pairs])


def _is_torn(value: dump_values.Value) -> bool:
    """Whether it is text that is no UTF-8; SQLite holds it, but takes it only as bytes."""
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def _stored(value: dump_values.Value) -> object:
    """A value as SQLite takes it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return float(value)
    if isinstance(value, str) and _is_torn(value):
        return value.encode("utf-8", "surrogateescape")
    return value


def _as_bytes(value: dump_values.Value) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _as_bits(value: dump_values.Value) -> object:
    bits = _as_bytes(value)
    return int.from_bytes(bits, "big") if isinstance(bits, bytes) else bits


# Some versions write bytes and bits as if they were text.
_FITS: dict[str, Callable[[dump_values.Value], object]] = {"blob": _as_bytes, "bit": _as_bits}


def _make_views(connection: sqlite3.Connection, views: Mapping[str, str]) -> Mapping[str, str]:
    """Make all views, those after others that read them; what is in the way of the rest."""
    pending = dict(views)
    while True:
        found = {name: _make_view(connection, name, query) for name, query in pending.items()}
        problems = {name: problem for name, problem in found.items() if problem}
        if len(problems) == len(pending):
            return problems
        pending = {name: pending[name] for name in problems}


def _make_view(connection: sqlite3.Connection, name: str, query: str) -> str | None:
    """Make a view; what is in the way, if it cannot be made."""
    import sqlglot

    try:
        translated = sqlglot.transpile(query, read="mysql", write="sqlite")[0]
        connection.execute(f"CREATE VIEW {quoted([name])} AS {translated}")
        connection.execute(f"SELECT * FROM {quoted([name])} LIMIT 0")
    except (sqlglot.errors.SqlglotError, sqlite3.Error) as error:
        connection.execute(f"DROP VIEW IF EXISTS {quoted([name])}")
        return " ".join(str(error).split())[:200]
    return None
