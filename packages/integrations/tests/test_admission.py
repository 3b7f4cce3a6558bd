"""Connections without a token, at each server: they take nothing from those who have one."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from gateway.doors import BODIES, KEY, said
from intercode.connection_admission import ConnectionQueue
from intercode.models.scripted import Line, Rule, script
from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from intercode.request_guard import RequestGuard
from intercode_integrations.gateway import Gateway, Upstream
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.server import EnvironmentServer
from intercode_integrations.serve.server_processes import listen
from intercode_integrations.serve.session import SessionLimits
from intercode_integrations.testing import ScriptedServer
from intercode_sandbox.forwarding import Forward
from serve.served import say, serving
from waiting import PATIENCE, eventually

TOKEN = "a-token-of-the-tests"
LONG = 3600.0
"""Seconds that no test takes: what ends a connection then is another rule."""
SHORT = 0.2
CHAT = "/v1/chat/completions"


def ended(connection: socket.socket) -> bool:
    """Whether the other side ends it, whatever it says before."""
    connection.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        said(connection)
    return True


class Pair:
    """A connection that waits, and what became of it."""

    def __init__(self, admission: ConnectionQueue) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.dropped = threading.Event()
        admission.enter(self, self.theirs, self.dropped.set)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def test_the_oldest_silent_connection_leaves_for_a_new_one() -> None:
    admission = ConnectionQueue(2, LONG)
    with ExitStack() as stack:
        first, second, third, last = (
            stack.enter_context(closing(Pair(admission))) for _ in range(4)
        )
        assert [each.dropped.is_set() for each in (first, second, third, last)] == [
            *(True, True),
            *(False, False),
        ]
        third.ours.send(b"GET / HTTP/1.1\r\n")
        fifth = stack.enter_context(closing(Pair(admission)))
        assert last.dropped.is_set() and not third.dropped.is_set()
        fifth.ours.send(b"GET / HTTP/1.1\r\n")
        stack.enter_context(closing(Pair(admission)))
        assert third.dropped.is_set() and not fifth.dropped.is_set()
        assert admission.pending_count == 2


def test_who_is_admitted_is_dropped_neither_late_nor_early() -> None:
    admission = ConnectionQueue(1, SHORT)
    with ExitStack() as stack:
        admitted = stack.enter_context(closing(Pair(admission)))
        admission.leave(admitted)
        admission.leave(admitted)
        silent = stack.enter_context(closing(Pair(admission)))
        assert silent.dropped.wait(PATIENCE) and not admitted.dropped.is_set()
        assert admission.pending_count == 0
        later = stack.enter_context(closing(Pair(admission)))  # the thread that drops has ended
        assert later.dropped.wait(PATIENCE)


def test_pending_connections_take_a_part_of_the_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        admission = ConnectionQueue(seconds=LONG)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(Pair(admission)))
        assert admission.pending_count == 32


# -- the servers, each at a port of its own --------------------------------------------------------


@contextmanager
def gateway(admission: ConnectionQueue) -> Iterator[int]:
    with ScriptedServer(script([Rule(Line("Done."))]), key=KEY) as server:
        upstream = Upstream("openai-compatible", "any", server.url, KEY)
        with Gateway(upstream) as made, made.open_session(token=TOKEN) as seat:

            def serve(connection: socket.socket) -> None:
                with admission.pending_entry(connection) as admit:
                    seat.serve(connection, admit)

            listener = socket.socket()
            with closing(Forward(listener, 0, serve, 64)):
                yield listener.getsockname()[1]


@contextmanager
def viewer(admission: ConnectionQueue) -> Iterator[int]:
    made = RunViewerServer(ViewerRuns([]), admission=admission)
    made.token = TOKEN
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    yield int(made.url.split(":")[2].split("/")[0])
    made.close()
    thread.join(PATIENCE)


@contextmanager
def server(admission: ConnectionQueue) -> Iterator[int]:
    [listener] = listen("127.0.0.1", 0)
    made = EnvironmentServer(
        [ServedEnvironment("bash")],
        SessionLimits(drain=0.1),
        RequestGuard(TOKEN),
        ServerMetrics(),
        admission,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(made.run(listener, ()),))
    thread.start()
    yield listener.getsockname()[1]
    loop.call_soon_threadsafe(made.end)
    thread.join(PATIENCE)
    loop.close()


SERVERS = pytest.mark.parametrize("serves", [gateway, viewer, server])
Serves = Callable[[ConnectionQueue], AbstractContextManager[int]]
REQUESTS: dict[Any, tuple[str, str]] = {
    gateway: ("POST", CHAT),
    viewer: ("GET", "/{token}/"),
    server: ("GET", "/list_environments"),
}


def answered(serves: Serves, client: HTTPConnection, token: str = TOKEN) -> int:
    """The status of a request with a token."""
    method, path = REQUESTS[serves]
    body = json.dumps({"model": "any", **BODIES[CHAT]}) if method == "POST" else None
    headers = {"Authorization": f"Bearer {token}"}
    client.request(method, path.format(token=token), body, headers)
    response = client.getresponse()
    response.read()
    return response.status


def client_of(port: int) -> closing[HTTPConnection]:
    return closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE))


@SERVERS
@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTTP/1.1\r\nHost: loc", b"POST / HTTP/1.1\r\nHost: localhost\r\n", b"\r\n"],
)
def test_what_makes_no_whole_request_is_ended(serves: Serves, sent: bytes) -> None:
    with (
        serves(ConnectionQueue(8, SHORT)) as port,
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        one.sendall(sent)
        assert ended(one)


@SERVERS
def test_a_head_that_never_ends_is_ended_however_it_trickles(serves: Serves) -> None:
    with (
        serves(ConnectionQueue(8, SHORT)) as port,
        socket.create_connection(("127.0.0.1", port)) as one,
    ):
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        one.settimeout(SHORT / 10)
        with pytest.raises(OSError, match=r"(?i)pipe|reset|aborted"):
            while True:
                one.sendall(b"X: y\r\n")
                try:
                    assert one.recv(65536) == b""
                    raise BrokenPipeError("the pipe has ended")
                except TimeoutError:
                    continue


@SERVERS
def test_a_wrong_token_admits_nobody(serves: Serves) -> None:
    admission = ConnectionQueue(8, SHORT)
    with serves(admission) as port, client_of(port) as client:
        assert answered(serves, client, "another-token") == 401
        assert eventually(lambda: admission.pending_count == 0)


@SERVERS
def test_silent_connections_take_nothing_from_who_has_the_token(serves: Serves) -> None:
    admission = ConnectionQueue(4, LONG)
    with serves(admission) as port, ExitStack() as stack:
        flood = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(80)
        ]
        client = stack.enter_context(client_of(port))
        assert answered(serves, client) == 200
        assert all(map(ended, flood[:40])), "the oldest leave first"
        assert eventually(lambda: admission.pending_count <= 4)


@pytest.mark.parametrize("serves", [gateway, viewer])
def test_a_connection_that_was_admitted_stays(serves: Serves) -> None:
    admission = ConnectionQueue(1, SHORT)
    with serves(admission) as port, client_of(port) as client:
        assert answered(serves, client) == 200
        address = client.sock.getsockname()
        for _ in range(3):  # the time of each has passed when it is ended
            with socket.create_connection(("127.0.0.1", port)) as silent:
                assert ended(silent)
        assert answered(serves, client) == 200
        assert client.sock.getsockname() == address


def test_a_long_head_is_refused_by_the_viewer() -> None:
    with (
        viewer(ConnectionQueue(8, LONG)) as port,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 9000 + b"\r\n" * 1)
        client.sendall((b"X: " + b"y" * 9000 + b"\r\n") * 3)
        assert client.recv(100).startswith(b"HTTP/1.1 431")


def test_running_sessions_go_on_in_a_flood_of_silent_connections(tmp_path: Path) -> None:
    file = tmp_path / "token.txt"
    file.write_text(TOKEN)
    few = (1024, 1024)  # the least that sandboxes take

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, few)

    with (
        serving("bash", "--token-file", str(file), preexec_fn=limit) as served,
        served.client(additional_headers={"Authorization": f"Bearer {TOKEN}"}) as client,
        ExitStack() as stack,
    ):
        assert say(client, "reset", index=0)["observation"]["text"]
        host, port = served.url.removeprefix("http://").split(":")
        flood = [
            stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(1200)
        ]
        assert all(map(ended, flood[:1000])), "the oldest leave first"
        for index in range(2):
            assert say(client, "reset", index=index)["observation"]["text"]
            seen = say(client, "step", action="echo it goes on")["observation"]["text"]
            assert seen == "it goes on\n"
        assert not served.told("error"), "there was a descriptor for each"
