"""The reward of CTF tasks: flags, subtasks, and what was submitted."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from intercode.episode import Episode, Turn
from intercode.errors import TaskError
from intercode.rewards.flag import MAX_UNSOLVED_VALUE, SUBMITTED_KEY, FlagReward, is_flag, subtasks
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend

PARTS = [{"name": "user", "answer": "bob"}, {"name": "port", "answer": " 8080 "}]
TASK = Task("t", "q", ("flag{One}", "flag{Two}"))
PARTED = Task("p", "q", ("flag{One}",), metadata={"subtasks": PARTS})


def score(task: Task, *tried: str, answer: str | None = None) -> tuple[float, dict[str, float]]:
    turns = [Turn(f"submit {text}", "", info={SUBMITTED_KEY: text}) for text in tried]
    episode = Episode(task.task_id, task.query, "ctf", turns=turns, answer=answer)
    found = FlagReward()(task, episode, cast(SandboxBackend, None))
    return found.value, dict(found.parts)


@pytest.mark.parametrize("answer", ["flag{One}", "flag{Two}", "  flag{One}\t\n"])
def test_any_accepted_flag(answer: str) -> None:
    assert score(TASK, answer=answer) == (1.0, {"flag": 1.0})


@pytest.mark.parametrize("answer", ["flag{one}", "flag{On", "One", "flag{One} flag{Two}", "", None])
def test_nothing_else(answer: str | None) -> None:
    assert score(TASK, "flag{ONE}", answer=answer) == (0.0, {"flag": 0.0})


def test_what_was_only_printed_is_not_submitted() -> None:
    episode = Episode("t", "q", "ctf", turns=[Turn("echo 'flag{One}'", "flag{One}\n")])
    assert FlagReward()(TASK, episode, cast(SandboxBackend, None)).value == 0.0


def test_subtasks_are_a_part_of_what_the_flag_is_worth() -> None:
    assert score(PARTED) == (0.0, {"flag": 0.0, "subtasks": 0.0})
    assert score(PARTED, "bob", "x", "bob") == (
        MAX_UNSOLVED_VALUE / 2,
        {"flag": 0.0, "subtasks": 0.5},
    )
    assert score(PARTED, "bob", "8080") == (MAX_UNSOLVED_VALUE, {"flag": 0.0, "subtasks": 1.0})
    assert score(PARTED, "bob", answer="8080") == (
        MAX_UNSOLVED_VALUE,
        {"flag": 0.0, "subtasks": 1.0},
    )
    assert score(PARTED, "bob", answer="flag{One}") == (1.0, {"flag": 1.0, "subtasks": 0.5})


@pytest.mark.parametrize(
    "rows",
    ["user", ["user"], [{"name": "a"}], [{"name": "a", "answer": 1}], [PARTS[0], PARTS[0]]],
)
def test_malformed_subtasks(rows: Any) -> None:
    with pytest.raises(TaskError, match=r"task 'x': 'metadata\.subtasks' must be a list"):
        subtasks(Task("x", "q", ("f",), metadata={"subtasks": rows}))


def test_a_task_without_a_flag_cannot_be_scored() -> None:
    with pytest.raises(TaskError, match="field 'gold' is missing"):
        score(Task("x", "q"), answer="")


@given(st.text(min_size=1).filter(str.strip), st.text())
def test_exact_after_trimming(flag: str, answer: str) -> None:
    try:
        task = Task("t", "q", (flag,))
    except TaskError:
        return  # no flag can hold a NUL or half a surrogate pair
    assert is_flag(task, f" {flag}\n")
    assert is_flag(task, answer) == (answer.strip() == flag.strip())
