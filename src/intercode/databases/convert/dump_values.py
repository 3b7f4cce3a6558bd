"""The rows that an ``INSERT`` of a MySQL dump writes, as values of Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from intercode.errors import TaskError

Value = int | Decimal | str | bytes | None

_HEAD = re.compile(
    r"""(?:INSERT|REPLACE)\s+(?:LOW_PRIORITY\s+|DELAYED\s+|HIGH_PRIORITY\s+|IGNORE\s+)*
    (?:INTO\s+)?(?:`(?:[^`]|``)+`\s*\.\s*)?(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>\w+))
    \s*(?:\((?P<columns>(?:`(?:[^`]|``)*`|[^()`])*)\)\s*)?VALUES?\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_COLUMN = re.compile(r"`((?:[^`]|``)*)`|(\w+)")
_TOKEN = re.compile(
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
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPED |= {"%": "\\%", "_": "\\_"}  # meant for LIKE: the backslash stays


@dataclass(frozen=True, slots=True)
class Insert:
    """What one statement writes."""

    table: str
    columns: tuple[str, ...]
    """Empty: all of the table's, in order."""
    rows: list[tuple[Value, ...]]


def parse(statement: str) -> Insert:
    """The rows of ``INSERT INTO table VALUES (…), (…)``.

    Args:
        statement: Without comments (`intercode.databases.convert.dump.plain`).

    Raises:
        TaskError: It has something else than constants.
    """
    head = _HEAD.match(statement)
    if head is None:
        raise TaskError(f"cannot be read as rows: {statement[:80]}")
    table = head["bare"] or head["quoted"].replace("``", "`")
    columns = tuple(
        match[2] or match[1].replace("``", "`") for match in _COLUMN.finditer(head["columns"] or "")
    )
    return Insert(table, columns, _rows(statement, head.end()))


def _rows(statement: str, position: int) -> list[tuple[Value, ...]]:
    rows: list[tuple[Value, ...]] = []
    row: list[Value] | None = None
    comma = False  # whether a comma, or what closes, must come next
    while position < len(statement.rstrip()):
        token = _TOKEN.match(statement, position)
        if token is None:
            raise TaskError(f"no constant: {statement[position : position + 80].strip()}")
        position = token.end()
        mark = token["mark"]
        if mark is None and row is not None and not comma:
            row.append(_value(token))
            comma = True
        elif mark == "," and comma:
            comma = False
        elif mark == "(" and row is None and not comma:
            row = []
        elif mark == ")" and row is not None and (comma or not row):
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
    r"""The text between quotes: ``\n`` and the like, ``\'`` and ``''`` resolved."""
    quote, inner = text[0], text[1:-1]
    if quote in inner:
        # A backslash takes the next character with it, so that \'' is one quote, and one more.
        parts = re.split(rf"(\\.|{quote}{quote})", inner, flags=re.DOTALL)
        inner = "".join(quote if part == quote * 2 else part for part in parts)
    if "\\" not in inner:
        return inner
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), inner)
