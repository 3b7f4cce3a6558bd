"""Clients that die, stall, flood, or send what is no message."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from intercode_integrations.serve import session
from serve.served import Served, heard, say, serving
from waiting import PATIENCE, eventually, new_marker, sleepers

LONG = "head -c 900000 /dev/zero | tr '\\0' x"


def sleeping(server: Served, **options: object) -> tuple[ClientConnection, str]:
    """A client whose action runs, and how long it sleeps."""
    marker = new_marker()
    client = server.client(**options)
    say(client, "reset", index=0)
    client.send(json.dumps({"type": "step", "data": {"action": f"sleep {marker}"}}))
    assert eventually(lambda: sleepers(marker))
    return client, marker


def ended(server: Served, why: str) -> bool:
    """Whether the last session ends so, with all that it had."""
    assert server.tells("opened")
    session = server.told("opened")[-1]["session"]
    return server.tells("ended", session=session, why=why)


def still_serves(server: Served) -> bool:
    with server.client() as client:
        return bool(say(client, "reset", index=0)["observation"]["text"])


def close_of(client: ClientConnection) -> int:
    """The code with which the server closes; what it says before is read."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            client.recv(PATIENCE)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_a_client_dies_while_its_action_runs(server: Served) -> None:
    client, marker = sleeping(server)
    client.socket.shutdown(socket.SHUT_RDWR)
    assert ended(server, "gone")
    assert not sleepers(marker)


def test_a_client_leaves_while_its_action_runs(server: Served) -> None:
    client, marker = sleeping(server)
    client.close()
    assert ended(server, "gone")
    assert not sleepers(marker)


def test_a_client_does_not_read() -> None:
    with serving("bash", "--patience", "1") as server:
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        narrow.connect((host, int(port)))
        client = server.client(sock=narrow, max_queue=1)
        client.send(json.dumps({"type": "reset", "data": {"index": 0}}))
        for _ in range(9):
            client.send(json.dumps({"type": "step", "data": {"action": LONG}}))
        assert ended(server, "stalled")
        assert server.metric("sessions") == 0
        narrow.close()


def test_a_flood_leaves_others_their_turn(server: Served) -> None:
    with server.client() as flood, server.client() as other:
        for _ in range(3000):
            flood.send('{"type": "state"}')
        assert say(other, "reset", index=0)["observation"]["text"]
        assert {heard(flood)["type"] for _ in range(3000)} == {"error"}  # there is no episode


def test_answers_to_a_client_that_has_gone_are_not_logged() -> None:
    """Each one would be a line beside the log."""
    with serving("bash") as server:
        client = server.client()
        client.socket.sendall(b"\x89\x80abcd" * 20_000)  # pings
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.shutdown(socket.SHUT_RD)
        client.socket.close()
        assert ended(server, "gone")
        assert still_serves(server)
    assert not server.other


def test_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 100.0, []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))

    monkeypatch.setattr(session.time, "monotonic", lambda: now)
    monkeypatch.setattr(session.asyncio, "sleep", sleep)
    pace = session.MessageRateLimit(10)
    asyncio.run(_turns(pace, 10))
    assert slept == []
    asyncio.run(_turns(pace, 2))
    assert slept == [0.1, 0.2]
    now += 1.2
    asyncio.run(_turns(pace, 10))
    assert slept == [0.1, 0.2]


async def _turns(pace: session.MessageRateLimit, count: int) -> None:
    for _ in range(count):
        await pace.turn()


def test_a_message_that_is_too_long(server: Served) -> None:
    client = server.client()
    client.send("x" * 2_000_000)
    assert close_of(client) == 1009
    assert ended(server, "gone")


def test_bytes_that_are_no_text(server: Served) -> None:
    with server.client() as client:
        client.send(b"\xff\xfe")
        assert heard(client)["data"]["code"] == "INVALID_JSON"
        client.send(b"\xff\xfe", text=True)
        assert close_of(client) == 1007


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"GET " + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /bash/tasks HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"POST /bash/tasks HTTP/1.1\r\nContent-Length: 9\r\nContent-Length: 8\r\n\r\n{}",
        b"POST /bash/tasks HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /bash/tasks HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        b"\0" * 200_000,
    ],
)
def test_garbage(server: Served, garbage: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as raw:
        raw.settimeout(PATIENCE)
        try:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
        except ConnectionError:
            pass
    assert still_serves(server)


def test_the_server_is_killed() -> None:
    with serving("bash") as server:
        client, marker = sleeping(server)
        server.process.kill()
        with pytest.raises(ConnectionClosed):
            client.recv(PATIENCE)
        assert eventually(lambda: not sleepers(marker))


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """A benchmark with two splits, of which the golds are known."""
    golds = {"train": "touch GOLDEN", "test": "cat GOLDEN; exit 7"}
    tasks = [
        {"task_id": split, "query": f"Do {split}.", "gold": gold, "metadata": {"split": split}}
        for split, gold in golds.items()
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    (tmp_path / "intercode.toml").write_text('env = "bash"\nname = "My own"\nmax_turns = 3\n')
    return tmp_path


def test_gold_never_crosses_the_wire(benchmark: Path) -> None:
    with serving(str(benchmark)) as server, server.client("/My-own/ws") as client:
        told = [server.get(f"/{path}") for path in ("metadata", "schema", "openapi.json")]
        told += [server.post(f"/My-own/{path}", split="train") for path in ("tasks", "task")]
        assert server.get("/My-own/splits")[1][0] == {"name": "train", "type": "train"}
        for split, action in (("train", "true"), ("train", "touch x"), ("test", "true")):
            told.append(say(client, "reset", split=split))
            assert told[-1]["observation"]["text"] == f"Do {split}."
            told.append(say(client, "step", action=action))
            assert told[-1]["reward"] is None and not told[-1]["done"]
            assert not {"parts", "success"} & {*told[-1]["observation"]["info"]}
            told.append(say(client, "step", action="submit"))
            told.append(say(client, "state"))
        assert "GOLDEN" not in json.dumps(told)


def test_a_failure_is_no_reward(tmp_path: Path) -> None:
    task = {"task_id": "a", "query": "Do it.", "gold": "true", "image": "host+nowhere.sh"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    (tmp_path / "intercode.toml").write_text('env = "bash"\n')
    with serving(str(tmp_path)) as server, server.client() as client:
        begun = say(client, "reset")
        seen = begun["observation"]
        assert begun["done"] and begun["reward"] is None and seen["truncated"]
        assert seen["info"]["error"]["kind"] in ("infrastructure", "task")
        last = say(client, "step", action="true")
        assert last["done"] and last["reward"] is None and last["observation"]["truncated"]
        assert server.tells("episode", status="error", reward=None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_waits_for_episodes(number: int) -> None:
    with serving("bash") as server, server.client() as idle, server.client() as client:
        say(client, "reset", index=0)
        server.process.send_signal(number)
        assert heard(idle)["data"]["code"] == "CAPACITY_REACHED"
        assert close_of(idle) == 1001
        assert server.get("/health") == (503, {"status": "draining"})
        with server.client() as late:
            assert heard(late)["data"]["error"] == "CapacityError"
            assert close_of(late) == 1013
        assert say(client, "step", action="submit")["reward"] is not None
        assert heard(client)["data"]["code"] == "CAPACITY_REACHED"
        assert close_of(client) == 1001
        assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_at_once() -> None:
    with serving("bash", "--drain", "3600") as server:
        client, marker = sleeping(server)
        server.process.terminate()
        assert server.tells("draining", sessions=1)
        server.process.terminate()
        assert heard(client)["data"]["error"] == "CapacityError"
        assert server.process.wait(PATIENCE) == 0
        assert not sleepers(marker)


def test_the_end_does_not_wait_for_ever() -> None:
    with serving("bash", "--drain", "0.1") as server:
        client, marker = sleeping(server)
        server.process.terminate()
        assert close_of(client) == 1001
        assert server.process.wait(PATIENCE) == 0
        assert not sleepers(marker)
