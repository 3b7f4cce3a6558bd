"""The hard SQL tasks: gold and a second solution solve them; doing nothing and mistakes do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from intercode import datasets
from intercode.databases import find, get_engine
from intercode.datasets.builtin import DATABASES
from intercode.envs.sql import SqlEnv
from intercode.rewards.sql import is_guessable
from intercode.task import Task

from .sql_tasks import attempt
from .test_builtin_sql import changes, hardness

TASKS = datasets.load("sql-hard")
SECOND: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "second_solutions" / "sql-hard.json").read_text(encoding="utf-8")
)
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[SqlEnv]:
    with SqlEnv(TASKS) as env:
        yield env


@every_task
def test_gold_and_a_second_solution_solve_it(env: SqlEnv, task: Task) -> None:
    for actions in (task.gold, SECOND[task.task_id]):
        assert attempt(env, task.task_id, *actions) == 1.0, env.episode.score


@every_task
def test_doing_nothing_does_not(env: SqlEnv, task: Task) -> None:
    assert attempt(env, task.task_id) == 0.0
    assert attempt(env, task.task_id, "SELECT 1 WHERE 1 = 0") < 1.0


@every_task
def test_three_mistakes_do_not(env: SqlEnv, task: Task) -> None:
    wrong = task.metadata["wrong"]
    assert len(set(wrong)) >= 3
    for mistake in wrong:
        assert attempt(env, task.task_id, mistake) < 1.0, mistake
        assert env.episode.turns[0].ok, env.episode.turns[0].observation


@every_task
def test_its_hardness_follows_from_gold(task: Task) -> None:
    assert task.metadata["hardness"] == task.tags[0] == hardness(task)
    assert task.metadata["hard"]


def test_no_gold_can_be_guessed() -> None:
    with closing(get_engine("sqlite")) as engine:
        for task in TASKS:
            if not changes(task):
                with closing(engine.open(find(DATABASES, task.db))) as session:
                    result = session.execute(task.gold[0]).results[-1]
                assert not is_guessable(result), task.task_id


def test_there_are_enough_and_of_all_kinds() -> None:
    assert len(TASKS) == len({task.query for task in TASKS}) >= 20
    assert len({task.db for task in TASKS}) >= 2
    assert sum(map(changes, TASKS)) >= 4
    assert SECOND.keys() == {task.task_id for task in TASKS}
