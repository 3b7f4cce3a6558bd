"""Rows as a compact, aligned table in which every value shows its type.

Numbers stand to the right, ``NULL`` is written out. A text is in quotes where it could be taken
for something else: if it looks like a number, like ``NULL`` or a truth value, is empty, begins
or ends with a space, or begins with a quote. So ``3`` is a number, ``'3'`` a text, ``''`` an empty
text and ``NULL`` none at all. A text with control characters is written ``e'two\\nlines'``. No two
values that an agent must tell apart look alike, unless they are cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal

from intercode.databases.base import Row, Value

MAX_CELL = 200
"""Characters of a value that are shown."""
_MAX_BYTES = 32
_MISTAKABLE = re.compile(
    r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)|null|true|false|[xe]?'.*|\s.*|.*\s|",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROLS = {number: repr(chr(number))[1:-1] for number in [*range(32), 127]}
_CONTROLS[ord("\\")] = "\\\\"
_NUMBERS = (int, float, Decimal)


def render(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The table: a line of names, a rule, and a line for each row."""
    heads = [_cut(name.translate(_CONTROLS)) for name in columns]
    cells = [[shown(value) for value in row] for row in rows]
    right = [
        any(isinstance(row[n], _NUMBERS) for row in rows)
        and all(row[n] is None or isinstance(row[n], _NUMBERS) for row in rows)
        for n in range(len(heads))
    ]
    widths = [
        max(_width(head), *(_width(line[n]) for line in cells)) if cells else _width(head)
        for n, head in enumerate(heads)
    ]
    lines = [_line(heads, widths, right), "-+-".join("-" * width for width in widths)]
    lines += [_line(line, widths, right) for line in cells]
    return "\n".join(lines)


def shown(value: Value) -> str:
    """One value as it stands in a table."""
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _cut(repr(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _binary(bytes(value))
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return _cut(f"[{', '.join(shown(item) for item in value)}]")
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}")
    return _text(str(value))


def _text(value: str) -> str:
    if value.isascii() and value.isalpha() and value[0] not in "nNtTfFiI":
        return _cut(value)  # the usual case, quickly
    if _CONTROL.search(value):
        return _cut("e'" + value.translate(_CONTROLS).replace("'", "''") + "'")
    if _MISTAKABLE.fullmatch(value):
        return _cut("'" + value.replace("'", "''") + "'")
    return _cut(value)


def _binary(value: bytes) -> str:
    if len(value) <= _MAX_BYTES:
        return f"x'{value.hex()}'"
    return f"x'{value[:_MAX_BYTES].hex()}…' ({len(value):,} bytes)"


def _cut(text: str) -> str:
    if len(text) <= MAX_CELL:
        return text
    return f"{text[:MAX_CELL]}… ({len(text):,} characters)"


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_the_right in zip(cells, widths, right, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if to_the_right else cell + space)
    return " | ".join(padded).rstrip()


def _width(text: str) -> int:
    """Columns that a terminal takes for it."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
