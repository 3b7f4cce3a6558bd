"""The hard tasks: gold solves them, twice; doing nothing and mistakes that look right do not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

import intercode
from intercode import datasets
from intercode.datasets import builtin
from intercode.errors import TaskError
from intercode.task import Task

from .python_tasks import attempt

SIZES = {"bash": 20, "python": 10}
"""Environment → how many hard tasks it has at least."""
TASKS = {env: datasets.load(f"{env}-hard") for env in SIZES}
every_task = pytest.mark.parametrize(
    ("env", "task"),
    [(env, task) for env, tasks in TASKS.items() for task in tasks],
    ids=lambda value: getattr(value, "task_id", ""),
    indirect=["env"],
)


@pytest.fixture(scope="module")
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    with intercode.make(request.param, data=TASKS[request.param]) as env:
        yield env


@every_task
def test_every_gold_solves_it_twice(env: Any, task: Task) -> None:
    for _ in range(2):
        assert attempt(env, task.task_id, task.gold[0]) == 1.0, env.episode.score


@every_task
def test_doing_nothing_does_not(env: Any, task: Task) -> None:
    assert attempt(env, task.task_id) < 1.0


@every_task
def test_three_mistakes_do_not(env: Any, task: Task) -> None:
    wrong = set(task.metadata["wrong"])
    assert len(wrong) >= 3
    for mistake in wrong:
        assert attempt(env, task.task_id, mistake) < 1.0, mistake


@every_task
def test_it_says_what_makes_it_hard(env: Any, task: Task) -> None:
    assert task.tags[0] == "hard"
    assert task.metadata["hard"].endswith(".")


@pytest.mark.parametrize("name", TASKS)
def test_there_are_enough(name: str) -> None:
    assert len(TASKS[name]) >= SIZES[name]
    assert len({task.query for task in TASKS[name]}) == len(TASKS[name])


def test_bash_tasks_do_not_say_where_to_look() -> None:
    for task in TASKS["bash"]:
        assert "/srv" not in task.query
        assert "/var" not in task.query
        assert "/etc" not in task.query


@pytest.mark.parametrize("task", TASKS["python"], ids=lambda task: task.task_id)
def test_it_is_python_from_3_8(task: Task) -> None:
    sources = [*task.gold, *task.tests, *task.metadata["wrong"]]
    sources += [text for path, text in task.files.items() if path.endswith(".py")]
    for source in sources:
        ast.parse(source, feature_version=(3, 8))


def test_an_environment_without_a_file_has_none() -> None:
    with pytest.raises(TaskError, match="hard_ctf"):
        builtin.load_hard("ctf")
