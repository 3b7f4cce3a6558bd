"""A second solution for each bundled task, by people and models who saw only its words.

They were written with a terminal and without gold, tests or verification, by another way where
there is one. A task that refuses one of them asks for more than its words say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import intercode
from intercode.agents.base import Agent
from intercode.agents.builtin import ScriptedAgent
from intercode.episode import Turn
from intercode.evaluate import evaluate
from intercode.task import Task

SOLUTIONS = Path(__file__).parents[1] / "second_solutions"
DATASETS = sorted(path.stem for path in SOLUTIONS.glob("*.json"))
"""Names of bundled datasets: environments, and ENV-hard."""


class Printed:
    """Plays actions, and submits what the last one printed: the flag."""

    def __init__(self, actions: list[str]) -> None:
        self._actions = iter(actions)

    def act(self, observation: str, history: list[Turn]) -> str:
        return next(self._actions, f"submit {observation.strip()}")


def test_every_dataset_has_some() -> None:
    assert {"bash", "sql", "python", "ctf", "swe", "bash-hard", "python-hard"} <= set(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_every_second_solution_is_worth_all(name: str) -> None:
    env = name.partition("-")[0]
    solutions = json.loads((SOLUTIONS / f"{name}.json").read_text())
    tasks = intercode.load_dataset(name)
    assert solutions.keys() == {task.task_id for task in tasks}

    def agent(task: Task) -> Agent:
        actions = solutions[task.task_id]
        return Printed(actions) if env == "ctf" else ScriptedAgent(actions)

    result = evaluate(
        tasks, agent, lambda: intercode.make(env, data=tasks, max_turns=100).unwrapped, workers=2
    )
    refused = {
        outcome.task_id: (outcome.reward, outcome.error)
        for outcome in result.outcomes
        if not outcome.success
    }
    assert refused == {}
