"""The gateway's HTTP server: requests parsed by h11, within limits of size and time, and responses.

The library h11 handles malformed input, chunked bodies, pipelined requests and HTTP/1.0 according
to the standard. This module adds the limits: bytes of a head and of a body, and seconds for a whole
request.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11

from intercode.models.api_fields import ERRORS
from intercode_integrations.gateway.policy import GatewayPolicy, GatewayRefusal

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 32 * 1024
_CHUNK = 65_536
_FRAGMENT = 1024
_MAX_FRAGMENTS = 10_000
"""Maximum number of body parts shorter than `_FRAGMENT` bytes: h11 needs 20 µs for each part."""
_LINGER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body. The names in `headers` are in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header; the name's case does not matter."""
        return [value for name, value in self.headers if name == key.lower()]

    @property
    def length(self) -> int | None:
        """The value of ``Content-Length``, which h11 has validated; None without this header."""
        values = self.get_all("content-length")
        return int(values[0]) if values else None


class ClientDisconnect(Exception):  # noqa: N818 - clients may leave
    """The client closed the connection, or was too slow."""


class ClientConnection:
    """One HTTP connection of a client, for one or several requests.

    Args:
        connection: The socket. The caller closes it.
        policy: The limits of sizes and times.
        on_admission: The function that `handle` calls when a request has shown the valid token.
    """

    def __init__(
        self,
        connection: socket.socket,
        policy: GatewayPolicy,
        on_admission: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket, self._policy, self.on_admission = connection, policy, on_admission
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._deadline = 0.0
        self._bodiless = False
        self._send_buffer = b""
        self.status = 0
        """HTTP status of the current response; 0 if the response has not started."""

    def serve(self, handle: Callable[[RequestHead, ClientConnection], None]) -> None:
        """Read and handle requests until the client or an error ends the connection.

        Args:
            handle: A function that answers a request, and may read its body first.
        """
        try:
            while (request := self._read_head()) is not None:
                self.status = 0
                try:
                    handle(request, self)
                except GatewayRefusal as refusal:
                    if self.status:
                        return
                    self.refuse(refusal)
                if not self._start_next_cycle():
                    return
        except ClientDisconnect:
            return
        except h11.RemoteProtocolError as error:
            if not self.status and self._http.our_state is h11.IDLE:
                self._refuse_malformed(error.error_status_hint)
        except h11.LocalProtocolError:
            return  # the response is incomplete; the closed connection shows that to the client
        finally:
            if self.status and self._http.their_state is not h11.DONE:
                self._linger()

    def body(
        self, max_bytes: int = 0, *, free_bytes: int = 0, reserve: Callable[[], None] = lambda: None
    ) -> bytes:
        """Read the body of the request.

        Args:
            max_bytes: Maximum bytes of the body.
            free_bytes: The bytes that are read before `reserve` is called.
            reserve: A function that waits until memory for a longer body is reserved.

        Raises:
            ClientDisconnect: The client closed the connection, or was too slow.
            Refusal: The body is too long, or consists of too many small parts.
        """
        content, fragment_count = bytearray(), 0
        self._deadline = time.monotonic() + self._policy.patience
        while True:
            event = self._read_event()
            if isinstance(event, h11.EndOfMessage):
                return bytes(content)
            if not isinstance(event, h11.Data):
                raise ClientDisconnect
            if len(content) <= free_bytes < len(content) + len(event.data):
                reserve()
                self._deadline = time.monotonic() + self._policy.patience
            content += event.data
            fragment_count += len(event.data) < _FRAGMENT
            if len(content) > max_bytes:
                raise GatewayRefusal(413, f"the body is longer than {max_bytes} bytes")
            if fragment_count > _MAX_FRAGMENTS:
                raise GatewayRefusal(413, "the body is in too many small parts: send longer chunks")

    def refuse(self, refusal: GatewayRefusal) -> None:
        """Send an error response for a refused request."""
        log.info("refused with status %d: %s", refusal.status, refusal)
        body = b"" if self._bodiless else error_body(refusal.status, str(refusal))
        self.answer(refusal.status, body, [("x-should-retry", "false")])

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole response. The body is JSON unless `headers` has a ``content-type``."""
        response_headers = list(headers)
        if not any(header_name == "content-type" for header_name, _ in response_headers):
            response_headers.append(("content-type", "application/json"))
        self.begin(status, [*response_headers, ("content-length", str(len(body)))])
        self.send_data(body)
        self.end()

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Start a response. The head is sent together with the first part of the body."""
        self.status = status
        response_headers = [
            *headers,
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]
        self._send(h11.Response(status_code=status, headers=response_headers), has_more=True)

    def send_data(self, data: bytes) -> None:
        """Send a part of a response's body; the first call also sends the head."""
        if data:
            self._send(h11.Data(data=data))

    def end(self) -> None:
        """End the response's body."""
        self._send(h11.EndOfMessage())

    def _read_head(self) -> RequestHead | None:
        """Wait for the next request, and return its head; None if the client sends no more."""
        self._deadline = 0.0
        event = self._read_event()
        if not isinstance(event, h11.Request):
            return None
        self._bodiless = event.method == b"HEAD"
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers
        )
        return RequestHead(event.method.decode(), event.target.decode("latin-1"), headers)

    def _read_event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            wait_seconds = (
                self._deadline - time.monotonic() if self._deadline else self._policy.idle
            )
            if wait_seconds <= 0:
                raise ClientDisconnect
            try:
                self._socket.settimeout(wait_seconds)
                data = self._socket.recv(_CHUNK)
            except OSError:
                raise ClientDisconnect from None
            if not self._deadline:
                self._deadline = time.monotonic() + self._policy.patience
            self._http.receive_data(data)
        return event

    def _start_next_cycle(self) -> bool:
        """Prepare the connection for another request; return False if the connection must end."""
        # If the response was sent before the end of the request's body, the rest stays unread.
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def _send(self, event: Any, *, has_more: bool = False) -> None:
        self._send_buffer += self._http.send(event) or b""
        if self._send_buffer and not has_more:
            data, self._send_buffer = self._send_buffer, b""
            try:
                self._socket.settimeout(self._policy.patience)
                self._socket.sendall(data)
            except OSError:
                raise ClientDisconnect from None

    def _linger(self) -> None:
        """Discard input that still arrives, for up to `_LINGER_SECONDS`.

        If the gateway closed the socket with unread input, the kernel would reset the connection,
        and the client could lose the response.
        """
        deadline, remaining_bytes = time.monotonic() + _LINGER_SECONDS, self._policy.max_body
        with suppress(OSError):  # the connection may have already ended
            self._socket.shutdown(socket.SHUT_WR)
            while remaining_bytes > 0 and (wait_seconds := deadline - time.monotonic()) > 0:
                self._socket.settimeout(wait_seconds)
                if not (data := self._socket.recv(_CHUNK)):
                    return
                remaining_bytes -= len(data)

    def _refuse_malformed(self, status: int) -> None:
        body = error_body(status, "not a request of HTTP that can be read")
        self.answer(status, body, [("connection", "close")])


def error_body(status: int, message: str) -> bytes:
    """Return the JSON body of an error response, which clients of all three protocols can read."""
    error_type = ERRORS.get(status, "api_error")
    error = {"type": error_type, "message": message, "code": error_type, "param": None}
    return json.dumps({"type": "error", "error": error}).encode()
