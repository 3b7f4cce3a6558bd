"""`intercode mcp` against the SDK's client, in both eras of the protocol, on three transports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from recorded import Played, played

import intercode
from intercode.cli.main import main
from intercode.envs.tools import read_call
from intercode.envs.traits import find_traits
from intercode.episode import Episode
from intercode.evaluate import Progress, evaluate
from intercode.records import read_episodes, read_manifest
from intercode_integrations.mcp.server import McpHttpServer, server
from intercode_integrations.mcp.sessions import EpisodeSession, EpisodeSessions
from waiting import PATIENCE, eventually, new_marker, sleepers

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
TASK = intercode.load_dataset("bash").by_id("archive-01")
TELLING = ("reward", "score", TASK.gold[0], "success")
"""What no client may see of the task before its end, or at all."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "intercode.cli", "mcp", *arguments]


def parameters(*arguments: str) -> StdioServerParameters:
    program, *rest = command(*arguments)
    return StdioServerParameters(command=program, args=rest, env=dict(os.environ))


def only_episode(out: Path) -> Episode:
    [episode] = read_episodes(out / "episodes.jsonl")
    return episode


async def text_of(client: Client, name: str, **arguments: object) -> str:
    """What a call shows to the model."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    [content] = result.content
    return str(content.text)


async def solve(client: Client, version: str) -> list[str]:
    """Solve the task; return everything that the client was sent."""
    assert client.protocol_version == version
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["bash", "submit"]
    assert TASK.query in tools[0].description and tools[0].input_schema["required"] == ["command"]
    seen = [str(client.instructions), *(tool.model_dump_json() for tool in tools)]
    seen.append(await text_of(client, "bash", command="printf 'a\\377b'"))
    seen.append(await text_of(client, "nope"))
    seen.append(await text_of(client, "bash", command=TASK.gold[0]))
    seen.append(await text_of(client, "submit"))
    seen.append(await text_of(client, "bash", command="ls"))
    assert seen[-5] == "a?b" and "there is no tool 'nope'" in seen[-4]
    assert seen[-2:] == [
        "[the episode has ended]",
        "[the episode has ended: this call did nothing]",
    ]
    return seen


# In memory


def told(seats: EpisodeSessions) -> Progress:
    """Tell clients that their episodes have ended, as the command does."""

    class Told(Progress):
        def episode(self, episode: Episode) -> None:
            seats.finish_episode(episode)

    return Told()


@pytest.mark.parametrize(("name", "era"), [("bash", "legacy"), ("bash", "auto"), ("sql", "auto")])
async def test_all_tasks_earn_what_they_earn_in_process(name: str, era: str) -> None:
    seats, expected = EpisodeSessions(), {one.task_id: one for one in played(name)}
    data, loop = intercode.load_dataset(name), asyncio.get_running_loop()
    clients = []

    async def client(seat: EpisodeSession, one: Played) -> None:
        async with Client(server(lambda context: seat), mode=era) as session:
            [tool, *_] = (await session.list_tools()).tools
            [parameter] = tool.input_schema["required"]
            for action, observation in zip(one.actions, one.observations, strict=True):
                seen = await text_of(session, name, **{parameter: action})
                assert seen == observation
            await text_of(session, "submit")

    def begins(seat: EpisodeSession, episode: Episode) -> None:
        acting = client(seat, expected[episode.task_id])
        clients.append(asyncio.run_coroutine_threadsafe(acting, loop))

    seats.announce = begins
    result = await asyncio.to_thread(
        evaluate, data, seats, lambda: intercode.make(name, data=data), progress=told(seats),
        workers=2, settings={"env": name},
    )  # fmt: skip
    for acting in clients:
        await asyncio.wrap_future(acting)
    assert {one.task_id: one.reward for one in result.outcomes} == {
        task_id: one.reward for task_id, one in expected.items()
    }


@pytest.mark.parametrize(("name", "answer"), [("python", "function"), ("ctf", "flag")])
async def test_an_answer_is_handed_in_by_submit(name: str, answer: str) -> None:
    env = intercode.make(name)
    task = env.dataset[0]
    data = env.dataset.filter(lambda other: other is task)
    *actions, last = [read_call(action, find_traits(name)) for action in env.solution(task)]
    env.close()
    seats = EpisodeSessions()
    run = asyncio.to_thread(
        evaluate, data, seats, lambda: intercode.make(name, data=data), progress=told(seats),
        settings={"env": name},
    )  # fmt: skip
    running = asyncio.create_task(run)
    async with Client(server(lambda context: seats.session(task.task_id))) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert answer in tools["submit"].input_schema["properties"]
        for called, arguments in (*actions, last):
            await text_of(client, called, **arguments)
    assert [one.reward for one in (await running).outcomes] == [1.0]


# Over stdio


@pytest.mark.parametrize("era", ERAS)
async def test_over_stdio(era: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    started = parameters("bash", "--task", TASK.task_id, "--out", str(out))
    async with Client(started, mode=era) as client:
        seen = await solve(client, ERAS[era])
        assert only_episode(out).reward == 1.0, "the answer comes before the record"
    assert not [word for word in TELLING if word in "\n".join(seen)]
    episode = only_episode(out)
    assert (episode.agent, episode.status, episode.success) == ("mcp", "submitted", True)
    assert read_manifest(out)["agent"]["name"] == "mcp"
    capsys.readouterr()
    assert main(["show", str(out)]) == 0 and "solved" in capsys.readouterr().out
    assert main(["report", str(out)]) == 0 and "100.0 %" in capsys.readouterr().out


async def test_the_score_is_told_if_asked_for(tmp_path: Path) -> None:
    options = "--task", TASK.task_id, "--show-score", "--out", str(tmp_path / "run")
    async with Client(parameters("bash", *options)) as client:
        assert await text_of(client, "submit") == "[the episode has ended]\n[reward: 0.0]"


async def test_a_client_that_only_looks_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    async with Client(parameters("bash", "--task", TASK.task_id, "--out", str(out))) as client:
        assert (await client.list_tools()).tools
    assert eventually(lambda: not out.exists())


class Reports:
    """Reports of progress, of which a client can await the second."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.second = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.seconds.append(progress)
        if len(self.seconds) == 2:
            self.second.set()


async def cancel_a_call(client: Client) -> None:
    """Cancel a call while its command runs, and go on in the same shell."""
    marker, reports = new_marker(), Reports()
    assert await text_of(client, "bash", command="cd /srv && kept=yes") == ""
    asked = {"command": f"sleep {marker}; touch /srv/later"}
    call = asyncio.create_task(client.call_tool("bash", asked, progress_callback=reports))
    await asyncio.wait_for(reports.second.wait(), PATIENCE)
    assert reports.seconds[:2] == [1, 2] and sleepers(marker)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await text_of(client, "bash", command="echo $kept; pwd; ls /srv/later") == (
        "yes\n/srv\nls: cannot access '/srv/later': No such file or directory\n"
    )
    assert not sleepers(marker)
    await text_of(client, "submit")


PATIENT = "--task", TASK.task_id, "--timeout", f"{PATIENCE:g}"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_cancelled_call_is_stopped_and_the_episode_goes_on(
    era: str, transport: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    if transport == "stdio":
        async with Client(parameters("bash", *PATIENT, "--out", str(out)), mode=era) as client:
            await cancel_a_call(client)
    else:
        with http(out, *PATIENT) as (process, lines):
            url = (await asyncio.to_thread(next, lines))["url"]
            async with Client(url, mode=era) as client:
                await cancel_a_call(client)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    episode = only_episode(out)
    assert [turn.exit_code for turn in episode.turns] == [0, 130, 2]
    assert episode.turns[1].observation.startswith("[interrupted: its processes were killed")
    assert episode.status == "submitted"


CLIENT = """
import asyncio, json, sys
from mcp import Client, StdioServerParameters

async def act():
    program, *rest = json.loads(sys.argv[1])
    async with Client(StdioServerParameters(command=program, args=rest)) as client:
        await client.call_tool("bash", {"command": sys.argv[2]})
        print("acted", flush=True)
        await client.call_tool("bash", {"command": sys.argv[3]})

asyncio.run(act())
"""


def test_the_episode_of_a_client_that_is_killed_is_recorded_and_all_is_freed(
    tmp_path: Path,
) -> None:
    out, marker = tmp_path / "run", new_marker()
    asked = command("bash", "--task", TASK.task_id, "--timeout", "2", "--out", str(out))
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, json.dumps(asked), TASK.gold[0], f"sleep {marker}"],
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None and client.stdout.readline() == b"acted\n"
        assert eventually(lambda: sleepers(marker))
        server_pids = children(client.pid)
        assert server_pids
        client.kill()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in server_pids))
    assert not sleepers(marker)
    episode = only_episode(out)
    assert len(episode.turns) == 2 and episode.status == "submitted"
    assert episode.metadata["mcp"] == {"left": "disconnected"}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_clients_end_servers_by_signals(number: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        command("bash", "--task", TASK.task_id, "--out", str(out)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for message in (
            {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25",
             "capabilities": {}, "clientInfo": {"name": "checks", "version": "1"}}},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": "bash",
             "arguments": {"command": TASK.gold[0]}}},
        ):  # fmt: skip
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            process.stdin.flush()
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [line["id"] for line in lines] == [1, 2]
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stdout.read() == b"", "stdout belongs to the protocol"
    assert only_episode(out).reward == 1.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bash"], "over stdio, a client plays a single episode"),
        (["bash", "--task", TASK.task_id, "--epochs", "2"], "over stdio, a client plays a single"),
        (["bash", "--task", TASK.task_id, "--port", "1"], "are for --http"),
        (["bash", "--http", "--host", "0.0.0.0"], "a --token-file"),
        (["bash", "--http", "--host", "192.0.2.1", "--token", "t"], "cannot listen on 192.0.2.1"),
        (["bash", "--task", "archive-0l"], "did you mean 'archive-01'"),
    ],
)
def test_wrong_usage(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *arguments, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert told in said.err and not said.out
    assert not (tmp_path / "run").exists()


def test_another_run_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    assert main(["run", "bash", "--task", TASK.task_id, "--quiet", "--out", out]) == 0
    asked = command("bash", "--task", TASK.task_id, "--out", out)
    done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 2 and b"holds another run" in done.stderr
    assert only_episode(Path(out)).agent == "oracle"


# Over HTTP


@contextmanager
def http(out: Path, *options: str) -> Iterator[tuple[Any, Iterator[dict[str, Any]]]]:
    """The command, and the lines that it prints."""
    asked = command("bash", "--http", "--json", "--out", str(out), *options)
    with subprocess.Popen(asked, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, map(json.loads, process.stdout)
        finally:
            process.kill()


@pytest.mark.parametrize("era", ERAS)
async def test_two_episodes_at_once_over_http(era: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = "--task", TASK.task_id, "--epochs", "2", "--workers", "2"
    with http(out, *options) as (process, lines):
        told = [await asyncio.to_thread(next, lines) for _ in range(2)]
        assert sorted(one["epoch"] for one in told) == [0, 1]
        assert {one["query"] for one in told} == {TASK.query}
        one, other = sorted(told, key=lambda line: int(line["epoch"]))
        async with Client(one["url"], mode=era) as a, Client(other["url"], mode=era) as b:
            await text_of(b, "bash", command="touch /here")
            assert "No such file" in await text_of(a, "bash", command="ls /here")
            # An episode is not tied to a connection.
            async with Client(other["url"], mode=era) as again:
                assert await text_of(again, "bash", command="ls /here") == "/here\n"
            seen = await solve(a, ERAS[era])
            await text_of(b, "submit")
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    assert not [word for word in TELLING if word in "\n".join(seen)]
    rewards = {one.epoch: one.reward for one in read_episodes(out / "episodes.jsonl")}
    assert rewards[0] == 1.0 and rewards[1] is not None and rewards[1] < 1.0


def test_the_gate(tmp_path: Path) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    with http(tmp_path / "run", "--task", TASK.task_id) as (process, lines):
        url = next(lines)["url"]

        def status(url: str, **headers: str) -> int:
            return httpx2.post(url, json=body, headers={**accept, **headers}).status_code

        start, _, secret = url.rpartition("/")
        assert status(url) == 200
        assert status(url, Origin="https://example.org") == 403
        assert status(url, Origin=start.removesuffix("/mcp")) == 403
        assert status(url, Host="example.org") == 421
        for wrong in (start, f"{start}/", f"{start}/{secret[:-1]}", f"{start}/%C3%BC"):
            assert status(wrong) == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 1  # no one has acted
    assert not (tmp_path / "run").exists()


async def test_a_token_is_asked_for() -> None:
    seats = EpisodeSessions()
    serving = McpHttpServer(seats, "0.0.0.0", token="t\u00f6ken")
    serving.start()
    url = serving.url(seats.session("task")).replace("0.0.0.0", "127.0.0.1")
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    replies = (
        ("", 401, "a token is needed"),
        ("Bearer tken", 401, "the token that was sent is not the right one"),
        ("Bearer t\u00f6ken", 200, ""),
    )
    for token, status, reason in replies:
        headers = {**accept, "authorization": token.encode()}
        response = httpx2.post(url, json=body, headers=headers)
        assert response.status_code == status and reason in response.text, token
    serving.stop()
    assert not serving.is_alive()
