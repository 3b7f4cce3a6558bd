"""Intake: a limit on the request bytes that a gateway holds at a time, before it parses them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intercode.errors import UsageError
from intercode.json_limits import MAX_TOKENS, count_tokens
from intercode_integrations.gateway.policy import Refusal

FREE_BODY_BYTES = 1024**2
"""Bytes of a body that are free of the intake, so large bodies never delay small ones. A dialogue
of a million bytes fills most models' context."""
MAX_TOTAL_BYTES = 128 * 1024**2
"""Bytes of all larger bodies together: four of the largest that providers accept."""
_EMBEDDED = ("arguments", "input")
"""Fields of tool calls whose text is JSON, which the gateway parses as well."""


def check_tokens(body: bytes) -> int:
    """Return the tokens that remain for the JSON within the texts of a body.

    Raises:
        Refusal: The body has too many tokens, or they nest too deep.
    """
    try:
        return MAX_TOKENS - count_tokens(body)
    except UsageError as error:
        raise Refusal(413, str(error)) from None


def check_embedded_tokens(data: Mapping[str, Any], remaining_tokens: int) -> None:
    """Count the tokens of JSON within the texts of a request: the arguments of tool calls.

    Args:
        data: The request.
        remaining_tokens: The maximum of these tokens.

    Raises:
        Refusal: There are more tokens, or they nest too deep.
    """
    stack: list[Any] = [value for value in data.values() if not isinstance(value, str)]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(item, str):
                    stack.append(item)
                elif key in _EMBEDDED:
                    try:
                        remaining_tokens -= count_tokens(
                            item.encode(errors="replace"), remaining_tokens
                        )
                    except UsageError as error:
                        raise Refusal(413, str(error)) from None


class Intake:
    """A budget of bytes that limits each holder to a share.

    Args:
        total: The bytes of all holders.
        share: Maximum bytes of one holder at a time, at least as large as any single reservation.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = max(total, share), share
        self._reserved_bytes = 0
        self._bytes_by_holder: dict[object, int] = {}
        self._condition = threading.Condition()
        self.parsing_lock = threading.Lock()
        """Held while a large body is parsed, which briefly takes several times its size."""

    @property
    def reserved_bytes(self) -> int:
        """Number of reserved bytes."""
        with self._condition:
            return self._reserved_bytes

    @contextmanager
    def reserve(self, holder: object, size: int, seconds: float) -> Iterator[None]:
        """Reserve bytes while the block runs.

        Args:
            holder: The holder whose share they count against.
            size: Number of bytes.
            seconds: Maximum wait for them.

        Raises:
            Refusal: The bytes were not free in time.
        """
        deadline = time.monotonic() + seconds
        with self._condition:
            if not self._condition.wait_for(
                lambda: self._has_room(holder, size), deadline - time.monotonic()
            ):
                raise Refusal(503, "too many large requests are under way: try again later")
            self._reserved_bytes += size
            self._bytes_by_holder[holder] = self._bytes_by_holder.get(holder, 0) + size
        try:
            yield
        finally:
            with self._condition:
                self._reserved_bytes -= size
                self._bytes_by_holder[holder] -= size
                if not self._bytes_by_holder[holder]:
                    del self._bytes_by_holder[holder]
                self._condition.notify_all()

    def _has_room(self, holder: object, size: int) -> bool:
        is_within_share = self._bytes_by_holder.get(holder, 0) + size <= self._share
        return is_within_share and self._reserved_bytes + size <= self._total
