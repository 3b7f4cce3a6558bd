"""Servers in processes of their own, and clients that are not ours."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.sync.client import ClientConnection, connect

from waiting import PATIENCE, eventually

MODULE = (sys.executable, "-m", "intercode.cli.main", "serve")


class Served:
    """A server that runs, with its address and its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.process = process
        self.log: list[dict[str, Any]] = []
        """Its lines so far."""
        self.other: list[str] = []
        """What it said beside its log: nothing, if all is well."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        first = process.stdout.readline()
        assert first, (self.log, self.other, process.wait(PATIENCE))
        self.urls: dict[str, str] = json.loads(first)["urls"]
        self.url = next(iter(self.urls.values())).rpartition("/")[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        with suppress(ValueError):  # the test has ended, and closed it
            for line in self.process.stderr:
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                else:
                    self.other.append(line)

    def told(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """The lines of the log with an event and these facts."""
        wanted = {"event": event, **facts}.items()
        return [line for line in list(self.log) if wanted <= line.items()]

    def tells(self, event: str, **facts: Any) -> bool:
        """Whether there is such a line within our patience."""
        return eventually(lambda: self.told(event, **facts))

    def client(self, path: str = "/ws", **options: Any) -> ClientConnection:
        """A client that is connected."""
        options = {"open_timeout": PATIENCE, "max_size": 2**24, "proxy": None, **options}
        address = self.url.replace("http", "ws", 1) + path
        return connect(address, **options).__enter__()  # of websockets 15 and of 17

    def get(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """The status of an answer, and its JSON, or its text."""
        request = urllib.request.Request(self.url + path, body, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        return status, json.loads(text) if text.startswith(("{", "[")) else text

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """The same, of JSON that is sent."""
        return self.get(path, json.dumps(body).encode())

    def metric(self, name: str) -> float:
        """A number of its metrics."""
        _, text = self.get("/metrics")
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return float(lines[f"intercode_{name}"])


@contextmanager
def serving(*words: str, port: int = 0, **options: Any) -> Iterator[Served]:
    """A server; it ends with the context, if it has not."""
    command = [*MODULE, *words, "--json", "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:
        try:
            server = Served(process)
            yield server
            assert not server.other, "".join(server.other)
        finally:
            process.kill()


def say(client: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    """Send a message, and return the data of the reply."""
    client.send(json.dumps({"type": kind, "data": data}))
    return heard(client)["data"]


def heard(client: ClientConnection) -> dict[str, Any]:
    """The next message of a server."""
    return dict(json.loads(client.recv(PATIENCE)))


def refused(call: Callable[[], object]) -> Exception:
    """The error that a call ends with."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error
    raise AssertionError("it was not refused")


def told(env: Any) -> Any:
    """The record of an episode, without times and all that only its own process knows."""
    episode = env.episode
    shown = [
        (one.action, one.observation, one.reward, one.ok, one.exit_code) for one in episode.turns
    ]
    score = None if episode.score is None else (episode.score.value, dict(episode.score.parts))
    return episode.task_id, episode.query, episode.env, episode.status, shown, score
