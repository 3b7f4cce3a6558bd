"""A server of which an environment's session is lost, refused or ended."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.cli.main import main
from intercode_integrations.serve.client import TOKEN
from serve.served import Served, serving
from striking import struck_in_a_call
from waiting import eventually, new_marker, sleepers

TASK = intercode.load_dataset("bash")[0]


@pytest.fixture
def env(server: Served) -> Iterator[Any]:
    with closing(intercode.connect(server.url)) as env:
        yield env


def test_a_server_that_is_killed() -> None:
    marker = new_marker()
    with serving("bash") as server:
        env = intercode.connect(server.url)
        quiet = intercode.connect(server.url, errors="value")
        for one in (env, quiet):
            one.reset(index=0)
        env.step(f"sleep {marker} & wait=1")
        assert eventually(lambda: sleepers(marker))
        server.process.kill()
        with pytest.raises(intercode.SandboxError, match="session with the server was lost"):
            env.step("ls")
        assert env.episode.status == "error" and env.episode.score is None
        with pytest.raises(intercode.EnvironmentStateError):
            env.step("ls")
        text, reward, terminated, truncated, info = quiet.step("ls")
        assert (text, terminated, truncated) == ("", False, True) and math.isnan(reward)
        assert info["error"]["kind"] == "infrastructure" and "lost" in info["error"]["message"]
        assert eventually(lambda: not sleepers(marker))
        with pytest.raises(intercode.SandboxError, match="intercode serve"):
            env.reset()
        assert quiet.reset(index=1)[1]["error"]["type"] == "SandboxError"
        assert quiet.step("ls")[2:4] == (False, True)
    port = int(server.url.rpartition(":")[2])
    with serving("bash", port=port) as server:
        for one in (env, quiet):
            assert one.reset(index=0)[0] == TASK.query
            one.step(TASK.gold[0])
            assert one.step("submit")[1] == 1.0
            one.close()
            one.close()


def test_a_session_that_was_idle() -> None:
    with (
        serving("bash", "--idle", "0.5") as server,
        closing(intercode.connect(server.url)) as env,
    ):
        env.reset(index=0)
        assert server.tells("ended", why="idle")
        with pytest.raises(intercode.SandboxError, match="idle"):
            env.step("ls")
        env.reset(index=0)
        assert eventually(lambda: len(server.told("ended", why="idle")) == 2)
        assert env.reset(index=1)[1]["turn"] == 0


def test_a_server_that_is_full() -> None:
    with serving("bash", "--max-sessions", "1") as server:
        one, other = intercode.connect(server.url), intercode.connect(server.url)
        one.reset()
        with pytest.raises(intercode.CapacityError, match="all of its 1 session"):
            other.reset()
        one.close()
        assert other.reset()[0]
        other.close()


def test_an_action_that_is_too_long_for_the_server() -> None:
    with (
        serving("bash", "--max-message", "2K") as server,
        closing(intercode.connect(server.url)) as env,
    ):
        env.reset(index=0)
        text, *_, info = env.step("#" * 3000)
        assert "2048" in text and not info["ok"] and info["turn"] == 1
        assert env.step("#" * 1900)[4]["ok"]
        env.step(TASK.gold[0])
        assert env.step("submit")[1] == 1.0


def test_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("bash", "--token", "secret") as server:
        for token in (None, "wrong"):
            with pytest.raises(intercode.UsageError, match="token"):
                intercode.connect(server.url, token=token)
        with closing(intercode.connect(server.url, token="secret")) as env:
            assert env.reset()[0]
        monkeypatch.setenv(TOKEN, "secret")
        with closing(intercode.connect(server.url)) as env:
            assert env.reset()[0]


def test_a_proxy_is_not_for_this_machine(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY")
    with closing(intercode.connect(server.url)) as env:
        assert env.reset()[0]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercode_integrations.serve.client.find_spec", lambda name: None)
    with pytest.raises(intercode.UsageError, match="pip install"):
        intercode.connect("http://127.0.0.1:1")


def test_an_answer_that_was_not_waited_for(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(index=0)
    connection = env._session._connection

    def interrupted(*args: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "recv", interrupted)
    with pytest.raises(KeyboardInterrupt):
        env.step("echo one")
    with pytest.raises(intercode.EnvironmentStateError, match="KeyboardInterrupt has interrupted"):
        env.step("echo two")
    env.reset(index=0)
    assert env.step("echo three")[0] == "three\n"


def test_a_session_ends_where_its_environment_cannot_be_made(tmp_path: Path) -> None:
    settings = tmp_path / "intercode.toml"
    settings.write_text('env = "bash"\n')
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"query": "Do it.", "gold": "true"}))
    with serving(str(tmp_path)) as server, closing(intercode.connect(server.url)) as env:
        settings.write_text('env = "none such"\n')
        with pytest.raises(intercode.UsageError, match="none such"):
            env.reset(index=0)
        with pytest.raises(intercode.SandboxError, match="it has ended"):
            env._session.ask("step", {})
        assert eventually(lambda: server.metric("sessions") == 0)
        settings.write_text('env = "bash"\n')
        assert env.reset(index=0)[0] == "Do it."


def test_a_session_ends_with_its_environment(server: Served) -> None:
    assert eventually(lambda: server.metric("sessions") == 0)
    env = intercode.connect(server.url)
    env.reset()
    assert server.metric("sessions") == 1
    del env
    assert eventually(lambda: server.metric("sessions") == 0)


AGENT = """
import intercode

class Knowing:
    def __init__(self, task):
        self.gold = intercode.load_dataset("bash")[task.task_id].gold[0]

    def act(self, observation, history):
        return "submit" if history else self.gold
"""


def test_a_run_of_a_server_of_ours(server: Served, tmp_path: Path, capsys: Any) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    asked = ["run", f"openenv:{server.url}/bash", "--agent", f"{agent}:Knowing", "--limit", "6"]
    assert main([*asked, "--workers", "2", "--json", "--out", str(tmp_path / "run")]) == 0
    assert '"success_rate": 1.0' in capsys.readouterr().out


def test_an_interrupted_action_ends_the_attempt_and_the_next_reset_connects_again() -> None:
    with (
        serving("bash", "--max-sessions", "1") as server,
        closing(intercode.connect(server.url, errors="value")) as env,
    ):
        env.reset(index=0)
        with pytest.raises(KeyboardInterrupt), struck_in_a_call(env, signal.SIGINT):
            env.step("while :; do sleep 100; done")
        with pytest.raises(intercode.EnvironmentStateError, match="KeyboardInterrupt has inter"):
            env.step("echo the other")
        env.reset(index=0)
        assert env.step("echo the other")[0] == "the other\n"


def test_remotes_that_are_dropped_give_their_connections_back(server: Served) -> None:
    def count() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def drop() -> None:
        env = intercode.connect(server.url)
        env.reset(index=0)
        env.step(f"sleep {marker} & echo 1")
        envs = intercode.connect_vec(server.url, 2)
        envs.reset(seed=0)
        envs.step(("echo 1", f"sleep {marker} & echo 2"))

    marker = new_marker()
    drop()
    assert eventually(lambda: not (gc.collect(), sleepers(marker))[1])
    before = count()
    for _ in range(3):
        drop()
    assert eventually(
        lambda: all(now < most + 3 for now, most in zip(count(), before, strict=True))
    )
    assert eventually(lambda: not sleepers(marker))
