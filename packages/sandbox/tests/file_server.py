"""A web server of the tests' own, which can do what real ones do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Place:
    """Where one file is served, and how."""

    content: bytes
    length: bool = True
    """Whether the size is told."""
    kind: str = "application/zip"
    breaks: list[int] = field(default_factory=list)
    """For each request in turn, after how many bytes the connection breaks."""
    answers: list[int] = field(default_factory=list)
    """For each request in turn, a status to answer with instead of the file."""
    asked: int = 0
    """The number of requests."""
    ranges: list[str] = field(default_factory=list)
    """The ranges that were asked for."""
    has_ranges: bool = True
    """Whether a range is answered by that part of the file."""
    url: str = ""


@contextmanager
def serve(place: Place) -> Iterator[Place]:
    """Serve a file while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place.asked += 1
            if place.answers:
                self.send_error(place.answers.pop(0))
                return
            body, status = place.content, 200
            if wanted := self.headers.get("Range"):
                place.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if place.has_ranges and start >= len(body):
                    self.send_error(416)
                    return
                if place.has_ranges:
                    body, status = body[start:], 206
            self.send_response(status)
            self.send_header("Content-Type", place.kind)
            if place.length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if place.breaks:
                body = body[: place.breaks.pop(0)]
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    place.url = f"http://127.0.0.1:{server.server_port}/archive.zip"
    try:
        yield place
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
