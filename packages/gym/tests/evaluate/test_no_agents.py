"""Factories and agents that no task can be tried with: refused once, not for each episode."""

from __future__ import annotations

from typing import Any

import pytest

from intercode.errors import UsageError
from intercode.evaluate import evaluate
from intercode.task import Task

from .fakes import Factory, dataset


class NeitherMethod:
    def __init__(self, task: Task) -> None:
        pass


class WithoutTask:
    def act(self, observation: str, history: object) -> str:
        return "submit"


class ActsAlone:
    def __init__(self, task: Task) -> None:
        pass

    def act(self, observation: str) -> str:
        return "submit"


class ActsAsync:
    def __init__(self, task: Task) -> None:
        pass

    async def act(self, observation: str, history: object) -> str:
        return "submit"


async def made_async(task: Task) -> None:
    pass


@pytest.mark.parametrize(
    ("factory", "refusal", "resets"),
    [
        (NeitherMethod, r"an agent has act\(\) or run\(\): NeitherMethod has neither", 1),
        (lambda task: None, r"an agent has act\(\) or run\(\): NoneType has neither", 1),
        (lambda task: NeitherMethod, r"act\(\) or run\(\): NeitherMethod has neither", 1),
        (lambda task: ActsAlone(task), r"ActsAlone.act takes other arguments: .* act\(obs", 1),
        (lambda task: ActsAsync(task), r"ActsAsync.act is async: an agent has a plain act", 1),
        (WithoutTask, "WithoutTask has to take one argument, the task", 0),
        (made_async, "made_async is async", 0),
        (7, "agent must be a name or a factory of agents, not 7", 0),
    ],
)
def test_what_is_no_agent_for_any_task_ends_the_run(
    factory: Any, refusal: str, resets: int
) -> None:
    tasks = dataset(3)
    envs = Factory(tasks)
    with pytest.raises(UsageError, match=refusal):
        evaluate(tasks, factory, envs, workers=1)
    assert len(envs.made) == resets
