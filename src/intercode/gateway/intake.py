"""Intake: how much of what clients send a gateway holds at a time, before any of it is parsed.

A body of 32 MiB can hold ten million JSON values of a hundred bytes each. So `count_tokens` scans a
body in constant memory first, and an `Intake` bounds the bytes of all bodies together.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intercode.gateway.rules import Refusal

SMALL = 1024**2
"""Bytes of a body that costs nothing of the intake, so that large bodies never delay it. A dialogue
of a million bytes fills most models' context."""
TOTAL = 128 * 1024**2
"""Bytes of all larger bodies together: four of the largest that providers take."""
MAX_TOKENS = 300_000
"""JSON tokens of a body. A dialogue of 500 KB with thirty tools has ten thousand."""
MAX_DEPTH = 128
"""Nesting of a body. Schemas of tools reach twenty."""
# Possessive, so that no text makes the expression remember where it could go back to.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,\]}]', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"
_EMBEDDED = ("arguments", "input")
"""Fields of tool calls whose text is JSON, which is parsed as well."""


def count_tokens(body: bytes, most: int = MAX_TOKENS) -> int:
    """Count the strings, brackets and commas of JSON, without parsing it.

    Raises:
        Refusal: There are more than `most`, or they nest too deep.
    """
    depth = count = 0
    for count, token in enumerate(_TOKEN.finditer(body), 1):
        first = body[token.start()]
        if first in _OPENING:
            depth += 1
        elif first in _CLOSING:
            depth -= 1
        if count > most or depth > MAX_DEPTH:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_TOKENS} JSON tokens"
            raise Refusal(413, f"the body has more than {limit}: send a shorter dialogue")
    return count


def count_embedded_tokens(data: Mapping[str, Any], most: int) -> None:
    """Count the tokens of the JSON within the texts of a request: the arguments of tool calls.

    Args:
        data: The request.
        most: The tokens that remain for them.

    Raises:
        Refusal: There are more, or they nest too deep.
    """
    stack: list[Any] = [value for value in data.values() if not isinstance(value, str)]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(inner, str):
                    stack.append(inner)
                elif key in _EMBEDDED:
                    most -= count_tokens(inner.encode(errors="replace"), most)


class Intake:
    """A budget of bytes, of which each holder has at most a share.

    Args:
        total: The bytes.
        share: The most that one holder has at a time, at least what one reservation may ask for.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = max(total, share), share
        self._used = 0
        self._held: dict[object, int] = {}
        self._changed = threading.Condition()
        self.parsing = threading.Lock()
        """Held while a large body is parsed: that takes several times its size, for a moment."""

    @property
    def used(self) -> int:
        """The bytes that are reserved."""
        with self._changed:
            return self._used

    @contextmanager
    def reserved(self, holder: object, size: int, seconds: float) -> Iterator[None]:
        """Reserve bytes while the block runs.

        Args:
            holder: Whose share they count to.
            size: How many.
            seconds: How long to wait for them.

        Raises:
            Refusal: They were not free in time.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._has_room(holder, size), deadline - time.monotonic()
            ):
                raise Refusal(503, "too many large requests are under way: try again later")
            self._used += size
            self._held[holder] = self._held.get(holder, 0) + size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._held[holder] -= size
                if not self._held[holder]:
                    del self._held[holder]
                self._changed.notify_all()

    def _has_room(self, holder: object, size: int) -> bool:
        is_within_share = self._held.get(holder, 0) + size <= self._share
        return is_within_share and self._used + size <= self._total
