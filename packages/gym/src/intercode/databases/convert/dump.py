"""Parser of MySQL dumps: it finds statements, the statements of one database, and rows.

The text is split as the server and its client read it. The syntax has quotes with backslash escapes
and doubled quotes, three kinds of comments, and the client's command ``DELIMITER``. Versioned
comments (``/*!40101 … */``) contain statements, so they are not skipped. The parser of sqlglot is
not used: it would take 8 times as long for a table's definition, and 10 times as long for rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from intercode.errors import TaskError

Value = int | Decimal | str | bytes | None

_TOKENS = r"""
    (?P<quoted>  '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
  | (?P<comment> --(?=[\s\x00-\x1f]|\Z)[^\n]* | \#[^\n]* | /\*(?!M?!).*?\*/ )
  | (?P<open>    /\*M?!\d* )
  | (?P<close>   \*/ )
  | (?P<torn>    ['"`] | /\*(?!M?!) )
"""
_TOKEN = re.compile(_TOKENS, re.DOTALL | re.VERBOSE)
_COMMAND = r"(?P<command> (?<![^\n])[ \t]*DELIMITER[ \t]+(?P<word>\S+)[^\n]* )"

_NAME = r"(?:`((?:[^`]|``)+)`|([^\s`;,()]+))"
_DATABASE = re.compile(
    rf"(?:CREATE\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+NOT\s+EXISTS\s*)?|USE\s*){_NAME}", re.IGNORECASE
)
_DEFINITION = re.compile(
    r"(?:CREATE|DROP|ALTER)\b"
    r"(?:\s+(?:OR\s+REPLACE|UNIQUE|FULLTEXT|SPATIAL"
    r"|ALGORITHM\s*=\s*\w+|DEFINER\s*=\s*\S+|SQL\s+SECURITY\s+\w+))*"
    r"\s+(?:TABLE|VIEW|INDEX)\b"
    r"|(?:INSERT|REPLACE)\b|(?:UN)?LOCK\s+TABLES?\b|START\s+TRANSACTION\b|BEGIN\b|COMMIT\b",
    re.IGNORECASE,
)
_SETTING = re.compile(r"SET\s", re.IGNORECASE)
_GLOBAL_SETTING = re.compile(
    r"\b(?:GLOBAL|PERSIST|PERSIST_ONLY|PASSWORD|ROLE|SQL_LOG_BIN)\b", re.IGNORECASE
)

_MAX_CACHED_LENGTH = 1 << 24
"""Length of a dump in characters from which its statements are not cached in memory."""

_INSERT = re.compile(
    r"""(?:INSERT|REPLACE)\s+(?:LOW_PRIORITY\s+|DELAYED\s+|HIGH_PRIORITY\s+|IGNORE\s+)*
    (?:INTO\s+)?(?:`(?:[^`]|``)+`\s*\.\s*)?(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>\w+))
    \s*(?:\((?P<columns>(?:`(?:[^`]|``)*`|[^()`])*)\)\s*)?VALUES?\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_COLUMN = re.compile(r"`((?:[^`]|``)*)`|(\w+)")
_CONSTANT = re.compile(
    r"""\s*(?:
    (?P<mark>[(),])
  | (?P<null>NULL\b) | (?P<true>TRUE\b) | (?P<false>FALSE\b)
  | 0x(?P<hex>[0-9a-f]+)\b | x'(?P<quoted_hex>(?:[0-9a-f]{2})*)'
  | 0b(?P<bits>[01]+)\b | b'(?P<quoted_bits>[01]*)'
  | (?P<whole>[-+]?\d+)(?![\d.e]) | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)
  | (?P<introducer>_[a-z0-9]+)?\s*
    (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPES |= {"%": "\\%", "_": "\\_"}  # the backslash remains, because LIKE needs it


def read(path: Path) -> str:
    """Return the text of a dump; bytes that are not UTF-8 become surrogates (``surrogateescape``).

    Raises:
        TaskError: The file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    return content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def statements(text: str) -> Iterator[str]:
    """Split a script into its statements, without delimiters but with comments.

    Raises:
        TaskError: A quote or a comment is never closed.
    """
    pattern, start, position = _delimiter_pattern(";"), 0, 0
    is_version_comment = False
    while token := pattern.search(text, position):
        position = token.end()
        if token["torn"]:
            line = text.count("\n", 0, token.start()) + 1
            raise TaskError(f"the dump is torn: {token['torn']} in line {line} is never closed")
        if token["open"]:
            is_version_comment = True
        elif token["close"]:
            is_version_comment = False
        elif token["command"]:
            pattern = _delimiter_pattern(token["word"])
            start = position
        elif token["delimiter"] and not is_version_comment:
            if statement := text[start : token.start()].strip():
                yield statement
            start = position
    if statement := text[start:].strip():
        yield statement


def strip_comments(statement: str) -> str:
    """Return a statement without comments. The content of versioned comments remains."""
    if not any(marker in statement for marker in ("--", "#", "/*")):
        return statement.strip()
    return _TOKEN.sub(lambda token: token["quoted"] or " ", statement).strip()


def section(text: str, name: str) -> list[str]:
    """Return the unchanged statements of a dump that create the content of one database.

    The result begins with the session settings before the first database. Then follow statements
    after the database's ``CREATE DATABASE`` or ``USE``: definitions of tables, views and indexes,
    rows, session settings, locks and transactions. Excluded are accounts and privileges, global
    settings, and the selection of a database. Triggers, routines and events are also excluded,
    because they would run with the privileges of the account that loads the dump.

    Raises:
        TaskError: The dump is incomplete, or does not contain the database.
    """
    section_statements: list[str] = []
    has_database = False
    for database, statement, plain_text in (
        _list_statements(text) if len(text) < _MAX_CACHED_LENGTH else _iterate_statements(text)
    ):
        has_database = has_database or database == name
        is_definition = database == name and _DEFINITION.match(plain_text)
        is_setting = (
            database in (name, None)
            and _SETTING.match(plain_text)
            and not _GLOBAL_SETTING.search(plain_text)
        )
        if is_definition or is_setting:
            section_statements.append(statement)
    if not has_database:
        raise TaskError(f"the dump has no database {name!r}")
    return section_statements


def _iterate_statements(text: str) -> Iterator[tuple[str | None, str, str]]:
    """Yield for each statement its database, its text, and its text without comments."""
    database: str | None = None
    for statement in statements(text):
        plain_text = strip_comments(statement)
        if match := _DATABASE.match(plain_text):
            database = match[1].replace("``", "`") if match[1] else match[2]
        yield database, statement, plain_text


# A run usually reads all databases of a dump, so the dump's statements are cached.
@lru_cache(maxsize=1)
def _list_statements(text: str) -> list[tuple[str | None, str, str]]:
    return list(_iterate_statements(text))


@lru_cache(maxsize=16)
def _delimiter_pattern(delimiter: str) -> re.Pattern[str]:
    end = rf"(?P<delimiter> {re.escape(delimiter)} )"
    return re.compile(
        rf"{_COMMAND} | {_TOKENS.rstrip()} | {end}", re.DOTALL | re.VERBOSE | re.IGNORECASE
    )


@dataclass(frozen=True, slots=True)
class InsertStatement:
    """The rows that one INSERT or REPLACE statement writes."""

    table: str
    columns: tuple[str, ...]
    """Column names; empty for all columns of the table, in order."""
    rows: list[tuple[Value, ...]]


def parse(statement: str) -> InsertStatement:
    """Parse the rows of ``INSERT INTO table VALUES (…), (…)``.

    Args:
        statement: The statement without comments (`strip_comments`).

    Raises:
        TaskError: The statement is malformed, or an expression is no constant.
    """
    head = _INSERT.match(statement)
    if head is None:
        raise TaskError(f"cannot be read as rows: {statement[:80]}")
    table = head["bare"] or head["quoted"].replace("``", "`")
    columns = tuple(
        match[2] or match[1].replace("``", "`") for match in _COLUMN.finditer(head["columns"] or "")
    )
    return InsertStatement(table, columns, _rows(statement, head.end()))


def _rows(statement: str, position: int) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    row: list[Value] | None = None
    comma = False  # whether the next token must be a comma or a closing parenthesis
    while position < len(statement.rstrip()):
        token = _CONSTANT.match(statement, position)
        if token is None:
            raise TaskError(f"not a constant: {statement[position : position + 80].strip()}")
        position = token.end()
        marker = token["mark"]
        if marker is None and row is not None and not comma:
            row.append(_value(token))
            comma = True
        elif marker == "," and comma:
            comma = False
        elif marker == "(" and row is None and not comma:
            row = []
        elif marker == ")" and row is not None and (comma or not row):
            rows.append(tuple(row))
            row, comma = None, True
        else:
            raise TaskError(f"a row is malformed before: {statement[position : position + 80]}")
    if row is not None or not comma:
        raise TaskError("the last row is cut off")
    return rows


def _value(token: re.Match[str]) -> Value:
    kind = token.lastgroup
    text = token[kind] if kind else ""
    if kind == "null":
        return None
    if kind in ("true", "false"):
        return int(kind == "true")
    if kind == "whole":
        return int(text)
    if kind == "number":
        return Decimal(text)
    if kind in ("hex", "quoted_hex"):
        return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}")
    if kind in ("bits", "quoted_bits"):
        return int(text or "0", 2)
    value = unquote(text)
    is_bytes = (token["introducer"] or "").lower() == "_binary"
    return value.encode("utf-8", "surrogateescape") if is_bytes else value


def unquote(text: str) -> str:
    r"""Return the text of a quoted constant, with escapes (``\n``, ``\'``, ``''``) resolved."""
    quote, content = text[0], text[1:-1]
    if quote in content:
        # A backslash includes the next character: the text \'' is an escaped quote, then another
        # quote.
        pieces = re.split(rf"(\\.|{quote}{quote})", content, flags=re.DOTALL)
        content = "".join(quote if piece == quote * 2 else piece for piece in pieces)
    if "\\" not in content:
        return content
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), content)
