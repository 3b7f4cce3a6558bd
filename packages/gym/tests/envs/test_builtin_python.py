"""The bundled Python tasks: gold solves them, twice; neither doing nothing nor mistakes do."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest

from intercode import datasets
from intercode.envs.python import PythonEnv
from intercode.task import Task

from .python_tasks import attempt, failures

TASKS = datasets.load("python")
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[PythonEnv]:
    env = PythonEnv(TASKS)
    yield env
    env.close()


@every_task
def test_every_gold_solves_it_twice(env: PythonEnv, task: Task) -> None:
    for _ in range(2):
        assert attempt(env, task.task_id, task.gold[0]) == 1.0, failures(env)


@every_task
def test_doing_nothing_is_worth_nothing(env: PythonEnv, task: Task) -> None:
    assert attempt(env, task.task_id) == 0.0


@every_task
def test_three_tempting_mistakes_do_not_solve_it(env: PythonEnv, task: Task) -> None:
    wrong = task.metadata["wrong"]
    assert len({*wrong, *task.gold}) >= 4
    for mistake in wrong:
        assert attempt(env, task.task_id, mistake) < 1.0, mistake


def test_there_are_enough_and_of_all_kinds() -> None:
    kinds = Counter(task.task_id.partition("-")[0] for task in TASKS)
    assert len(TASKS) >= 44
    assert set(kinds) == {"functions", "classes", "debugging", "data"}
    assert min(kinds.values()) >= 10
    assert {task.tags[0] for task in TASKS} == {"easy", "medium", "hard"}
    assert any(task.verification for task in TASKS)


@every_task
def test_it_is_python_from_3_8(task: Task) -> None:
    sources = [*task.gold, *task.tests, *task.metadata["wrong"]]
    sources += [text for path, text in task.files.items() if path.endswith(".py")]
    for source in sources:
        ast.parse(source, feature_version=(3, 8))
