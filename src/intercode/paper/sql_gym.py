"""The 2023 semantics behind Gymnasium's interface: ``intercode.make("sql", protocol="paper")``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from intercode import datasets
from intercode.databases import Engine, Source, shared_engine
from intercode.envs.base import InterCodeEnv
from intercode.envs.stage_sql import DatabaseStage
from intercode.episode import Episode, Score, Status
from intercode.errors import TaskError, UsageError
from intercode.interpreters.base import Execution
from intercode.paper.sql_connection import Connection
from intercode.paper.sql_engine import EngineDatabases
from intercode.paper.sql_env import gold_score, is_error
from intercode.paper.sql_reward import VERSIONS, Answer, Version
from intercode.sandbox.base import Limits
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


class PaperSqlEnv(InterCodeEnv[PaperPlace]):
    """The 2023 SQL environment: its observations, its reward, and its leaks.

    Agent and gold share one connection, and nothing is restored from episode to episode. What
    another environment does is never seen.

    Args:
        data: A dataset, a file of tasks, or a dataset's name.
        engine: An engine, its name, or a server's URL.
        databases: The folder or file that holds the tasks' databases (see `SqlEnv`).
        version: Which of the rewards: ``released``, ``early`` or ``first``.
        limits: What a database's session may use; None: the defaults.
        max_turns: As in `InterCodeEnv`.
        reward_every_turn: As in `InterCodeEnv`; the 2023 "Try Again" experiments did.
        render_mode: As in `InterCodeEnv`.
        seed: As in `InterCodeEnv`.

    Raises:
        TaskError: A task has no gold or no database, or has what 2023 knew nothing of.
        UsageError: An option makes no sense.
    """

    name: ClassVar[str] = "sql"

    def __init__(
        self,
        data: str | Path | Dataset = "sql",
        *,
        engine: str | Engine = "sqlite",
        databases: str | Path | None = None,
        version: Version = "released",
        limits: Limits | None = None,
        max_turns: int = 10,
        reward_every_turn: bool = False,
        render_mode: str | None = None,
        seed: int | None = None,
    ) -> None:
        if version not in VERSIONS:
            raise UsageError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
        tasks = datasets.load(data)
        if isinstance(engine, str):
            engine = shared_engine(engine)
        stage = DatabaseStage(engine, tasks, databases, limits)
        dialect = str(tasks[0].metadata.get("dialect", "mysql")) if tasks else "mysql"
        named = {(task.db or "").lower(): task for task in tasks}

        def find(name: str) -> Source:
            if name.lower() not in named:
                raise TaskError(f"no task has the database {name!r}")
            return stage.source(named[name.lower()])

        def reward(task: Task, episode: Episode, place: PaperPlace) -> Score:
            return gold_score(place.connection, task, place.answer, version)

        self._databases = EngineDatabases(engine, find, dialect, limits)
        paper_stage = PaperStage(self._databases, stage)
        for task in tasks:
            paper_stage.check(task)
        super().__init__(
            tasks,
            paper_stage,
            PaperInterpreter,
            reward,
            max_turns=max_turns,
            reward_every_turn=reward_every_turn,
            render_mode=render_mode,
            seed=seed,
        )

    def close(self) -> None:
        """End the episode, and forget what all episodes have left. Idempotent."""
        super().close()
        self._databases.close()

    def _ending(self, action: str) -> Status | None:
        if action == "skip":
            return "skipped"
        return "submitted" if action.startswith("submit") else None
