"""Several agents, models and environments from one command."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import command
from intercode.cli.main import main
from intercode.models.scripted import Line
from intercode.records import read_episodes, read_manifest
from intercode.report.runs import read_runs
from intercode_integrations.testing import ScriptedServer
from waiting import eventually

SLOW = """
import pathlib, time

class Slow:
    def __init__(self, task):
        pathlib.Path("acting").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)

    def act(self, observation, history):
        return "submit"
"""
TASKS = [{"task_id": f"t{n}", "query": f"say {n}", "gold": f"echo {n}"} for n in range(3)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "sk-secret")
    Path("tasks.json").write_text(json.dumps(TASKS))
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    def say(messages: Any) -> Line:
        spoken = sum(message.role == "assistant" for message in messages)
        asked = [n for n in range(3) if f"say {n}" in messages[1].content]
        return Line("submit" if spoken or not asked else f"```bash\necho {asked[0]}\n```")

    with ScriptedServer(say, key="sk-secret") as running:
        yield running


def models(server: ScriptedServer, *names: str) -> list[str]:
    chosen = [f"openai-compatible/{name}" for name in names]
    return ["--model", *chosen, "--base-url", server.url, "--reply-tokens", "50"]


def used(server: ScriptedServer) -> int:
    return sum(exchange.usage.total for exchange in server.exchanges if exchange.usage)


def test_all_agents_and_every_resume_find_the_same_flags() -> None:
    """Attack C3: the flags come from a secret of the run, which is recorded."""
    one = ["--task", "blanks", "--quiet"]
    sweep = ["sweep", "ctf", "--agent", "oracle", "noop", "--out", "s", *one]
    assert main(sweep) == 0
    records = [read_manifest(Path("s", name)) for name in ("ctf-oracle", "ctf-noop")]
    secrets = {record["sessions"][0]["options"]["secret"] for record in records}
    assert len(secrets) == 1 and len(secrets.pop()) == 16
    assert main([*sweep, "--epochs", "2"]) == 0
    assert main(["run", "--locked", "s/ctf-oracle", "--out", "again", "--quiet"]) == 0
    assert main(["resume", "s/ctf-oracle", "--epochs", "3", "--quiet"]) == 0
    replay = ["run", "ctf", "--agent", "replay", "--recording", "s/ctf-oracle", "--task", "blanks"]
    assert main([*replay, "--out", "replayed", "--quiet"]) == 0
    assert read_runs([Path("replayed")])[0].outcomes[0].success


def test_every_agent_with_every_model_everywhere(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = ["--agent", "oracle", "try-again", "single-turn"]
    command = ["sweep", "bash=tasks.json", "python", *agents, *models(server, "a", "b")]
    assert main([*command, "--limit", "2", "--out", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    where = {(run["where"], run["agent"]) for run in found["runs"]}
    speaking = [f"{a} (openai-compatible/{m})" for a in ("try-again", "single-turn") for m in "ab"]
    assert {agent for _, agent in where} == {"oracle", *speaking}
    assert len(where) == found["planned"] == 10
    rates = {(r["where"], r["agent"]): r["statistics"]["success_rate"] for r in found["runs"]}
    assert {rate for (_, agent), rate in rates.items() if agent == "oracle"} == {1.0}
    assert {rate for (place, _), rate in rates.items() if place.startswith("bash")} == {1.0}
    names = {path.name for path in Path("all").iterdir()}
    assert {"bash-tasks-try-again-a", "python-single-turn-b", "python-oracle"} <= names
    options = read_manifest(Path("all/bash-tasks-oracle"))["sessions"][0]["options"]
    assert "base_url" not in options and options["agent"] == "oracle"
    locked = ["--trust", "--locked", "all/bash-tasks-try-again-a"]
    assert main(["run", *locked, "--base-url", server.url, "--out", "again"]) == 0


def test_a_budget_is_for_all_and_the_same_command_goes_on(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", "bash=tasks.json", "--agent", "try-again", *models(server, "a", "b")]
    server.exchanges.clear()
    assert main([*command, "--out", "free", "--quiet"]) == 0
    limit = used(server) * 3 // 4  # enough for either model alone
    server.exchanges.clear()
    assert main([*command, "--out", "all", "--max-tokens", str(limit)]) == 1
    assert 0 < (first := used(server)) <= limit
    told = capsys.readouterr().out
    assert "the rest of the budget is too small" in told and "\nmodel: " in told
    assert "resume with the same command and --out all" in told
    server.exchanges.clear()
    assert main([*command, "--out", "all", "--max-tokens", str(limit), "--quiet"]) == 1
    assert first + used(server) <= limit, "what was spent before counts"
    assert main([*command, "--out", "all", "--quiet"]) == 0
    for run in Path("all").iterdir():
        done = [e for e in read_episodes(run / "episodes.jsonl") if e.status != "error"]
        assert sorted(episode.task_id for episode in done) == ["t0", "t1", "t2"]
        assert all(episode.success for episode in done)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["bash", "--agent", "oracle", "--model", "openai/x"], "none is a language model"),
        (["bash", "--agent", "oracle", "react"], "needs --model"),
        (["bash", "bash", "--agent", "oracle"], "bash-oracle"),
        (["bash", "nowhere", "--agent", "oracle"], "no environment 'nowhere'"),
        (["bash", "sql=nothing.json", "--agent", "oracle"], "nothing.json"),
        (["bash", "--agent", "oracle", "nobody"], "nobody"),
        (["bash", "--agent", "oracle", "react", "--model", "gpt"], "PROVIDER/NAME"),
    ],
)
def test_refused_before_anything_runs(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *options, "--out", "all"]) == 2
    assert told in capsys.readouterr().err
    assert not Path("all").exists()


def test_an_interrupt_in_a_runs_last_episode_begins_no_other_run() -> None:
    Path("one.json").write_text(json.dumps(TASKS[:1]))
    Path("agent.py").write_text(SLOW)
    agents = ["--agent", "agent.py:Slow", "noop", "--out", "all"]
    sweep = command("sweep", "bash=one.json", *agents)
    with subprocess.Popen(sweep, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert eventually(Path("acting").exists)
        child.send_signal(signal.SIGINT)
        while "interrupted: waiting for" not in (line := child.stderr.readline()) and line:
            pass
        Path("go").touch()
        child.stderr.read()
    assert child.returncode == 130
    assert len(Path("all/bash-one-agent.py-Slow/episodes.jsonl").read_text().splitlines()) == 1
    assert not Path("all/bash-one-noop").exists()
    assert main(["sweep", "bash=one.json", *agents, "--json"]) == 0
    assert len(read_manifest(Path("all/bash-one-agent.py-Slow"))["sessions"]) == 2
