"""HTTP connections of a server, with request bodies, which the package websockets does not read.

websockets parses only GET requests without a body. `RequestConnection` reads the body of any other
request itself, and passes the request on to websockets as a GET without body. Until a request has
shown the valid token, its connection counts against a small quota, and may exist only for a short
time: see `intercode.connection_admission`.
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

from intercode.connection_admission import ConnectionQueue
from intercode_integrations.serve import messages

MAX_HEAD_BYTES = 32 * 1024
MAX_BODY_BYTES = 64 * 1024


class RequestConnection(ServerConnection):
    """A connection that accepts requests of any HTTP method."""

    def __init__(self, *args: Any, admission: ConnectionQueue, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._admission = admission
        self.method = "GET"
        self.body: bytes | None = b""
        """The body of the request; None if the body is too long, or its length is unknown."""
        self._early_data: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the new connection into the quota of pending connections."""

        def drop() -> None:
            with suppress(RuntimeError):  # the event loop may have ended
                self.loop.call_soon_threadsafe(self.transport.abort)

        super().connection_made(transport)
        self._admission.enter(self, transport.get_extra_info("socket"), drop)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the ended connection from the quota of pending connections."""
        self.admit()
        super().connection_lost(exc)

    def admit(self) -> None:
        """Stop counting the connection against the quota of pending connections.

        The server calls this method for a request that passes the token check.
        """
        self._admission.leave(self)

    def data_received(self, data: bytes) -> None:
        """Collect the head and the body of a request, and pass a GET on to websockets.

        A GET is passed on unchanged, and any other method as a GET without body.
        """
        if self._early_data is None:
            super().data_received(data)
            return
        self._early_data += data
        head, separator, body = self._early_data.partition(b"\r\n\r\n")
        if not separator and len(head) <= MAX_HEAD_BYTES:
            return
        method, _, target_and_headers = head.partition(b" ")
        if not separator or method == b"GET":
            self._forward(self._early_data)
            return
        request_line, *field_lines = target_and_headers.split(b"\r\n")
        header_fields = [(field.partition(b":")[0].strip().lower(), field) for field in field_lines]
        body_length = _length([field for name, field in header_fields if name in _BODY_FIELDS])
        if body_length is None:
            self.body = None
        elif len(body) < body_length:
            return
        else:
            self.body = body[:body_length]
        self.method = method.decode("latin-1")
        header_lines = [field for name, field in header_fields if name not in _BODY_FIELDS]
        self._forward(b"GET " + b"\r\n".join([request_line, *header_lines]) + b"\r\n\r\n")

    def _forward(self, data: bytes) -> None:
        self._early_data = None
        super().data_received(data)


_BODY_FIELDS = (b"content-length", b"transfer-encoding")
_LENGTH = re.compile(rb"content-length[ \t]*:[ \t]*(\d{1,9})[ \t]*", re.IGNORECASE)


def _length(fields: list[bytes]) -> int | None:
    """Return the length of a body by the header fields about it; None: the body is not read."""
    if not fields:
        return 0
    match = _LENGTH.fullmatch(fields[0])
    length = None if match is None or len(fields) > 1 else int(match[1])
    return None if length is None or length > MAX_BODY_BYTES else length


def response(status: HTTPStatus, body: bytes, content_type: str = "application/json") -> Response:
    """Return a response that closes its connection.

    Args:
        status: The HTTP status.
        body: The body.
        content_type: The content type.
    """
    headers = Headers(
        [
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
    )
    return Response(status.value, status.phrase, headers, body)


def refusal(status: HTTPStatus, reason: str, **facts: str) -> Response:
    """Return a JSON response with the reason of a refusal, and further facts."""
    return response(status, messages.json({"detail": reason, **facts}))
