"""What a client gives to a server: a token, and options that are not the server's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import intercode
from intercode import SandboxError, UsageError
from intercode_integrations.openenv import OpenEnvEnv
from serve.served import Served, serving

SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving("bash", "--token", SECRET) as server:
        yield server


def test_a_token_may_come_with_the_end_of_its_line(guarded: Served) -> None:
    intercode.connect(guarded.url, token=f"{SECRET}\n").close()


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Other: 1", f"{SECRET}\0", "Schlüssel"])
def test_a_token_that_no_header_can_have_is_refused_and_not_told(
    guarded: Served, token: str
) -> None:
    with pytest.raises(UsageError, match="characters that are not valid in a header") as refused:
        intercode.connect(guarded.url, token=token)
    assert token not in str(refused.value)


def test_a_wrong_token_is_told_from_none(guarded: Served) -> None:
    with pytest.raises(UsageError, match="a token is needed"):
        intercode.connect(guarded.url)
    with pytest.raises(UsageError, match="the token that was sent is not the right one"):
        intercode.connect(guarded.url, token="another")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 300),
        ("memory", "512M"),
        ("limits", {"disk": "1G"}),
        ("sandbox", "docker"),
        ("max_turns", 3),
        ("reward_every_turn", True),
    ],
)
def test_what_the_server_decides_is_refused(guarded: Served, name: str, value: Any) -> None:
    told = "disk" if name == "limits" else name
    with pytest.raises(UsageError, match=f"{told!r} is decided by the server or framework"):
        intercode.connect(guarded.url, token=SECRET, **{name: value})


class Page(BaseHTTPRequestHandler):
    """Answers every request with its server's status and body."""

    def do_GET(self) -> None:
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"<!doctype html><title>Not here</title>", UsageError),
        (404, b"<html>\n" * 99, UsageError),
        (400, b"line\nline", UsageError),
        (400, b"\x00\xff\x80", UsageError),
        (301, b"<html>moved</html>", UsageError),
        (401, b"<html>who are you?</html>", UsageError),
        (502, b"<html>\nBad Gateway\n</html>", SandboxError),
        (200, b"<html>welcome</html>", UsageError),
        (200, b"\xff", UsageError),
        (200, b'{"hello": "world"}', UsageError),
        (200, b"[]", UsageError),
        (200, b"[1]", UsageError),
    ],
)
def test_another_server_is_told_in_one_line(status: int, body: bytes, kind: type) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as page:
        page.answer = (status, body)  # type: ignore[attr-defined]
        threading.Thread(target=page.serve_forever, daemon=True).start()
        try:
            with pytest.raises(kind, match="no InterCode server answers there") as refused:
                intercode.connect(f"http://127.0.0.1:{page.server_port}/bash")
        finally:
            page.shutdown()
    assert str(refused.value).isprintable() and "html" not in str(refused.value)


def test_turns_are_counted_here_where_the_other_side_counts_none(server: Served) -> None:
    data = OpenEnvEnv.tasks(server.url)
    OpenEnvEnv(data, max_turns=3, reward_every_turn=True).close()
    with pytest.raises(UsageError, match="'memory', 'timeout' are decided"):
        OpenEnvEnv(data, timeout=300, memory="1G")
