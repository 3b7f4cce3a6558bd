"""The starter tasks: gold and a second solution solve them; doing nothing and mistakes do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import intercode
from intercode import datasets
from intercode.databases import DatabaseEngine
from intercode.envs.sql import SqlEnv
from intercode.task import Task

from .python_tasks import attempt

SIZES = {"bash": 25, "sql": 20, "python": 15}
TASKS = {env: datasets.load(f"{env}-starter") for env in SIZES}
every_task = pytest.mark.parametrize(
    ("env", "task"),
    [(env, task) for env, tasks in TASKS.items() for task in tasks],
    ids=lambda value: getattr(value, "task_id", ""),
    indirect=["env"],
)
every_sql_task = pytest.mark.parametrize("task", TASKS["sql"], ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    with intercode.make(request.param, data=TASKS[request.param]) as env:
        yield env


@pytest.fixture(scope="module")
def any_sql(sql_engine: DatabaseEngine) -> Iterator[SqlEnv]:
    with SqlEnv(TASKS["sql"], engine=sql_engine) as env:
        yield env


@every_task
def test_gold_and_a_second_solution_solve_it(env: Any, task: Task) -> None:
    solutions = [*task.gold, *task.metadata["also"]]
    assert len(set(solutions)) >= 2
    for solution in solutions:
        assert attempt(env, task.task_id, solution) == 1.0, (solution, env.episode.score)


@every_task
def test_doing_nothing_does_not(env: Any, task: Task) -> None:
    assert attempt(env, task.task_id) < 1.0


@every_task
def test_three_mistakes_do_not(env: Any, task: Task) -> None:
    wrong = set(task.metadata["wrong"])
    assert len(wrong) >= 3
    for mistake in wrong:
        assert attempt(env, task.task_id, mistake) < 1.0, mistake


@every_sql_task
def test_gold_solves_it_on_every_engine(any_sql: SqlEnv, task: Task) -> None:
    assert attempt(any_sql, task.task_id, task.gold[0]) == 1.0, any_sql.episode.score


@pytest.mark.parametrize("name", SIZES)
def test_there_are_two_parts_without_common_tasks(name: str) -> None:
    tasks = TASKS[name]
    assert len(tasks) == SIZES[name]
    assert Counter(task.metadata["split"] for task in tasks).keys() == {"train", "test"}
    parts = [intercode.load_dataset(f"{name}-starter", split) for split in ("train", "test")]
    assert sum(map(len, parts)) == len(tasks)
    assert min(map(len, parts)) * 3 >= len(tasks)
    texts = [{task.query for task in part} for part in parts]
    golds = [{gold for task in part for gold in task.gold} for part in parts]
    assert not texts[0] & texts[1]
    assert not golds[0] & golds[1]
