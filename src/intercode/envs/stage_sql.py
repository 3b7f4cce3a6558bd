"""Where SQL tasks are tried: sessions with a database of their own."""

from __future__ import annotations

from pathlib import Path

from intercode.databases.base import Engine, Role, Session
from intercode.databases.source import Source, find
from intercode.errors import TaskError
from intercode.sandbox.base import Limits
from intercode.sandbox.images import hide
from intercode.task import Dataset, Task

SETUP_TIMEOUT = 120.0
"""Seconds that a task's setup may take."""


class DatabaseStage:
    """Opens sessions for tasks; the agent's and the grader's come out alike.

    Args:
        engine: Where the databases run.
        dataset: The tasks; it says where their databases are, if `databases` does not.
        databases: The folder or file that holds the databases (see `intercode.databases.find`).
        limits: What a session may use; None: the defaults.

    Raises:
        TaskError: It is not said where the databases are.
    """

    def __init__(
        self,
        engine: Engine,
        dataset: Dataset,
        databases: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.engine = engine
        self._limits = limits
        self._place = _place(dataset, databases)
        hide(self._place)
        self._sources: dict[str | None, Source] = {}

    def source(self, task: Task) -> Source:
        """What the task's database holds.

        Raises:
            TaskError: There is no such database; it names the task.
        """
        if task.db not in self._sources:
            try:
                self._sources[task.db] = find(self._place, task.db)
            except TaskError as error:
                raise TaskError(f"task {task.task_id!r}: {error}") from None
        return self._sources[task.db]

    def image(self, task: Task) -> str:
        """The database's name."""
        return self.source(task).name

    def digest(self, task: Task) -> str:
        """What identifies its content."""
        return self.source(task).digest

    def changed(self, task: Task, place: Session) -> bool:
        """Never: every session begins with a pristine copy."""
        return False

    def check(self, task: Task) -> None:
        """Refuse a task that cannot be tried here, before anything starts.

        Raises:
            TaskError: Its database is not there, or it has what no SQL task has.
        """
        for field in ("files", "verification", "image", "tests"):
            if getattr(task, field):
                raise TaskError(f"task {task.task_id!r}, field {field!r}: no part of an SQL task")
        self.source(task)

    def start(self, task: Task, role: Role = "agent") -> Session:
        """A session with a pristine database, in which the task's setup has run.

        Raises:
            TaskError: The database cannot be had, or the setup failed.
            DatabaseError: The engine failed.
        """
        return self.open(task, self.source(task), role)

    def open(self, task: Task, source: Source, role: Role = "agent") -> Session:
        """As `start`, with another source's content."""
        session = self.engine.open(source, self._limits, role)
        if task.setup is None:
            return session
        try:
            failure = session.execute(task.setup, timeout=SETUP_TIMEOUT, max_rows=0).failure
        except BaseException:
            session.close()
            raise
        if failure is not None:
            session.close()
            raise TaskError(f"task {task.task_id!r}: setup failed: {failure.message}")
        return session


def _place(dataset: Dataset, databases: str | Path | None) -> Path:
    if databases is not None:
        return Path(databases)
    if dataset.databases is not None:
        return Path(dataset.databases)
    if dataset.source is not None:
        source = Path(dataset.source)
        return source if source.is_dir() else source.parent
    raise TaskError(f"dataset {dataset.name!r}: say where its databases are (databases=…)")
