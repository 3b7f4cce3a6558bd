"""A web server of the tests' own, which can do what real ones do."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Place:
    """Where one file is served, and how."""

    content: bytes
    ranges: bool = True
    """Whether a part of the file can be asked for."""
    tag: str | None = '"one"'
    length: bool = True
    """Whether the size is told."""
    kind: str = "application/zip"
    breaks: list[int] = field(default_factory=list)
    """For each request in turn, after how many bytes the connection breaks."""
    answers: list[int] = field(default_factory=list)
    """For each request in turn, a status to answer with instead of the file."""
    asked: list[str] = field(default_factory=list)
    """The range that each request asked for, or an empty text."""
    sent: int = 0
    url: str = ""


@contextmanager
def serve(place: Place) -> Iterator[Place]:
    """Serve a file while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            place.asked.append(wanted)
            if place.answers:
                self.send_error(place.answers.pop(0))
                return
            first = int(match[1]) if (match := re.match(r"bytes=(\d+)-", wanted)) else 0
            partial = bool(match) and place.ranges and self.headers["If-Range"] == place.tag
            if partial and first >= len(place.content):
                self.send_error(416)
                return
            body = place.content[first:] if partial else place.content
            self.send_response(206 if partial else 200)
            self.send_header("Content-Type", place.kind)
            if place.tag:
                self.send_header("ETag", place.tag)
            if partial:
                last = len(place.content) - 1
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(place.content)}")
            if place.length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if place.breaks:
                body = body[: place.breaks.pop(0)]
            self.wfile.write(body)
            place.sent += len(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # closing waits for them: `sent` is then all that was sent
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    place.url = f"http://127.0.0.1:{server.server_port}/archive.zip"
    try:
        yield place
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
