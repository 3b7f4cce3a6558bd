"""HTTP requests beyond WebSocket handshakes, the only requests that websockets itself reads.

`RequestConnection` reads the body of a request, and passes the request on as a GET without body.
Until a request has shown the token, its connection counts against a small quota, and for a short
time only: see `intercode.admission`.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Response

from intercode.admission import Admission
from intercode_integrations.serve import wire

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 64 * 1024


class RequestConnection(ServerConnection):
    """A connection that accepts requests of any method."""

    def __init__(self, *args: Any, admission: Admission, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._admission = admission
        self.method = "GET"
        self.body: bytes | None = b""
        """Body of the request; None: it is too long, or of unknown length."""
        self._early_data: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the connection for admission."""

        def drop() -> None:
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self.transport.abort)

        super().connection_made(transport)
        self._admission.enter(self, transport.get_extra_info("socket"), drop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Withdraw the connection from admission."""
        self.admit()
        super().connection_lost(exc)

    def admit(self) -> None:
        """Admit the connection after a request with the valid token."""
        self._admission.leave(self)

    def data_received(self, data: bytes) -> None:
        """Pass on received data after it is known to be a GET, or converted into a GET."""
        if self._early_data is None:
            super().data_received(data)
            return
        self._early_data += data
        head, end, body = self._early_data.partition(b"\r\n\r\n")
        if not end and len(head) <= MAX_HEAD_BYTES:
            return
        method, _, target_and_headers = head.partition(b" ")
        if not end or method == b"GET":
            self._forward(self._early_data)
            return
        line, *lines = target_and_headers.split(b"\r\n")
        fields = [(field.partition(b":")[0].strip().lower(), field) for field in lines]
        length = _length([field for name, field in fields if name in _BODY_FIELDS])
        if length is None:
            self.body = None
        elif len(body) < length:
            return
        else:
            self.body = body[:length]
        self.method = method.decode("latin-1")
        header_lines = [field for name, field in fields if name not in _BODY_FIELDS]
        self._forward(b"GET " + b"\r\n".join([line, *header_lines]) + b"\r\n\r\n")

    def _forward(self, data: bytes) -> None:
        self._early_data = None
        super().data_received(data)


_BODY_FIELDS = (b"content-length", b"transfer-encoding")
_LENGTH = re.compile(rb"content-length[ \t]*:[ \t]*(\d{1,9})[ \t]*", re.IGNORECASE)


def _length(fields: list[bytes]) -> int | None:
    """Return the body length from header fields; None: the body is not read."""
    if not fields:
        return 0
    match = _LENGTH.fullmatch(fields[0])
    length = None if match is None or len(fields) > 1 else int(match[1])
    return None if length is None or length > MAX_BODY_BYTES else length


def response(status: HTTPStatus, body: bytes, kind: str = "application/json") -> Response:
    """Make a response."""
    headers = Headers(
        [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
    )
    return Response(status.value, status.phrase, headers, body)


def refusal(status: HTTPStatus, reason: str, **facts: str) -> Response:
    """Make a response with the reason of a refusal."""
    return response(status, wire.json({"detail": reason, **facts}))
