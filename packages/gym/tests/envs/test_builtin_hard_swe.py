"""The hard SWE tasks: gold and a second patch solve them; neither doing nothing nor mistakes do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from intercode import datasets
from intercode.envs.swe import SweEnv, apply_patch
from intercode.task import Task

from .test_builtin_swe import lines, score

TASKS = datasets.load("swe-hard")
SECOND: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "second_solutions" / "swe-hard.json").read_text(encoding="utf-8")
)
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[SweEnv]:
    env = SweEnv(TASKS)
    yield env
    env.close()


@every_task
def test_gold_and_a_second_patch_solve_it(env: SweEnv, task: Task) -> None:
    for actions in (env.solution(task)[:-1], SECOND[task.task_id]):
        solved = score(env, task, *actions)
        assert solved.value == 1.0, solved.detail


@every_task
def test_without_a_fix_the_issue_is_there_and_all_else_works(env: SweEnv, task: Task) -> None:
    undone = score(env, task)
    assert undone.value == 0.0
    assert undone.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}, undone.detail
    assert len(task.metadata["FAIL_TO_PASS"]) >= 5
    assert len(task.metadata["PASS_TO_PASS"]) >= 5


@every_task
def test_three_mistakes_do_not(env: SweEnv, task: Task) -> None:
    wrong = task.metadata["wrong"]
    assert len(set(wrong)) >= 3
    for patch in wrong:
        tried = score(env, task, apply_patch(patch))
        assert tried.value < 1.0, patch
        assert "error" not in tried.detail, tried.detail


@every_task
def test_no_test_of_the_issue_is_to_be_seen(env: SweEnv, task: Task) -> None:
    env.reset(options={"task_id": task.task_id})
    assert env.step("git status --porcelain")[0] == ""
    assert env.step("git rev-list --all")[0].split() == env.step("git rev-parse HEAD")[0].split()
    added = {line[1:] for line in lines(task.metadata["test_patch"], "+") if line[1:].strip()}
    there = set(env.step("git grep -h ''")[0].splitlines())
    assert len(added - there) > len(added) / 2
    for name in task.metadata["FAIL_TO_PASS"]:
        method = name.rpartition(".")[2]
        assert not env.step(f"git grep -w {method}")[0], name


def test_there_are_several_tasks_over_each_repository() -> None:
    assert len(TASKS) == len({task.query for task in TASKS}) >= 10
    assert min(Counter(task.metadata["repository"] for task in TASKS).values()) >= 3
    assert all(task.metadata["hard"] for task in TASKS)
    assert SECOND.keys() == {task.task_id for task in TASKS}
