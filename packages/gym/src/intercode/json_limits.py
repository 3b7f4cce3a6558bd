"""Limits of JSON from clients and records, which are enforced before parsing.

A body of 32 MiB can hold ten million values, which take a hundred bytes each once parsed.
`count_tokens` scans a body in constant memory, and stops at the limit.
"""

from __future__ import annotations

import json
import re
from typing import Any

from intercode.errors import UsageError

MAX_TOKENS = 300_000
"""The maximum JSON tokens of a body. A dialogue of 500 KB with thirty tools has ten thousand."""
MAX_DEPTH = 128
"""The maximum nesting of a body. The schemas of tools reach twenty levels."""
RECORD_DEPTH = 2 * MAX_DEPTH
"""The maximum nesting of a record, which contains a body of `MAX_DEPTH` a few levels deep."""
# Possessive quantifiers: no text makes the expression store positions for backtracking.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,\]}]', re.DOTALL)
_OPENING_BRACKETS, _CLOSING_BRACKETS = b"[{", b"]}"
_NON_BRACKETS = bytes({*range(256)} - {*_OPENING_BRACKETS, *_CLOSING_BRACKETS})


def count_tokens(body: bytes | bytearray, limit: int = MAX_TOKENS) -> int:
    """Count the strings, brackets and commas of JSON, without parsing it.

    Args:
        body: The text, which may be malformed.
        limit: The maximum of tokens.

    Raises:
        UsageError: The body has more tokens, or more than `MAX_DEPTH` levels.
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
    """Return whether JSON nests at most `levels` deep, so functions may recurse over it.

    A fast path removes pairs of brackets level by level, including brackets in strings. The text is
    scanned only if too many brackets remain.
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
        ValueError: The text is not JSON, or has more than `RECORD_DEPTH` levels.
    """
    if not is_flat(text, RECORD_DEPTH):
        raise ValueError(f"it has more than {RECORD_DEPTH} levels")
    return json.loads(text)
