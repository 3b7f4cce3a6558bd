"""Limits of JSON from clients and records, which are enforced before parsing.

A request body of 32 MiB can hold ten million JSON values. Each value takes about a hundred bytes of
memory after parsing. Therefore `count_tokens` first scans the unparsed body in constant memory,
and stops at the limit.
"""

from __future__ import annotations

import json
import re
from typing import Any

from intercode.errors import UsageError

MAX_TOKENS = 300_000
"""The maximum number of JSON tokens (strings, brackets and commas) in a request body. A dialogue of
500 KB with thirty tools has ten thousand."""
MAX_DEPTH = 128
"""The maximum nesting depth of a request body. The JSON schemas of tools reach twenty levels."""
RECORD_DEPTH = 2 * MAX_DEPTH
"""The maximum nesting depth of a record. A record contains request bodies, which may have
`MAX_DEPTH` levels, a few levels below its top."""
# The possessive quantifiers (``*+``) never backtrack, so no text makes the regular expression
# store positions for backtracking, which would take memory.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,\]}]', re.DOTALL)
_OPENING_BRACKETS, _CLOSING_BRACKETS = b"[{", b"]}"
_NON_BRACKETS = bytes({*range(256)} - {*_OPENING_BRACKETS, *_CLOSING_BRACKETS})


def count_tokens(body: bytes | bytearray, limit: int = MAX_TOKENS) -> int:
    """Count the strings, brackets and commas of JSON text, without parsing the text.

    Args:
        body: The text, which may be malformed.
        limit: The maximum number of tokens.

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
            raise UsageError(f"the body has more than {limit} JSON tokens: send less at once")
        if depth > MAX_DEPTH:
            raise UsageError(f"the body has more than {MAX_DEPTH} levels: send a flatter one")
    return count


def is_flat(text: str | bytes, levels: int = MAX_DEPTH) -> bool:
    """Return whether JSON text nests at most `levels` deep, so recursive functions can process it.

    The fast path keeps only the brackets, including those in strings, and removes adjacent pairs
    level by level. The text is scanned token by token only if too many brackets remain.
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
    """Parse a JSON text from a file of a run's folder.

    Raises:
        ValueError: The text is not JSON, or has more than `RECORD_DEPTH` levels.
    """
    if not is_flat(text, RECORD_DEPTH):
        raise ValueError(f"it has more than {RECORD_DEPTH} levels")
    return json.loads(text)
