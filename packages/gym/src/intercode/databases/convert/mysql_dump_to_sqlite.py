"""Conversion of a database of a MySQL dump to SQLite.

The SQLite database has the same tables, and the same columns in order with equivalent types.
Primary and foreign keys, unique and other indexes, constant defaults, and all rows are the same,
too. Views are kept if they can be translated.

SQLite has no equivalent for some parts, which therefore differ:

- Text columns are ``COLLATE NOCASE``, unless their MySQL collation is binary or case-sensitive.
  MySQL's ``utf8mb4_general_ci`` also ignores accents, the case of letters other than A to Z, and
  trailing spaces; SQLite does not.
- Dates and times are text in ISO format. Decimals, and whole numbers beyond signed 64 bits, are
  binary floating-point numbers.
- A key over the beginning of a column covers the whole column. Full-text and spatial indexes,
  indexes and defaults that are expressions, ``CHECK``, ``ON UPDATE CURRENT_TIMESTAMP``, triggers
  and routines are left out. So are the formulas of generated columns, whose values remain.

``SHOW CREATE TABLE`` writes a small and regular language, the same in all versions of MySQL and
MariaDB. This module parses it directly, because sqlglot is slower and fails on some types.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from decimal import Decimal

from intercode.databases.convert import Progress, dump, join_quoted, make_views
from intercode.errors import TaskError
from intercode.sql_identifiers import quote_identifier

_VIEW = re.compile(
    r"CREATE\b.*?\bVIEW\s+(?:`((?:[^`]|``)+)`|(\w+))\s*(\([^)]*\)\s*)?AS\s+(.*)",
    re.IGNORECASE | re.DOTALL,
)
_IGNORED_STATEMENT = re.compile(
    r"(?:SET|DROP|LOCK|UNLOCK|START|BEGIN|COMMIT)\b|ALTER\s.*(?:DIS|EN)ABLE\s+KEYS$",
    re.IGNORECASE | re.DOTALL,
)
_INT64_LIMIT = 2**63
_SURROGATE = re.compile("[\udc80-\udcff]")

_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_TOKEN = re.compile(rf"{_QUOTED}|[(),]", re.DOTALL)
_NAMES = re.compile(r"`((?:[^`]|``)+)`|([\w$]+)")
_HEAD = re.compile(
    rf"CREATE\s+(?:TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:{_NAME}\s*\.\s*)?({_NAME})\s*\(",
    re.IGNORECASE,
)
_COLUMN = re.compile(
    rf"({_NAME})\s+([a-z]+(?:\s+precision|\s+varying)?)\s*(\((?:{_QUOTED}|[^()'\"])*\))?(.*)",
    re.IGNORECASE | re.DOTALL,
)
_KEY = re.compile(
    rf"(?:CONSTRAINT\s+(?:{_NAME}\s+)??)?"
    r"(?P<kind>PRIMARY\s+KEY|UNIQUE(?:\s+(?:KEY|INDEX))?|FOREIGN\s+KEY|CHECK"
    r"|(?:FULLTEXT|SPATIAL)(?:\s+(?:KEY|INDEX))?|KEY|INDEX)"
    rf"\s*(?:(?P<name>{_NAME})\s*)?(?:USING\s+\w+\s*)?\((?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_REFERENCE = re.compile(
    rf"\)\s*REFERENCES\s+(?:{_NAME}\s*\.\s*)?(?P<table>{_NAME})\s*\((?P<columns>[^)]*)\)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ACTION = re.compile(
    r"ON\s+(?:DELETE|UPDATE)\s+(?:CASCADE|RESTRICT|SET\s+NULL|SET\s+DEFAULT|NO\s+ACTION)",
    re.IGNORECASE,
)
_COMMENT = re.compile(rf"\bCOMMENT\s*=?\s*(?:{_QUOTED})", re.IGNORECASE | re.DOTALL)
_DEFAULT = re.compile(
    rf"\bDEFAULT\s+(?:_\w+\s*)?(?:(?P<text>{_QUOTED})|b'(?P<bits>[01]*)'|(?P<number>[-+]?[\d.][\de.+-]*)"
    r"|(?P<now>CURRENT_TIMESTAMP|NOW)\b)",
    re.IGNORECASE | re.DOTALL,
)
_COLLATION = re.compile(r"\bCOLLATE\s*=?\s*(\w+)", re.IGNORECASE)

_INTEGERS = {"bit", "bool", "boolean", "tinyint", "smallint", "mediumint", "int", "integer"}
_SIMPLE_TYPES = {
    "float",
    "double",
    "real",
    "double precision",
    "date",
    "time",
    "datetime",
    "timestamp",
}
_DECIMALS = {"decimal", "numeric", "dec", "fixed"}
_SHORT_TEXTS = {"char", "varchar", "nchar", "nvarchar"}
_TEXTS = {"text", "tinytext", "mediumtext", "longtext", "enum", "set", "json"}


def convert(text: str, name: str, connection: sqlite3.Connection, progress: Progress) -> None:
    """Create one database of a dump in an empty SQLite database.

    Args:
        text: The dump.
        name: The name of the database.
        connection: A connection to the empty database.
        progress: A function that is called with a line for each statement or view that is left
            out. Parts of a table's definition are left out without a line.

    Raises:
        TaskError: The dump is incomplete, or cannot be parsed.
        sqlite3.Error: SQLite rejects a statement.
    """
    views: dict[str, str] = {}
    for statement in dump.section(text, name):
        plain_text = dump.strip_comments(statement)
        words = plain_text.upper().split(None, 2)
        if words[0] in ("INSERT", "REPLACE"):
            _insert(connection, dump.parse(plain_text))
        elif words[:2] == ["CREATE", "TABLE"]:
            for create_statement in convert_table(plain_text):
                connection.execute(create_statement)
        elif view := _VIEW.match(plain_text):
            # A dump creates each view twice: first a placeholder, to which other views can refer.
            key = view[2] or view[1].replace("``", "`")
            views.pop(key, None)
            views[key] = view[4]
        elif not _IGNORED_STATEMENT.match(plain_text):
            progress(f"{name}: left out: {' '.join(plain_text.split())[:100]}")
    problems = make_views(views, lambda key: _make_view(connection, key, views[key]))
    for key, problem in problems.items():
        progress(f"{name}: view {key} is left out: {problem}")


def _insert(connection: sqlite3.Connection, insert: dump.InsertStatement) -> None:
    table = quote_identifier(insert.table)
    kinds = {row[1]: row[2].lower() for row in connection.execute(f"PRAGMA table_info({table})")}
    converters = [
        _CONVERTERS.get(kinds.get(name, ""), _sqlite_value) for name in insert.columns or kinds
    ]
    columns = f" ({join_quoted(insert.columns)})" if insert.columns else ""
    for row in insert.rows:
        pairs = list(zip(converters, row, strict=True))
        # Most rows have the same statement, so SQLite compiles the statement only once.
        marks = ", ".join(
            "CAST(? AS TEXT)" if converter is _sqlite_value and _is_torn(value) else "?"
            for converter, value in pairs
        )
        statement = f"INSERT INTO {table}{columns} VALUES ({marks})"
        connection.execute(statement, [converter(value) for converter, value in pairs])


def _is_torn(value: dump.Value) -> bool:
    """Return whether a value is text that is not UTF-8, so SQLite accepts it only as bytes."""
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def _sqlite_value(value: dump.Value) -> object:
    """Return a value of the dump as a value that SQLite can store."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        return float(value)
    if isinstance(value, str) and _is_torn(value):
        return value.encode("utf-8", "surrogateescape")
    return value


def _as_bytes(value: dump.Value) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _as_bits(value: dump.Value) -> object:
    bits = _as_bytes(value)
    return int.from_bytes(bits, "big") if isinstance(bits, bytes) else bits


# Dumps of some versions contain bytes and bits in the form of texts.
_CONVERTERS: dict[str, Callable[[dump.Value], object]] = {"blob": _as_bytes, "bit": _as_bits}


def _make_view(connection: sqlite3.Connection, name: str, query: str) -> str | None:
    """Create a view of MySQL in SQLite; return the error, or None for success."""
    import sqlglot

    try:
        translated_query = sqlglot.transpile(query, read="mysql", write="sqlite")[0]
        connection.execute(f"CREATE VIEW {quote_identifier(name)} AS {translated_query}")
        connection.execute(f"SELECT * FROM {quote_identifier(name)} LIMIT 0")
    except (sqlglot.errors.SqlglotError, sqlite3.Error) as error:
        connection.execute(f"DROP VIEW IF EXISTS {quote_identifier(name)}")
        return " ".join(str(error).split())[:200]
    return None


def convert_table(statement: str) -> list[str]:
    """Translate MySQL's ``CREATE TABLE`` into SQLite's statements: the table, then its indexes.

    Args:
        statement: The statement without comments (`dump.strip_comments`).

    Raises:
        TaskError: The statement cannot be parsed.
    """
    head = _HEAD.match(statement)
    if head is None:
        raise TaskError(f"not a table's definition: {statement[:80]}")
    definitions, options = _split_definitions(statement, head.end())
    return _TableDefinition(_unquote_name(head[1]), definitions, options).statements()


class _TableDefinition:
    """The definition of a table for SQLite, collected from the parts of MySQL's definition."""

    def __init__(self, name: str, definitions: Sequence[str], options: str) -> None:
        self._name = name
        match = _COLLATION.search(options)
        self._collation = match[1] if match else ""
        self._key: tuple[str, ...] = ()
        self._constraints: list[str] = []
        self._indexes: list[str] = []
        columns = [definition for definition in definitions if not self._add_key(definition)]
        self._columns = [self._column(definition) for definition in columns]

    def statements(self) -> list[str]:
        lines = [*self._columns, *self._constraints]
        if self._key:
            lines.append(f"PRIMARY KEY ({join_quoted(self._key)})")
        definition = ",\n  ".join(lines)
        return [f"CREATE TABLE {quote_identifier(self._name)} (\n  {definition}\n)", *self._indexes]

    def _add_key(self, definition: str) -> bool:
        """Record a part of the definition if it is a key or a constraint; return whether it is."""
        match = _KEY.match(definition)
        if match is None:
            return False
        kind = match["kind"].upper().split()[0]
        names = _key_columns(match["rest"])
        if kind == "PRIMARY":
            self._key = names
        elif kind == "UNIQUE" and names:
            self._constraints.append(f"UNIQUE ({join_quoted(names)})")
        elif kind == "FOREIGN":
            self._constraints.append(_foreign_key(names, match["rest"]))
        elif kind in ("KEY", "INDEX") and names:
            name = f"{self._name}_{_unquote_name(match['name'] or '_'.join(names))}"
            self._indexes.append(
                f"CREATE INDEX {quote_identifier(name)} ON {quote_identifier(self._name)} "
                f"({join_quoted(names)})"
            )
        return True

    def _column(self, definition: str) -> str:
        match = _COLUMN.match(definition)
        if match is None:
            raise TaskError(f"table {self._name}: not a column's definition: {definition[:80]}")
        name, kind, size = _unquote_name(match[1]), match[2].lower(), match[3] or ""
        attributes = _COMMENT.sub(" ", match[4])
        flags = re.sub(_QUOTED, " ", attributes, flags=re.DOTALL).upper()
        if "PRIMARY KEY" in flags:
            self._key = (name,)
        if self._key == (name,) and kind in _INTEGERS | {"bigint"}:
            # In a column of this type, SQLite numbers new rows itself.
            self._key = ()
            return f"{quote_identifier(name)} INTEGER PRIMARY KEY"
        words = [quote_identifier(name), _sqlite_type(kind, size)]
        if "NOT NULL" in flags:
            words.append("NOT NULL")
        if re.search(r"\bUNIQUE\b", flags):
            words.append("UNIQUE")
        if default := _default(attributes):
            words.append(f"DEFAULT {default}")
        if kind in _SHORT_TEXTS | _TEXTS and not self._is_exact(attributes):
            words.append("COLLATE NOCASE")
        return " ".join(words)

    def _is_exact(self, attributes: str) -> bool:
        match = _COLLATION.search(attributes)
        collation = (match[1] if match else self._collation).lower()
        return collation == "binary" or collation.endswith(("_bin", "_cs"))


def _split_definitions(statement: str, start: int) -> tuple[list[str], str]:
    """Return the comma-separated parts in the outer parentheses, and the text after them."""
    definitions, depth = [], 1
    for token in _TOKEN.finditer(statement, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 or (token[0] == "," and depth == 1):
            definitions.append(statement[start : token.start()].strip())
            start = token.end()
        if depth == 0:
            return definitions, _COMMENT.sub(" ", statement[start:])
    raise TaskError(f"a table's definition is cut off: {statement[:80]}")


def _key_columns(key_text: str) -> tuple[str, ...]:
    """Return the columns of a key, without lengths; empty if the key is over expressions."""
    names: list[str] = []
    depth = 1
    for token in re.finditer(rf"{_QUOTED}|[(),]|[\w$]+", key_text, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            break
        if depth > 1 and token[0] not in "()," and not token[0].isdecimal():
            return ()
        if depth == 1 and token[0] not in "(),":
            names.append(token[0])
    return tuple(_unquote_name(name) for name in names if name.upper() not in ("ASC", "DESC"))


def _foreign_key(names: Sequence[str], key_text: str) -> str:
    match = _REFERENCE.search(key_text)
    if match is None:
        raise TaskError(f"a foreign key refers to nothing: {key_text[:80]}")
    target = [m[2] or m[1].replace("``", "`") for m in _NAMES.finditer(match["columns"])]
    actions = "".join(f" {action.upper()}" for action in _ACTION.findall(match["rest"]))
    table = quote_identifier(_unquote_name(match["table"]))
    return f"FOREIGN KEY ({join_quoted(names)}) REFERENCES {table} ({join_quoted(target)}){actions}"


def _sqlite_type(kind: str, size: str) -> str:
    """Return a type with the same meaning in SQLite, which only looks for some syllables in it."""
    if kind in _INTEGERS:
        return "int" if kind in ("integer", "bool", "boolean") else kind
    if kind in _SIMPLE_TYPES or kind == "bigint":
        return kind
    if kind in _DECIMALS:
        return f"decimal{size or '(10)'}"
    if kind in _SHORT_TEXTS:
        return f"{kind.removeprefix('n')}{size}"
    if kind == "year":
        return "int"
    return "text" if kind in _TEXTS else "blob"


def _default(attributes: str) -> str | None:
    match = _DEFAULT.search(attributes)
    if match is None:
        return None
    if match["now"]:
        return "CURRENT_TIMESTAMP"
    if match["bits"] is not None:
        return str(int(match["bits"] or "0", 2))
    if match["text"]:
        return quote_identifier(dump.unquote(match["text"]), "'")
    return match["number"]


def _unquote_name(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
