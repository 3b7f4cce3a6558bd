"""Every strategy in every environment, against a server that fails now and then."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.talking import KEY, PRICE, model, solver
from evaluate import fakes
from intercode import datasets, make
from intercode.agents import registry
from intercode.envs.swe import apply_patch
from intercode.episode import Episode
from intercode.errors import SandboxClosedError
from intercode.evaluate import evaluate
from intercode.models import Usage
from intercode.records import read_episodes
from intercode.task import Dataset
from intercode_integrations.testing import ScriptedServer, some, usual

STRATEGIES = (
    "single-turn",
    "try-again",
    "try-again-oracle",
    "react",
    "react-zero-shot",
    "plan-solve",
    "plan-solve-refine",
    "plan-solve-refine-oracle",
    "tool-calling",
)
TASKS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(plan=some(0.1, usual()), key=KEY) as running:
        yield running


def first(env: str, count: int) -> Dataset:
    everything = datasets.load(env)
    chosen = {task.task_id for task in list(everything)[:count]}
    return everything.filter(lambda task: task.task_id in chosen)


def gold(env: str, tasks: Dataset) -> dict[str, str]:
    """Task id → the one action that solves it."""
    how = {"ctf": "submit {}".format, "swe": apply_patch}.get(env, str)
    return {task.task_id: how(task.gold[0]) for task in tasks}


def run(env: str, agent: str, server: ScriptedServer, out: Path, **options: Any) -> list[Episode]:
    tasks = first(env, options.pop("count", TASKS))
    server.script = solver(env, list(tasks), gold(env, tasks))
    rewarded = agent.endswith("oracle")
    with options.pop("model", None) or model(server.url, **options) as talks_to:
        evaluate(
            tasks,
            registry.get(agent, model=talks_to),
            lambda: make(env, data=tasks, reward_every_turn=rewarded),
            out=out,
            workers=2,
        )
    return sorted(read_episodes(out / "episodes.jsonl"), key=lambda episode: episode.task_id)


def talks(episodes: list[Episode]) -> list[dict[str, Any]]:
    return [episode.metadata["model"] for episode in episodes]


def taken(episodes: list[Episode]) -> Usage:
    """What the record says that the model took."""
    usages = [(talk["input_tokens"], talk["output_tokens"]) for talk in talks(episodes)]
    return sum((Usage(*tokens) for tokens in usages), Usage())


@pytest.mark.parametrize("env", ["bash", "sql", "python", "ctf", "swe"])
@pytest.mark.parametrize("agent", STRATEGIES)
def test_every_strategy_in_every_environment(
    env: str, agent: str, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    server.exchanges.clear()
    episodes = run(env, agent, server, tmp_path / "run")

    order = [task.task_id for task in first(env, TASKS)]
    right = {name for n, name in enumerate(order) if agent != "single-turn" or n % 2 == 0}
    assert {e.task_id for e in episodes} == set(order)
    assert {e.task_id for e in episodes if e.success} == right
    assert all(e.status == "submitted" and e.error is None for e in episodes)
    invalid = [e.task_id for e in episodes if any(turn.info.get("invalid") for turn in e.turns)]
    assert set(invalid) == (set() if agent.startswith("plan") else set(order[1::2]))

    assert taken(episodes) == server.usage
    cost = sum(talk["cost"] for talk in talks(episodes))
    assert math.isclose(cost, PRICE.compute_cost(server.usage), rel_tol=1e-9)
    check_messages(episodes, server)
    for path in (tmp_path / "run").iterdir():
        assert KEY not in path.read_text()


def check_messages(episodes: list[Episode], server: ScriptedServer) -> None:
    """Every call of the record is one that the server has answered, word for word."""
    answered = [exchange.body["messages"] for exchange in server.exchanges if exchange.answered]
    heard = [[message.get("content") or "" for message in messages] for messages in answered]
    for talk in talks(episodes):
        for call in talk["calls"]:
            heard.remove([talk["messages"][number]["content"] for number in call["sent"]])
            assert talk["messages"][call["reply"]]["role"] == "assistant"
    assert heard == []


@pytest.mark.parametrize("agent", ["try-again", "tool-calling"])
def test_anthropics_protocol(
    agent: str, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.exchanges.clear()
    claude = model(server.root, provider="anthropic")
    episodes = run("bash", agent, server, tmp_path / "run", model=claude)
    assert [episode.success for episode in episodes] == [True, True]
    assert taken(episodes) == server.usage


def test_what_the_server_never_answers_is_an_error(tmp_path: Path) -> None:
    with ScriptedServer(plan=some(0.4, usual())) as server:
        episodes = run("bash", "try-again", server, tmp_path / "run", count=6, retries=0)
        assert taken(episodes) == server.usage
    failed = [episode for episode in episodes if episode.status == "error"]
    assert len(episodes) == 6 and 0 < len(failed) < 6
    for episode in failed:
        assert episode.score is None
        assert episode.metadata["error_type"] == "ModelUnavailableError"
        assert episode.metadata["model"]["calls"][-1]["error"] == "ModelUnavailableError"
    assert all(episode.success for episode in episodes if episode not in failed)


def test_a_wrong_key_is_an_error_that_tells_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    with ScriptedServer(key="another") as server:
        episodes = run("bash", "try-again", server, tmp_path / "run")
    assert {episode.metadata["error_type"] for episode in episodes} == {"ModelAccessError"}
    assert KEY not in json.dumps([episode.to_dict() for episode in episodes])


def test_what_was_said_before_a_sandbox_died_is_kept(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([SandboxClosedError("died"), None, None])
    tasks = fakes.dataset(1)
    server.script = solver("bash", list(tasks), {"t0": "echo 0"})

    def fails(task: str, action: str) -> Exception | None:
        return next(failures) if "echo" in action else None

    factory = fakes.Factory(tasks, fail=fails)
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    server.exchanges.clear()
    with model(server.url) as talks_to:
        (episode,) = evaluate(tasks, registry.get("try-again", model=talks_to), factory).kept
    assert episode.success and episode.metadata["attempts"] == 2
    (earlier,) = episode.metadata["earlier"]
    calls = earlier["calls"] + episode.metadata["model"]["calls"]
    assert sum(call["input_tokens"] for call in calls) == server.usage.input_tokens
    assert len(earlier["calls"]) == 1
