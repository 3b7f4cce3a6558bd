"""`skyrl_env.py` as SkyRL makes and steps its environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import skyrl_gym
from recorded import Played, played
from skyrl_gym.envs.registration import deregister, registry

import intercode

PROMPT = [{"role": "user", "content": "of the data's own"}]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    skyrl_gym.register(id="intercode", entry_point="skyrl_env:InterCode")
    assert "intercode" in registry
    yield
    deregister("intercode")


def block(action: str) -> str:
    return f"I try this.\n````bash\n{action}\n````\n"


def rewarded(name: str, one: Played) -> float:
    """Play recorded actions; the sum of the rewards."""
    env: Any = skyrl_gym.make("intercode", extras={"env": name, "task_id": one.task_id})
    try:
        env.init(PROMPT)
        steps = [env.step(block(action)) for action in one.actions]
        seen = [step["observations"][0]["content"] for step in steps]
        assert seen == list(one.observations)
        last = env.step("submit")
        assert last["done"] and last["observations"] == [] and not any(s["done"] for s in steps)
        assert env.get_metrics() == {"success": float(last["reward"] == 1.0), "turns": env.turns}
        return float(last["reward"] + sum(step["reward"] for step in steps))
    finally:
        env.close()


@pytest.mark.parametrize("name", ["bash", "sql"])
def test_the_same_rewards(name: str) -> None:
    recorded = played(name)
    assert {one.reward for one in recorded} >= {1.0} and min(one.reward for one in recorded) < 1.0
    assert [rewarded(name, one) for one in recorded] == [one.reward for one in recorded]


def test_the_prompt_and_the_last_turn() -> None:
    task = intercode.load_dataset("bash")[0]
    extras = {"task_id": task.task_id, "max_turns": 2}
    with skyrl_gym.make("intercode", extras=extras) as env:
        messages, info = env.init(PROMPT)
        assert [one["role"] for one in messages] == ["system", "user"]
        assert task.query in messages[1]["content"] and info["turns_left"] == 2
        assert not env.step("pwd")["done"]
        last = env.step(block(task.gold[0]))
        assert last["done"] and last["metadata"]["turns_left"] == 0
        assert env.get_metrics()["turns"] == 2


def test_a_failure_is_not_a_reward() -> None:
    task = intercode.load_dataset("bash")[0]
    with skyrl_gym.make("intercode", extras={"task_id": task.task_id}) as env:
        env.init(PROMPT)
        env.env.unwrapped.workspace.close()
        with pytest.raises(intercode.SandboxError):
            env.step(block("ls"))
