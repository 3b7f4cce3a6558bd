"""Rows as a compact, aligned table in which every value shows its type.

Numbers stand to the right, ``NULL`` is written out. A text is in quotes where it could be taken
for something else: if it looks like a number, like ``NULL`` or a truth value, is empty, begins
or ends with a space, or begins with a quote. So ``3`` is a number, ``'3'`` a text, ``''`` an empty
text and ``NULL`` none at all. A text with control characters is written ``e'…'``, with escapes.
No two values that an agent must tell apart look alike, unless they are cut.
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
    r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)|null|true|false|[xe]?'.*|\s.*|.*\s|",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROLS = {number: repr(chr(number))[1:-1] for number in [*range(32), 127]}
_CONTROLS[ord("\\")] = "\\\\"
_NUMBERS = {int, float, Decimal}


def render(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """The table: a line of names, a rule, and a line for each row."""
    padded = []
    for number, name in enumerate(columns):
        values = [row[number] for row in rows]
        texts = [_cut(name.translate(_CONTROLS)), *map(shown, values)]
        padded.append(_padded(texts, to_the_right=_are_numbers(values)))
    lines = [" | ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    lines.insert(1, "-+-".join(["-" * _width(cells[0]) for cells in padded]))
    return "\n".join(lines)


def shown(value: Value) -> str:
    """One value as it stands in a table."""
    if type(value) is int:
        return str(value)
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


def _are_numbers(values: Sequence[Value]) -> bool:
    """Whether there are numbers among them, and nothing else but NULL."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    return bool(kinds) and kinds <= _NUMBERS


def _padded(texts: Sequence[str], to_the_right: bool) -> list[str]:
    widths = [_width(text) for text in texts]
    full = max(widths)
    if to_the_right:
        return [" " * (full - width) + text for text, width in zip(texts, widths, strict=True)]
    return [text + " " * (full - width) for text, width in zip(texts, widths, strict=True)]


def _width(text: str) -> int:
    """Columns that a terminal takes for it."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
