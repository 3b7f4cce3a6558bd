"""Limits of JSON from a client or a record, which are checked before it is parsed.

A body of 32 MiB can hold ten million values of a hundred bytes each. `count_tokens` scans it in
constant memory, and stops at the limit.
"""

from __future__ import annotations

import json
import re
from typing import Any

from intercode.errors import UsageError

MAX_TOKENS = 300_000
"""JSON tokens of a body. A dialogue of 500 KB with thirty tools has ten thousand."""
MAX_DEPTH = 128
"""Nesting of a body. Schemas of tools reach twenty."""
RECORD_DEPTH = 2 * MAX_DEPTH
"""Nesting of a record, in which a body of `MAX_DEPTH` lies a few levels deep."""
# Possessive, so that no text makes the expression remember where it could go back to.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,\]}]', re.DOTALL)
_OPENING_BRACKETS, _CLOSING_BRACKETS = b"[{", b"]}"
_NON_BRACKETS = bytes({*range(256)} - {*_OPENING_BRACKETS, *_CLOSING_BRACKETS})


def count_tokens(body: bytes | bytearray, limit: int = MAX_TOKENS) -> int:
    """Count the strings, brackets and commas of JSON, without parsing it.

    Args:
        body: The text, which may be malformed.
        limit: The most that it may have.

    Raises:
        UsageError: There are more, or they nest too deep.
    """
    depth = count = 0
    for count, token in enumerate(_TOKEN.finditer(body), 1):
        first_byte = body[token.start()]
        if first_byte in _OPENING_BRACKETS:
            depth += 1
        elif first_byte in _CLOSING_BRACKETS:
            depth -= 1
        if count > limit:
            raise UsageError(f"the body has more than {MAX_TOKENS} JSON tokens: send less at once")
        if depth > MAX_DEPTH:
            raise UsageError(f"the body has more than {MAX_DEPTH} levels: send a flatter one")
    return count


def is_flat(text: str | bytes, levels: int = MAX_DEPTH) -> bool:
    """Tell whether JSON nests no deeper than some levels, so that functions may recurse over it.

    Brackets are counted level by level, those in strings too: only if too many remain is the text
    scanned.
    """
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    brackets = body.translate(None, _NON_BRACKETS)
    for removed_levels in range(levels):
        if removed_levels + len(brackets) <= levels:
            return True
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    depth = 0
    for token in _TOKEN.finditer(body):
        first_byte = body[token.start()]
        depth += (first_byte in _OPENING_BRACKETS) - (first_byte in _CLOSING_BRACKETS)
        if depth > levels:
            return False
    return True


def load_record(text: str | bytes) -> Any:
    """Parse JSON of a run's folder.

    Raises:
        ValueError: The text is not JSON, or nests too deep.
    """
    if not is_flat(text, RECORD_DEPTH):
        raise ValueError(f"it has more than {RECORD_DEPTH} levels")
    return json.loads(text)
