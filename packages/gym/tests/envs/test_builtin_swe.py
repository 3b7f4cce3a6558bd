"""The bundled SWE tasks: gold solves them, twice; neither doing nothing nor tempting patches do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from intercode import datasets
from intercode.datasets.builtin import FOLDER
from intercode.datasets.files import load_file
from intercode.envs.swe import SweEnv, apply_patch
from intercode.episode import Score
from intercode.task import Dataset, Task

TASKS = datasets.load("swe")
FIXED_LATER = ("swe-duedate", "swe-keepsake", "swe-snapkeep")
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


@pytest.fixture(scope="module")
def env() -> Iterator[SweEnv]:
    env = SweEnv(TASKS)
    yield env
    env.close()


def score(env: SweEnv, task: Task, *actions: str) -> Score:
    """What an episode is worth; every action must do something."""
    env.reset(options={"task_id": task.task_id})
    for action in actions:
        observation, *_, info = env.step(action)
        assert info["ok"], observation
    env.step("submit")
    assert env.episode.score is not None
    return env.episode.score


@every_task
def test_gold_solves_it_twice(env: SweEnv, task: Task) -> None:
    for _ in range(2):
        *actions, last = env.solution(task)
        assert last == "submit"
        solved = score(env, task, *actions)
        assert solved.value == 1.0, solved.detail


@every_task
def test_without_a_fix_the_issue_is_there_and_all_else_works(env: SweEnv, task: Task) -> None:
    undone = score(env, task)
    assert undone.value == 0.0
    assert undone.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}, undone.detail
    assert len(task.metadata["PASS_TO_PASS"]) >= 5


@every_task
def test_tempting_patches_do_not(env: SweEnv, task: Task) -> None:
    wrong = task.metadata["wrong"]
    assert len(set(wrong)) >= 3
    for patch in wrong:
        tried = score(env, task, apply_patch(patch))
        assert tried.value < 1.0, patch
        assert "error" not in tried.detail, tried.detail  # it was tested, and failed for that


@every_task
def test_the_agent_starts_in_a_clean_tree_of_one_commit(env: SweEnv, task: Task) -> None:
    env.reset(options={"task_id": task.task_id})
    look = "git status --porcelain; git rev-list --all --count; git fsck --lost-found"
    assert env.step(look)[0] == "1\n"
    commits = env.step("git cat-file --batch-all-objects --batch-check | grep -c commit")[0]
    assert commits == "1\n"


@every_task
def test_with_its_history_it_starts_at_the_base_commit(task: Task) -> None:
    env = SweEnv(Dataset([task]), history="full")
    env.reset()
    commit = task.metadata["base_commit"]
    assert env.step("git rev-parse HEAD")[0].strip() == commit
    seen = env.step("git log --all --format=%s")[0].splitlines()
    assert len(seen) >= 6
    history = (FOLDER / task.metadata["repository"].partition(":")[2]).read_text(encoding="utf-8")
    later = history.count("\ncommitter ") - len(seen)
    assert (later > 0) == (task.task_id in FIXED_LATER)
    env.close()


@every_task
def test_no_test_of_the_issue_is_to_be_seen(env: SweEnv, task: Task) -> None:
    env.reset(options={"task_id": task.task_id})
    added = {line[1:] for line in lines(task.metadata["test_patch"], "+") if line[1:].strip()}
    there = set(env.step("git grep -h ''")[0].splitlines())
    assert len(added - there) > len(added) / 2
    for name in task.metadata["FAIL_TO_PASS"]:
        file = name.split()[-1] if name.startswith("sh ") else name.rpartition(".")[2]
        assert not env.step(f"ls {file} 2>&- || git grep -w {file}")[0], name


def lines(patch: str, sign: str) -> list[str]:
    return [line for line in patch.splitlines() if line[:1] == sign and line[:3] != 3 * sign]


def test_there_are_enough_and_of_all_kinds() -> None:
    assert len(TASKS) >= 6
    assert {task.metadata["runner"] for task in TASKS} == {"unittest", "command"}
    assert {task.tags[0] for task in TASKS} == {"easy", "medium", "hard"}
    assert sum(patch.count("\ndiff --git ") > 0 for task in TASKS for patch in task.gold) >= 2


def test_a_file_has_one_task_and_its_repository_beside_it() -> None:
    for file in FOLDER.glob("swe_*.json"):
        (task,) = load_file(file)
        assert task.task_id == file.stem.replace("_", "-")
        assert task.metadata["repository"] == f"builtin:{file.stem}.fi"
        assert (FOLDER / f"{file.stem}.fi").is_file()
