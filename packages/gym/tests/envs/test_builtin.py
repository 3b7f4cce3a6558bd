"""The bundled tasks: gold solves them, twice; neither doing nothing nor tempting mistakes do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from intercode import datasets
from intercode.envs.bash import BashEnv
from intercode.task import Task

TASKS = datasets.load("bash")
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[BashEnv]:
    env = BashEnv(TASKS)
    yield env
    env.close()


def score(env: BashEnv, task: Task, *actions: str) -> float:
    env.reset(options={"task_id": task.task_id})
    for action in actions:
        env.step(action)
    return env.step("submit")[1]


@every_task
def test_every_gold_solves_it_twice(env: BashEnv, task: Task) -> None:
    assert task.gold
    for gold in task.gold:
        assert [score(env, task, gold) for _ in range(2)] == [1.0, 1.0], env.episode.score


@every_task
def test_doing_nothing_does_not(env: BashEnv, task: Task) -> None:
    assert score(env, task) < 1.0
    assert score(env, task, "true") < 1.0


@every_task
def test_three_tempting_mistakes_do_not(env: BashEnv, task: Task) -> None:
    wrong = task.metadata["wrong"]
    assert len(set(wrong)) >= 3
    for mistake in wrong:
        assert score(env, task, mistake) < 1.0, mistake


def test_there_are_enough_and_of_all_kinds() -> None:
    assert len(TASKS) >= 40
    assert len({task.image for task in TASKS}) >= 3
    assert any(task.verification for task in TASKS)
    assert any(not task.verification for task in TASKS)
