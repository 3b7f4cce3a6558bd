"""What a server does with failures of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect

from intercode.envs.bash import BashEnv
from intercode.errors import SandboxError, TaskError
from intercode.request_guard import RequestGuard
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.server import EnvironmentServer
from intercode_integrations.serve.server_processes import listen
from intercode_integrations.serve.session import SessionLimits

Say = Callable[..., Awaitable[dict[str, Any]]]


def played(client: Callable[[Say], Awaitable[None]], counts: ServerMetrics) -> None:
    """Let a client play on a server of this process."""

    async def main() -> None:
        [listener] = listen("127.0.0.1", 0)
        server = EnvironmentServer(
            [ServedEnvironment("bash")], SessionLimits(), RequestGuard(), counts
        )
        running = asyncio.create_task(server.run(listener, ()))
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/ws"
        async with connect(url, proxy=None) as connection:

            async def say(kind: str, **data: Any) -> dict[str, Any]:
                await connection.send(json.dumps({"type": kind, "data": data}))
                return dict(json.loads(await connection.recv())["data"])

            await client(say)
        server.end()
        await running

    asyncio.run(main())


def test_a_bug_ends_the_session_and_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(self: BashEnv, action: str) -> None:
        raise KeyError("a secret")

    async def client(say: Say) -> None:
        await say("reset", index=0)
        told = await say("step", action="ls")
        assert (told["code"], told["error"]) == ("SESSION_ERROR", "InterCodeError")
        assert "secret" not in told["message"]

    monkeypatch.setattr(BashEnv, "step", step)
    counts = ServerMetrics()
    played(client, counts)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert any("a secret" in line.get("traceback", "") for line in lines)
    assert counts.total("ended failed") == 1 and counts.total("sessions") == 0


def test_an_environment_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: ServedEnvironment, split: str | None) -> None:
        raise TaskError("its file has gone")

    async def client(say: Say) -> None:
        told = await say("reset")
        assert (told["code"], told["error"]) == ("FACTORY_ERROR", "TaskError")

    monkeypatch.setattr(ServedEnvironment, "make", make)
    played(client, ServerMetrics())


def test_a_sandbox_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(*given: object) -> None:
        raise SandboxError("the machine is on fire")

    async def client(say: Say) -> None:
        await say("reset", index=0)
        seen = await say("step", action="ls")
        assert seen["done"] and seen["reward"] is None and seen["observation"]["truncated"]
        assert seen["observation"]["info"]["error"]["kind"] == "infrastructure"
        assert (await say("reset", index=0))["observation"]["text"]

    monkeypatch.setattr("intercode.envs.base.execute", execute)
    counts = ServerMetrics()
    played(client, counts)
    assert counts.total("failures") == 1 and counts.total("episodes") == 0
