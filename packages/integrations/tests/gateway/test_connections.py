"""Connections to the server of a model: kept, replaced once it has ended them, led by a proxy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from forks import in_a_fork
from intercode.errors import UsageError
from intercode.models.base import AttemptError
from intercode.models.upstream import Upstream
from intercode_integrations.gateway.upstream_connections import UpstreamConnectionPool

KEY = "sk-the-real-key"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\nok"
SILENT = b""
"""The connection is ended in place of an answer."""


class Server:
    """Gives each connection its answers, a request each, and ends it after the last one."""

    def __init__(self, *connections: list[bytes]) -> None:
        self._plan = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.heads: list[bytes] = []
        self._ended = [threading.Event() for _ in connections]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        threads = []
        for number in range(len(self._plan)):
            connection, _ = self._listener.accept()
            threads.append(threading.Thread(target=self._answer, args=(number, connection)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _answer(self, number: int, connection: socket.socket) -> None:
        with connection:
            for answer in self._plan[number]:
                head = b""
                while b"\r\n\r\n" not in head and (data := connection.recv(65536)):
                    head += data
                if not head:
                    break  # it was ended here
                self.heads.append(head)
                connection.sendall(answer)
        self._ended[number].set()

    def has_ended(self, number: int) -> None:
        """Wait until it has ended a connection."""
        assert self._ended[number].wait(30)

    def close(self) -> None:
        self._thread.join(30)
        self._listener.close()
        assert not self._thread.is_alive()


@contextmanager
def serving(*connections: list[bytes], url: str = "") -> Iterator[tuple[Server, Callable[[], str]]]:
    """A server, and a function that asks it once."""
    with closing(Server(*connections)) as server:
        upstream = Upstream("openai-compatible", "any", url or server.url, KEY)
        with closing(UpstreamConnectionPool(upstream)) as kept:

            def ask() -> str:
                with closing(kept.open("POST", "/v1/x", b"{}", {}, 30.0)) as answer:
                    return f"{answer.status} {answer.read(100).decode()}"

            yield server, ask


@pytest.mark.parametrize("answer", [OK, CHUNKED])
def test_a_connection_is_used_again(answer: bytes) -> None:
    with serving([answer] * 3) as (server, ask):
        assert [ask() for _ in range(3)] == ["200 ok"] * 3
    assert all(KEY.encode() in head for head in server.heads)


@pytest.mark.parametrize("first", [[TO_THE_END], [OK]])
def test_one_that_the_server_has_ended_is_replaced(first: list[bytes]) -> None:
    with serving(first, [OK]) as (server, ask):
        assert ask() == "200 ok"
        server.has_ended(0)
        assert ask() == "200 ok"


def test_one_that_is_ended_as_it_is_used_again_fails_once() -> None:
    """A call may have been paid: whether it is tried again, our callers decide."""
    with serving([OK, SILENT], [OK]) as (_, ask):
        assert ask() == "200 ok"
        with pytest.raises(AttemptError, match="broke") as caught:
            ask()
        assert caught.value.charged and not caught.value.unreachable
        assert ask() == "200 ok"


@pytest.mark.parametrize("cut", [OK[:-1], CHUNKED[:-8]])
def test_an_answer_that_is_cut_off_is_none(cut: bytes) -> None:
    with serving([cut], [OK]) as (_, ask):
        with pytest.raises(AttemptError, match="response was cut off"):
            ask()
        assert ask() == "200 ok"


def test_one_whose_answer_was_not_read_is_ended() -> None:
    with closing(Server([OK[:-1], b"the rest of it"], [OK])) as server:
        upstream = Upstream("openai-compatible", "any", server.url)
        with closing(UpstreamConnectionPool(upstream)) as kept:
            kept.open("GET", "/v1/x", b"", {}, 30.0).close()
            server.has_ended(0)
            with closing(kept.open("GET", "/v1/x", b"", {}, 30.0)) as answer:
                assert answer.read(100) == b"ok"


@pytest.mark.parametrize("key", ["sk-\u00e9", "sk-a\nX-Other: b"])
def test_a_key_that_no_header_can_have_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="are not valid in a header"):
        Upstream("openai-compatible", "any", "http://127.0.0.1:1/v1", key)


def test_a_fork_has_connections_of_its_own() -> None:
    with serving([OK, OK], [OK]) as (_, ask):
        assert ask() == "200 ok"
        assert in_a_fork(ask) == "done"
        assert ask() == "200 ok"


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with closing(Server([OK], [b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"])) as proxy:
        for scheme in ("http", "https"):
            at = f"http://me:se%63ret@127.0.0.1:{proxy.port}"
            monkeypatch.setenv(f"{scheme}_proxy", at)
        for url in ("http://model.example/v1", "https://model.example/v1"):
            upstream = Upstream("openai-compatible", "any", url, KEY)
            with closing(UpstreamConnectionPool(upstream)) as kept:
                if url.startswith("http:"):
                    with closing(kept.open("POST", "/v1/x", b"{}", {}, 30.0)) as answer:
                        assert answer.read(100) == b"ok"
                else:
                    with pytest.raises(AttemptError, match="status 407"):
                        kept.open("POST", "/v1/x", b"{}", {}, 30.0)
    plain, tunnel = proxy.heads
    assert plain.startswith(b"POST http://model.example/v1/x HTTP/1.1\r\n")
    assert tunnel.startswith(b"CONNECT model.example:443 HTTP/1.1\r\n")
    assert all(b"Basic bWU6c2VjcmV0" in head for head in proxy.heads)
    assert KEY.encode() not in tunnel
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving([OK]) as (_, ask):
        assert ask() == "200 ok"
