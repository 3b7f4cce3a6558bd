"""Limits of JSON from a client, which are checked before it is parsed.

A body of 32 MiB can hold ten million values of a hundred bytes each. `count_tokens` scans it in
constant memory, and stops at the limit.
"""

from __future__ import annotations

import re

from intercode.errors import UsageError

MAX_TOKENS = 300_000
"""JSON tokens of a body. A dialogue of 500 KB with thirty tools has ten thousand."""
MAX_DEPTH = 128
"""Nesting of a body. Schemas of tools reach twenty."""
# Possessive, so that no text makes the expression remember where it could go back to.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,\]}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"


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
        first = body[token.start()]
        if first in _OPENING:
            depth += 1
        elif first in _CLOSING:
            depth -= 1
        if count > limit:
            raise UsageError(f"the body has more than {MAX_TOKENS} JSON tokens: send less at once")
        if depth > MAX_DEPTH:
            raise UsageError(f"the body has more than {MAX_DEPTH} levels: send a flatter one")
    return count
