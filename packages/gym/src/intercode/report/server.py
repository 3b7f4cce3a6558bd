"""The HTTP server of ``intercode view``, which serves a page and the data of runs to browsers.

The server listens only on the loopback address of this machine. The path of each address begins
with a secret token. `intercode.request_guard` checks the host and the origin of each request.
Therefore no page of another site, and no other user of this machine, can read a run.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException, LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any
from urllib.parse import parse_qs

from intercode.connection_admission import ConnectionQueue
from intercode.errors import RecordError
from intercode.report.live_runs import ViewerRuns
from intercode.report.viewer_episodes import columns
from intercode.report.viewer_page import page, policy
from intercode.request_guard import RequestGuard

LOOPBACK = "127.0.0.1"
_PAUSE = 1.0
"""The seconds between two checks of the run folders for new episodes."""
_KEEPALIVE_PERIOD = 10
"""The number of checks without new data after which the server sends a keepalive message. The
message fails if the browser has disconnected."""
_ROWS = 2000
"""The maximum number of rows in a message to the browser."""
_MAX_PAGES = 32
"""The maximum number of open pages that receive updates."""
_MAX_HEAD_BYTES = 32 * 1024


class RunViewerServer:
    """A server of runs for browsers on this machine.

    Args:
        library: The runs.
        port: The TCP port; 0: any free port.
        admission: The queue of connections whose browser has not sent the token yet; None: a queue
            with the default limits.

    Attributes:
        url: The page's address, with its token.
    """

    def __init__(
        self, library: ViewerRuns, port: int = 0, admission: ConnectionQueue | None = None
    ) -> None:
        self.library = library
        self.admission = admission or ConnectionQueue()
        self.token = secrets.token_urlsafe(24)
        self.guard = RequestGuard()
        self.page = page("runs", None, {}, socket.gethostname()).encode()
        self.close_event = threading.Event()
        self.pages = threading.BoundedSemaphore(_MAX_PAGES)
        self._server = _ViewerHttpServer((LOOPBACK, port), _ViewerRequestHandler)
        self._server.viewer = self
        self.url = f"http://{LOOPBACK}:{self._server.server_port}/{self.token}/"

    def serve(self) -> None:
        """Serve until `close` is called."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Make `serve` return, and close the server. The method is idempotent.

        `serve` must have been called before; otherwise this method never returns.
        """
        self.close_event.set()
        self._server.shutdown()
        self._server.server_close()

    def news(self, generation: int, sent_count: int) -> Iterator[tuple[str, str] | None]:
        """Yield events for a page that a browser shows, until the server is closed.

        Args:
            generation: The generation (`ViewerRuns.generation`) of the rows that the page has.
            sent_count: The number of rows that the page has.

        Yields:
            An event: its name and its JSON data; or None after each check of the folders.
        """
        sent_runs: list[dict[str, str]] = []
        version = -1
        while not self.close_event.is_set():
            has_more = self.library.refresh()
            if generation != self.library.generation:
                generation, sent_count, sent_runs = self.library.generation, 0, []
                yield "reset", json.dumps(generation)
            if len(runs := self.library.runs()) != len(sent_runs):
                sent_runs = runs
                yield "runs", json.dumps(runs)
            while rows := self.library.rows[sent_count : sent_count + _ROWS]:
                batch = {"generation": generation, "from": sent_count, "columns": columns(rows)}
                sent_count += len(rows)
                yield "rows", json.dumps(batch, separators=(",", ":"))
            if not has_more and (versioned_report := self.library.overview())[0] != version:
                version, report = versioned_report
                yield "report", report
            yield None
            if not has_more:
                self.close_event.wait(_PAUSE)


class _ViewerHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    viewer: RunViewerServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error in a connection.

        Failures of the connection itself and malformed requests are not reported.
        """
        if not isinstance(sys.exc_info()[1], OSError | HTTPException):
            super().handle_error(request, client_address)


class _ViewerRequestHandler(BaseHTTPRequestHandler):
    """The handler of a browser's connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "intercode", ""
    timeout = 30.0
    server: _ViewerHttpServer
    _admit: Callable[[], None]

    def handle(self) -> None:
        """Serve the connection, which counts as pending until the browser sends the token."""
        with self.server.viewer.admission.pending_entry(self.connection) as self._admit:
            super().handle()

    def handle_one_request(self) -> None:
        """Read a request with a head of limited length, and reply."""
        connection_file, self.rfile = self.rfile, _RequestHeadReader(self.rfile)  # type: ignore[assignment]
        try:
            super().handle_one_request()
        finally:
            self.rfile = connection_file

    def do_GET(self) -> None:
        """Reply to a GET request."""
        viewer = self.server.viewer
        path, _, question = self.path.partition("?")
        token, *segments = path.removeprefix("/").split("/")
        is_known = hmac.compare_digest(token.encode(errors="replace"), viewer.token.encode())
        is_page = is_known and segments == [""]
        refusal = viewer.guard.refusal(
            _ViewerRequestHeaders(self), is_token_free=True, allows_links=is_page
        )
        if refusal is not None:
            self._answer(refusal[0], refusal[1].encode(), "text/plain")
            return
        if not is_known:
            self._answer(HTTPStatus.UNAUTHORIZED, b"the address has no valid token", "text/plain")
            return
        self._admit()
        query = {name: values[-1] for name, values in parse_qs(question).items()}
        body = None
        try:
            row_number, start, generation = (
                _natural(query, n) for n in ("at", "from", "generation")
            )
            if segments == ["episode"]:
                body = viewer.library.body(row_number)
            elif segments == ["saved"]:
                body = viewer.library.saved_page()
        except (ValueError, IndexError, OSError, RecordError):
            self._answer(HTTPStatus.BAD_REQUEST, b"there is no such episode", "text/plain")
            return
        match segments:
            case [""]:
                self._answer(HTTPStatus.OK, viewer.page, "text/html")
            case ["episode"]:
                self._answer(HTTPStatus.OK, _json(body), "application/json")
            case ["saved"]:
                self._answer(HTTPStatus.OK, str(body).encode(), "text/html")
            case ["search"]:
                self._search(query.get("words", ""), start)
            case ["events"]:
                self._events(generation, start)
            case _:
                self._answer(HTTPStatus.NOT_FOUND, b"there is no such page", "text/plain")

    def _search(self, words: str, start: int) -> None:
        """Send the numbers of the rows whose episodes contain some words, as lines of JSON.

        Every hundredth row is sent, too, so the page can show the progress of the search.
        """
        self._begin("application/x-ndjson")
        row_number = start - 1
        for row_number, is_match in (
            self.server.viewer.library.search(words, start) if words else ()
        ):
            if is_match or row_number % 100 == 0:
                self.wfile.write(f"{json.dumps([row_number, is_match])}\n".encode())
        self.wfile.write(f"{json.dumps([row_number, False])}\n".encode())

    def _events(self, generation: int, sent_count: int) -> None:
        """Send the events of `RunViewerServer.news` until the browser disconnects."""
        pages = self.server.viewer.pages
        if not pages.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many pages are open", "text/plain")
            return
        with suppress(OSError):
            try:
                self._begin("text/event-stream")
                idle_count = 0
                for event in self.server.viewer.news(generation, sent_count):
                    idle_count = 0 if event else idle_count + 1
                    if event:
                        self.wfile.write(f"event: {event[0]}\ndata: {event[1]}\n\n".encode())
                    elif idle_count % _KEEPALIVE_PERIOD == 0:
                        self.wfile.write(b": still here\n\n")
            finally:
                pages.release()

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self._headers(kind)
        self.wfile.write(body)

    def _begin(self, kind: str) -> None:
        """Start a response of unknown length, whose end is the end of the connection."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self.send_header("Connection", "close")
        self._headers(kind)

    def _headers(self, kind: str) -> None:
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": f"{policy(is_live=True)}; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Omit the access log, because the addresses in it contain the token."""


class _RequestHeadReader:
    """A reader of the lines in a request's head, with a limit on their total length."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._remainder = file, _MAX_HEAD_BYTES

    def readline(self, size: int) -> bytes:
        """Read a line.

        Raises:
            LineTooLong: The head is too long.
        """
        line = self._file.readline(min(size, self._remainder + 1))
        self._remainder -= len(line)
        if self._remainder < 0:
            raise LineTooLong("head")
        return line


class _ViewerRequestHeaders:
    """An adapter of a request's headers to `intercode.request_guard.RequestHeaders`."""

    def __init__(self, request: _ViewerRequestHandler) -> None:
        self._headers = request.headers

    def get_all(self, key: str) -> list[str]:
        """Return all values of a header."""
        return self._headers.get_all(key) or []


def _natural(query: dict[str, str], name: str) -> int:
    """Return a natural number from a query, or 0 if the query lacks it.

    Raises:
        ValueError: The value is not a natural number.
    """
    value = int(query.get(name, "0"))
    if value < 0:
        raise ValueError(name)
    return value


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode("ascii")
