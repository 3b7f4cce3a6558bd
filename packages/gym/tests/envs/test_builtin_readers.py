"""The hard tasks as six readers have solved them, who had the words and a terminal alone.

``hard_readers.jsonl`` has what each of them did, and what it was worth: three for each task. They
are ways to solve it that its author has not thought of, and a few slips.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode import datasets

LINES = Path(__file__).with_name("hard_readers.jsonl").read_text("utf-8").splitlines()
ATTEMPTS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
TASKS = {env: datasets.load(f"{env}-hard") for env in ("bash", "python", "sql", "swe")}
ENVIRONMENTS = {task.task_id: env for env, tasks in TASKS.items() for task in tasks}
SLOW = ("swe", {"ben"})
"""An environment of which only the attempts of some readers are repeated."""


def repeated() -> Iterator[Any]:
    for attempt in ATTEMPTS:
        env = ENVIRONMENTS[attempt["task"]]
        if env != SLOW[0] or attempt["reader"] in SLOW[1]:
            yield pytest.param(env, attempt, id=f"{attempt['task']}-{attempt['reader']}")


@pytest.fixture(scope="module")
def env(request: pytest.FixtureRequest) -> Iterator[Any]:
    with intercode.make(request.param, data=TASKS[request.param], max_turns=20) as env:
        yield env


@pytest.mark.parametrize(("env", "attempt"), [*repeated()], indirect=["env"])
def test_it_is_worth_what_it_was(env: Any, attempt: dict[str, Any]) -> None:
    env.reset(options={"task_id": attempt["task"]})
    for action in attempt["actions"]:
        env.step(action)
    assert env.step("submit")[1] == pytest.approx(attempt["reward"]), env.episode.score


def test_three_have_tried_each_task_and_one_has_solved_it() -> None:
    assert Counter(attempt["task"] for attempt in ATTEMPTS) == dict.fromkeys(ENVIRONMENTS, 3)
    assert {one["task"] for one in ATTEMPTS if one["reward"] == 1.0} == {*ENVIRONMENTS}
