"""Agents are made by a provider that answers for what they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from intercode.agents.builtin import ScriptedAgent
from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.evaluate.agent_setup import (
    PROVIDERS,
    AgentProvider,
    PreparedAgent,
    actors,
    agent_provider,
)
from intercode.records import read_manifest
from intercode.spec import RunSpec

TURNS = 2


class Sayings(AgentProvider):
    """Makes agents named ``say:WORD``, which say it until no turn is left."""

    @classmethod
    def claims(cls, name: str) -> bool:
        return name.startswith("say:")

    def make(self, spec: RunSpec, budget: Any, pace: Any) -> PreparedAgent:
        word = self.name.partition(":")[2]
        if spec.run_options.workers > 1:
            raise UsageError("one at a time")
        return PreparedAgent(
            lambda task: ScriptedAgent([f"echo {word}"] * 9),
            self.name,
            required_options={"max_turns": TURNS},
        )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PROVIDERS._entries, "say", Sayings)
    yield


def test_a_run_asks_the_provider_and_no_other(tmp_path: Any) -> None:
    options = {"env": "bash", "agent": "say:hello", "limit": 1, "out": str(tmp_path / "run")}
    result = evaluate(RunSpec.from_layers(options))
    [outcome] = result.outcomes
    assert (outcome.turns, result.folder and read_manifest(result.folder)["agent"]["name"]) == (
        TURNS,
        "say:hello",
    )
    with pytest.raises(UsageError, match="one at a time"):
        actors(RunSpec.from_layers(options, {"workers": 2}))


def test_the_name_finds_the_provider() -> None:
    calls = {"try-again": True, "oracle": False, "say:x": False}
    assert {name: agent_provider(name).calls_model for name in calls} == calls
    assert isinstance(agent_provider("say:x"), Sayings)


def test_what_an_agent_lacks_is_told_by_its_provider() -> None:
    for agent, said in {
        "replay": "--agent replay needs --recording PATH",
        "predictions": "--agent predictions needs --recording PATH",
        "try-again": "agent try-again needs --model PROVIDER/NAME",
        "orakle": "there is no agent 'orakle'",
    }.items():
        with pytest.raises(UsageError, match=said):
            actors(RunSpec.from_layers({"env": "bash", "agent": agent}))
