"""HTTP at the gate: requests read within limits of size and time, by h11, and answers to them.

h11 reads garbage, chunked bodies, several requests sent at once, and HTTP/1.0 as the standard says;
here are the limits: bytes of a head and of a body, and seconds for the whole of a request.
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

from intercode.models.protocols import ERRORS
from intercode_integrations.gateway.policy import Refusal, Terms

log = logging.getLogger(__name__)

LONGEST_HEAD = 32 * 1024
_CHUNK = 65_536
_FRAGMENT = 1024
_MAX_FRAGMENTS = 10_000
"""Parts of a body that are shorter than a fragment: each chunk costs h11 20 microseconds."""
_LINGER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its body. `headers` has names in lower case."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header."""
        return [value for name, value in self.headers if name == key.lower()]

    @property
    def length(self) -> int | None:
        """The length of the body, which h11 has checked; None: its end will tell."""
        values = self.get_all("content-length")
        return int(values[0]) if values else None


class Gone(Exception):  # noqa: N818 - clients may leave
    """The client has left, or was too slow."""


class Door:
    """One connection of a client.

    Args:
        connection: The socket. It stays the caller's.
        terms: Sizes and times.
        admit: To be called once a request has brought the token.
    """

    def __init__(
        self,
        connection: socket.socket,
        terms: Terms,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket, self._terms, self.admit = connection, terms, admit
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=LONGEST_HEAD)
        self._deadline = 0.0
        self._bodiless = False
        self._unsent = b""
        self.status = 0
        """The status of the present answer; 0: there is none yet."""

    def serve(self, handle: Callable[[Asked, Door], None]) -> None:
        """Read requests, and have each handled, until the client or an error ends it.

        Args:
            handle: Answers a request; it may read its body first.
        """
        try:
            while (asked := self._head()) is not None:
                self.status = 0
                try:
                    handle(asked, self)
                except Refusal as refusal:
                    if self.status:
                        return
                    self.refuse(refusal)
                if not self._again():
                    return
        except Gone:
            return
        except h11.RemoteProtocolError as error:
            if not self.status and self._http.our_state is h11.IDLE:
                self._last(error.error_status_hint)
        except h11.LocalProtocolError:
            return  # the answer could not be completed: the connection's end says so
        finally:
            if self.status and self._http.their_state is not h11.DONE:
                self._linger()

    def body(
        self, limit: int = 0, *, free: int = 0, reserve: Callable[[], None] = lambda: None
    ) -> bytes:
        """Read the body of the request.

        Args:
            limit: The bytes that it may have.
            free: The bytes that are read before `reserve` is called.
            reserve: Returns when there is room for more.

        Raises:
            Refusal: The body is too long, or in too many parts.
        """
        data, fragments = bytearray(), 0
        self._deadline = time.monotonic() + self._terms.patience
        while True:
            event = self._next()
            if isinstance(event, h11.EndOfMessage):
                return bytes(data)
            if not isinstance(event, h11.Data):
                raise Gone
            if len(data) <= free < len(data) + len(event.data):
                reserve()
                self._deadline = time.monotonic() + self._terms.patience
            data += event.data
            fragments += len(event.data) < _FRAGMENT
            if len(data) > limit:
                raise Refusal(413, f"the body is longer than {limit} bytes")
            if fragments > _MAX_FRAGMENTS:
                raise Refusal(413, "the body is in too many small parts: send longer chunks")

    def refuse(self, refusal: Refusal) -> None:
        """Answer that there is no answer."""
        log.info("refused with status %d: %s", refusal.status, refusal)
        body = b"" if self._bodiless else failure(refusal.status, str(refusal))
        self.answer(refusal.status, body, [("x-should-retry", "false")])

    def answer(self, status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a whole answer, of JSON unless its headers say otherwise."""
        given = list(headers)
        if not any(name == "content-type" for name, _ in given):
            given.append(("content-type", "application/json"))
        self.begin(status, [*given, ("content-length", str(len(body)))])
        self.more(body)
        self.end()

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Begin an answer."""
        self.status = status
        kept = [*headers, ("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
        self._send(h11.Response(status_code=status, headers=kept), more=True)

    def more(self, data: bytes) -> None:
        """Send a part of an answer's body, the first one with the head."""
        if data:
            self._send(h11.Data(data=data))

    def end(self) -> None:
        """End an answer."""
        self._send(h11.EndOfMessage())

    def _head(self) -> Asked | None:
        """Wait for a request; read its head."""
        self._deadline = 0.0
        event = self._next()
        if not isinstance(event, h11.Request):
            return None
        self._bodiless = event.method == b"HEAD"
        headers = tuple((name.decode("latin-1"), v.decode("latin-1")) for name, v in event.headers)
        return Asked(event.method.decode(), event.target.decode("latin-1"), headers)

    def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            wait = self._deadline - time.monotonic() if self._deadline else self._terms.idle
            if wait <= 0:
                raise Gone
            try:
                self._socket.settimeout(wait)
                data = self._socket.recv(_CHUNK)
            except OSError:
                raise Gone from None
            if not self._deadline:
                self._deadline = time.monotonic() + self._terms.patience
            self._http.receive_data(data)
        return event

    def _again(self) -> bool:
        """Make ready for another request; False: the connection is to end."""
        # An answer that came before the body's end ends the connection: the rest is not read.
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def _send(self, event: Any, *, more: bool = False) -> None:
        self._unsent += self._http.send(event) or b""
        if self._unsent and not more:
            data, self._unsent = self._unsent, b""
            try:
                self._socket.settimeout(self._terms.patience)
                self._socket.sendall(data)
            except OSError:
                raise Gone from None

    def _linger(self) -> None:
        """Drop what still comes: a connection closed before is reset, and its answer lost."""
        end, left = time.monotonic() + _LINGER_SECONDS, self._terms.max_body
        with suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_WR)
            while left > 0 and (wait := end - time.monotonic()) > 0:
                self._socket.settimeout(wait)
                if not (data := self._socket.recv(_CHUNK)):
                    return
                left -= len(data)

    def _last(self, status: int) -> None:
        body = failure(status, "not a request of HTTP that can be read")
        self.answer(status, body, [("connection", "close")])


def failure(status: int, why: str) -> bytes:
    """Return an error's body, which clients of each protocol can read."""
    kind = ERRORS.get(status, "api_error")
    error = {"type": kind, "message": why, "code": kind, "param": None}
    return json.dumps({"type": "error", "error": error}).encode()
