"""The terms of sessions, and who may have one."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus

from intercode.request_guard import RequestGuard, is_loopback
from serve.served import Served, heard, refused, say, serving
from serve.test_hostile import close_of, sleeping
from waiting import PATIENCE, eventually, sleepers
from warm import Warm

TOKEN = "a-token-of-the-tests"


def test_idle_and_old_sessions_end() -> None:
    with serving("bash", "--idle", "1", "--lifetime", "3600") as server, server.client() as client:
        say(client, "reset", index=0)
        seen = say(client, "step", action="sleep 1.5; echo a long action is not idle")
        assert "not idle" in seen["observation"]["text"]
        told = heard(client)["data"]
        assert (told["code"], told["error"]) == ("SESSION_ERROR", "LeaseError")
        assert "idle for 1 s" in told["message"]
        assert close_of(client) == 1001
        assert server.tells("ended", why="idle")
    with serving("bash", "--lifetime", "1") as server:
        client, marker = sleeping(server)
        assert "older than 1 s" in heard(client)["data"]["message"]
        assert close_of(client) == 1001
        assert server.tells("ended", why="aged")
        assert not sleepers(marker)


def test_capacity() -> None:
    with serving("bash", "--max-sessions", "1") as server:
        with server.client() as client:
            assert say(client, "reset", index=0)["observation"]["text"]
            with server.client() as second:
                told = heard(second)["data"]
                assert (told["code"], told["error"]) == ("CAPACITY_REACHED", "CapacityError")
                assert close_of(second) == 1013
            assert server.metric("refused_total") == 1
            say(client, "step", action="true")
        with server.client() as client:  # also while the place of the one before is freed
            assert say(client, "reset", index=0)["observation"]["text"]
        assert server.metric("opened_total") == 2


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A server that wants a token."""
    file = tmp_path_factory.mktemp("token") / "token.txt"
    file.write_text(f"{TOKEN}\n")
    with serving("bash", "--token-file", str(file), "--allow-host", "envs.example") as server:
        yield server


def test_the_token(closed: Served) -> None:
    with closed.client(additional_headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert say(client, "reset", index=0)["observation"]["text"]
    for wrong in ("", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}"):
        error = refused(partial(closed.client, additional_headers={"Authorization": wrong}))
        assert isinstance(error, InvalidStatus) and error.response.status_code == 401
    assert closed.get("/metadata")[0] == 401
    assert closed.get("/metrics")[0] == 401
    assert closed.get("/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert closed.get("/health")[0] == 200
    with pytest.raises(InvalidStatus):
        closed.client()


def test_the_token_is_from_the_environment() -> None:
    environment = {**os.environ, "INTERCODE_SERVE_TOKEN": TOKEN}
    with serving("bash", "--host", "0.0.0.0", env=environment) as server:
        assert server.get("/metadata")[0] == 401
        assert server.get("/metadata", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert TOKEN not in str(server.log)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "--host", "0.0.0.0"], "need a token"),
        (["bash", "--token", " "], "the token is empty"),
        (["bash", "--token", "a\nb"], "has characters that are not valid in a header"),
        (["bash", "--token-file", "/nowhere"], "cannot be read"),
        (["bash", "bash"], "two of the environments"),
        (["bsah"], "did you mean 'bash'"),
        (["bash", "--workers", "0"], "above 0, not '0'"),
        (["bash", "--idle", "soon"], "number of seconds"),
        (["bash", "--host", "no.such.host.invalid", "--token", "x"], "cannot listen"),
    ],
)
def test_what_cannot_be_served(warm: Warm, words: list[str], said: str) -> None:
    done = warm.run(["intercode", "serve", *words, "--port", "0"], capture_output=True)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_taken(server: Served, warm: Warm, workers: str) -> None:
    port = server.url.rpartition(":")[2]
    words = ["intercode", "serve", "bash", "--port", port, "--workers", workers]
    done = warm.run(words, capture_output=True)
    assert done.returncode == 2 and "Address already in use" in done.stderr


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8000"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_web_pages_do_not_reach_it(server: Served, headers: dict[str, str]) -> None:
    assert server.get("/health", **headers)[0] == 403
    assert server.get("/bash/tasks", b"{}", **headers)[0] == 403
    if "Host" not in headers:
        error = refused(lambda: server.client(additional_headers=headers))
        assert isinstance(error, InvalidStatus) and error.response.status_code == 403


@pytest.mark.parametrize(
    ("fields", "is_let_in"),
    [
        ([("Host", "localhost:8000")], True),
        ([("Host", "LOCALHOST")], True),
        ([("Host", "127.0.0.1:8000")], True),
        ([("Host", "[::1]:8000")], True),
        ([("Host", "10.1.2.3")], True),
        ([("Host", socket.gethostname())], True),
        ([("Host", "envs.example:443")], True),
        (
            [
                ("Host", "envs.example."),
            ],
            False,
        ),
        ([("Host", "localhost:8000"), ("Origin", "http://localhost:8000")], True),
        ([("Host", "localhost:8000"), ("Origin", "http://localhost:8001")], False),
        ([("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://a")], False),
        ([], False),
        ([("Host", "localhost"), ("Host", "localhost")], False),
        ([("Host", "[::1")], False),
        ([("Host", "")], False),
        ([("Host", "user@localhost")], True),
    ],
)
def test_the_guard(fields: list[tuple[str, str]], is_let_in: bool) -> None:
    refusal = RequestGuard(names=["envs.example"]).refusal(Headers(fields))
    assert (refusal is None) == is_let_in


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_workers() -> None:
    with serving("bash", "--workers", "2", "--max-sessions", "2") as server:
        client, marker = sleeping(server)
        worker = server.told("opened")[0]["pid"]
        assert worker in [line["process"] for line in server.told("worker")]
        with server.client() as other:
            say(other, "reset", index=0)  # and its reply, so that it is counted first
            with server.client() as third:
                assert heard(third)["data"]["code"] == "CAPACITY_REACHED"  # of all workers together
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(ConnectionClosed):
            client.recv(PATIENCE)
        assert eventually(lambda: server.metric("restarts_total") == 1)
        assert eventually(lambda: server.metric("workers") == 2)
        assert eventually(lambda: not sleepers(marker))
        assert server.metric("sessions") == 0
        client, marker = sleeping(server)
        server.process.terminate()
        assert server.tells("draining", sessions=1)
        server.process.terminate()
        assert close_of(client) == 1001
        assert server.process.wait(PATIENCE) == 0
        assert not sleepers(marker)


def test_workers_end_with_their_parent() -> None:
    with serving("bash", "--workers", "2") as server:
        _, marker = sleeping(server)
        workers = [line["process"] for line in server.told("worker")]
        server.process.kill()
        assert eventually(lambda: not any(map(is_running, workers)))
        assert not sleepers(marker)


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
