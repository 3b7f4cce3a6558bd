"""Intake: a limit on the bytes of large requests that a gateway holds in memory at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intercode.errors import UsageError
from intercode.json_limits import MAX_TOKENS, count_tokens
from intercode_integrations.gateway.policy import GatewayRefusal

FREE_BODY_BYTES = 1024**2
"""Maximum bytes of a body that needs no reservation. Small bodies therefore never wait for large
ones. A dialogue of a million bytes fills most models' context."""
MAX_TOTAL_BYTES = 128 * 1024**2
"""Total bytes of all larger bodies at a time: four of the largest that providers accept."""
_EMBEDDED = ("arguments", "input")
"""Fields of tool calls whose text is itself JSON, which the gateway parses, too."""


def check_tokens(body: bytes) -> int:
    """Count the JSON tokens of a body; return how many more its embedded JSON may have.

    Embedded JSON is a text within the body that is itself parsed: the arguments of a tool call. A
    token is a unit of JSON syntax, not of a model.

    Raises:
        Refusal: The body has more than `MAX_TOKENS` tokens, or they nest too deep.
    """
    try:
        return MAX_TOKENS - count_tokens(body)
    except UsageError as error:
        raise GatewayRefusal(413, str(error)) from None


def check_embedded_tokens(data: Mapping[str, Any], remaining_tokens: int) -> None:
    """Count the JSON tokens of embedded JSON: the arguments of a request's tool calls.

    Args:
        data: The parsed body of the request.
        remaining_tokens: The maximum number of tokens.

    Raises:
        Refusal: The arguments have more tokens, or the tokens nest too deep.
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
                        raise GatewayRefusal(413, str(error)) from None


class SharedByteQuota:
    """A quota of bytes that holders share, with a maximum for each holder.

    Args:
        total_bytes: The maximum number of bytes of all holders together.
        share_bytes: The maximum number of bytes of one holder at a time. No single reservation may
            be larger.
    """

    def __init__(self, total_bytes: int, share_bytes: int) -> None:
        self._total, self._share = max(total_bytes, share_bytes), share_bytes
        self._reserved_bytes = 0
        self._bytes_by_holder: dict[object, int] = {}
        self._condition = threading.Condition()
        self.parsing_lock = threading.Lock()
        """Lock for parsing a large body, which briefly takes several times its size in memory."""

    @property
    def reserved_bytes(self) -> int:
        """The number of bytes that all holders have reserved now."""
        with self._condition:
            return self._reserved_bytes

    @contextmanager
    def reserve(self, holder: object, size: int, seconds: float) -> Iterator[None]:
        """Reserve bytes while the block runs; wait until they are free.

        Args:
            holder: The object against whose share the bytes count.
            size: Number of bytes.
            seconds: Maximum seconds to wait.

        Raises:
            Refusal: The bytes were not free in time.
        """
        deadline = time.monotonic() + seconds
        with self._condition:
            if not self._condition.wait_for(
                lambda: self._has_room(holder, size), deadline - time.monotonic()
            ):
                raise GatewayRefusal(503, "too many large requests are under way: try again later")
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
