"""The 2023 semantics behind Gymnasium's interface: ``intercode.make("sql", protocol="paper")``."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from intercode.databases import Source, shared_engine
from intercode.datasets import load
from intercode.envs.base import InterCodeEnv
from intercode.envs.options import Databases, EngineOption, EnvOptions
from intercode.envs.sql import DatabaseStage
from intercode.envs.traits import SQL, Traits
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError, UsageError
from intercode.interpreters.base import Execution
from intercode.paper.sql_connection import Connection
from intercode.paper.sql_engine import EngineDatabases
from intercode.paper.sql_env import gold_score, is_error
from intercode.paper.sql_reward import VERSIONS, Answer, Version
from intercode.task import Dataset, Task


class PaperPlace:
    """The connection in one episode, and what its last action gave."""

    def __init__(self, connection: Connection, task: Task) -> None:
        self.connection = connection
        self.answer: Answer = task.query

    def kill(self) -> None:
        """Nothing runs between actions."""

    def close(self) -> None:
        """Nothing is undone: the next episode finds what this one left."""


class PaperStage:
    """Gives each episode the environment's one connection.

    Args:
        databases: The databases.
        stage: Knows where they are.
    """

    def __init__(self, databases: EngineDatabases, stage: DatabaseStage) -> None:
        self._stage = stage
        self._connection = databases.connect()

    def image(self, task: Task) -> str:
        """The database's name."""
        return self._stage.image(task)

    def digest(self, task: Task) -> str:
        """What identifies its content, before anybody changed it."""
        return self._stage.digest(task)

    def changed(self, task: Task, place: PaperPlace) -> bool:
        """Not asked: an episode finds what the one before it has left."""
        return False

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here.

        Raises:
            TaskError: It has no gold or no database, or has what 2023 knew nothing of.
        """
        for field in ("gold", "db"):
            if not getattr(task, field):
                raise TaskError(f"task {task.task_id!r}, field {field!r}: the paper needs it")
        if task.setup:
            raise TaskError(f"task {task.task_id!r}, field 'setup': 2023 had no such thing")
        self._stage.check(task)

    def start(self, task: Task) -> PaperPlace:
        """The connection, in the task's database."""
        assert task.db is not None  # checked by the environment
        self._connection.use(task.db)
        return PaperPlace(self._connection, task)


class PaperInterpreter:
    """Shows what the 2023 driver gave as Python's text.

    Args:
        place: Where actions run.
    """

    def __init__(self, place: PaperPlace) -> None:
        self._place = place

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; the limit is the protocol's own."""
        began = time.monotonic()
        self._place.answer = answer = self._place.connection.execute(action)
        return Execution(
            str(answer).encode("utf-8", "surrogateescape"),
            ok=not is_error(answer),
            seconds=time.monotonic() - began,
        )

    def close(self) -> None:
        """Nothing to do."""


class PaperSqlOptions(EnvOptions, frozen=True, kw_only=True):
    """The options of `PaperSqlEnv`."""

    engine: EngineOption = "sqlite"
    databases: Databases = None
    version: Annotated[
        Version,
        Meta(
            description="which of the rewards: released, early or first",
            extra={"flag": False, "choices": VERSIONS},
        ),
    ] = "released"


class PaperSqlEnv(InterCodeEnv[PaperPlace]):
    """The 2023 SQL environment: its observations, its reward, and its leaks.

    Agent and gold share one connection, and nothing is restored from episode to episode. What
    another environment does is never seen.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        options: The options, as one value.
        **changes: Single options by their names.

    Raises:
        TaskError: A task has no gold or no database, or has what 2023 knew nothing of.
        UsageError: An option makes no sense.
    """

    name: ClassVar[str] = "sql"
    Options: ClassVar[type[EnvOptions]] = PaperSqlOptions
    traits: Traits = replace(SQL, separable=False)

    def __init__(
        self,
        data: str | Path | Dataset = "sql",
        *,
        options: PaperSqlOptions | None = None,
        **changes: Any,
    ) -> None:
        options = PaperSqlOptions.of(options, changes)
        if (version := options.version) not in VERSIONS:
            raise UsageError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
        tasks, engine = load(data), options.engine
        if isinstance(engine, str):
            engine = shared_engine(engine, sandbox=str(options.sandbox))
        stage = DatabaseStage(engine, tasks, options.databases, options.limits)
        dialect = str(tasks[0].metadata.get("dialect", "mysql")) if tasks else "mysql"
        named = {(task.db or "").lower(): task for task in tasks}

        def find(name: str) -> Source:
            if name.lower() not in named:
                raise TaskError(f"no task has the database {name!r}")
            return stage.source(named[name.lower()])

        def reward(task: Task, episode: Episode, place: PaperPlace) -> Score:
            return gold_score(place.connection, task, place.answer, version)

        self._databases = EngineDatabases(engine, find, dialect, options.limits)
        paper_stage = PaperStage(self._databases, stage)
        for task in tasks:
            paper_stage.check(task)
        super().__init__(tasks, paper_stage, PaperInterpreter, reward, options=options)

    def close(self) -> None:
        """End the episode, and forget what all episodes have left. Idempotent."""
        super().close()
        self._databases.close()

    def _ending(self, action: str) -> Status | None:
        if action == "skip":
            return "skipped"
        return "submitted" if action.startswith("submit") else None
