"""Gold solves every task, and doing nothing solves none: python -m pytest test_tasks.py."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode import InterCodeEnv, Task

FOLDER = Path(__file__).parent
TASKS = intercode.load_dataset(FOLDER / "tasks.jsonl")

each_task = pytest.mark.parametrize("task", TASKS, ids=[task.task_id for task in TASKS])


@pytest.fixture(scope="module")
def env() -> Iterator[InterCodeEnv[Any]]:
    """The environment of this folder."""
    env = intercode.make(str(FOLDER))
    assert isinstance(env, InterCodeEnv)
    yield env
    env.close()


def reward(env: InterCodeEnv[Any], task: Task, actions: Sequence[str]) -> float:
    """Return the reward of an episode with these actions."""
    env.reset(options={"task_id": task.task_id})
    return max(env.step(action)[1] for action in actions)


@each_task
def test_gold_solves_it(env: InterCodeEnv[Any], task: Task) -> None:
    """The first gold is worth 1.0."""
    assert reward(env, task, env.solution(task)) == 1.0, env.episode.score


@each_task
def test_doing_nothing_does_not(env: InterCodeEnv[Any], task: Task) -> None:
    """To submit at once is worth less."""
    assert reward(env, task, ["submit"]) < 1.0
