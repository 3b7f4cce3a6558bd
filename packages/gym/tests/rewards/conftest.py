from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from foreign_sandbox import ForeignProvider
from intercode.databases import DatabaseEngine, get_engine
from intercode.episode import Episode, Score, Status
from intercode.interpreters.bash import BashInterpreter
from intercode.rewards.verification import CommandReward
from intercode.task import Task
from intercode_sandbox import Limits, Provider, SandboxBackend, get_provider
from waiting import PATIENCE

from .sql_store import Store

Grade = Callable[..., Score]


@pytest.fixture(scope="session")
def sqlite_engine() -> Iterator[DatabaseEngine]:
    engine = get_engine("sqlite")
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def store(sqlite_engine: DatabaseEngine, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(sqlite_engine, tmp_path_factory.mktemp("store"))


@pytest.fixture
def grade() -> Grade:
    """Scores the actions of a task's agent, in native sandboxes."""
    return _grade(get_provider())


@pytest.fixture
def grade_anywhere(provider: Provider) -> Grade:
    """The same with every provider: for a few of many cases, which differ in what is left alone."""
    return _grade(provider)


@pytest.fixture
def grade_foreign() -> Grade:
    """The same with sandboxes that have no abilities beside the contract."""
    return _grade(ForeignProvider())


def _grade(provider: Provider) -> Grade:
    def started(task: Task) -> SandboxBackend:
        sandbox = provider.start(task.image or "host", Limits(timeout=PATIENCE))
        if task.setup:
            assert sandbox.exec(["bash", "-c", task.setup]).ok
        return sandbox

    def graded(task: Task, *actions: str, status: Status = "submitted") -> Score:
        with closing(started(task)) as sandbox, closing(BashInterpreter(sandbox)) as shell:
            for action in actions:
                shell.execute(action)
            reward = CommandReward(provider, started)
            return reward(task, Episode("t", "q", "bash", status=status), sandbox)

    return graded
