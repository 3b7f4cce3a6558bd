"""The 2023 SQL environment as a class: ``reset(index)``, and a ``step`` that returns four."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intercode.episode import Score
from intercode.errors import EnvironmentStateError, RewardError, TaskError, TaskNotFoundError
from intercode.paper.sql_connection import ERROR, Connection, Databases
from intercode.paper.sql_reward import Answer, Version, score
from intercode.task import Task


class PaperSqlEnv:
    """One agent's environment. Agent and gold share its connection, and nothing is ever undone.

    The reward of an action is 0; ``submit`` gives the reward and says "done", but one may go on:
    the 2023 experiments stepped an action, then ``submit``, in every turn.

    Args:
        databases: The databases; closed by whoever opened them.
        tasks: The tasks, by row.
        version: Which of the rewards: the released one, or one before it.
    """

    def __init__(
        self, databases: Databases, tasks: Sequence[Task], version: Version = "released"
    ) -> None:
        self._databases = databases
        self._tasks = tasks
        self._version = version
        self._next = 0
        self._connection: Connection | None = None
        self.task: Task | None = None
        self.observation: Answer = None
        """Rows, as a list of tuples; or a text, or None, as 2023 had it."""
        self.reward: float | None = None
        self.info: dict[str, Any] = {}
        self.trajectory: list[tuple[str, Answer]] = []

    def reset(self, index: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode: in the task's database, as it was left.

        Args:
            index: The task's row; None is the next one, in order and round again.

        Raises:
            TaskNotFoundError: There is no such row.
            TaskError: Its database is not there.
            DatabaseError: The server failed.
        """
        row = self._next % max(1, len(self._tasks)) if index is None else index
        if not 0 <= row < len(self._tasks):
            raise TaskNotFoundError(f"no task has the index {row}: there are {len(self._tasks)}")
        self._next = row + 1
        self.task = task = self._tasks[row]
        if task.db is None:
            raise TaskError(f"task {task.task_id!r}: field 'db' is missing")
        if self._connection is None:
            self._connection = self._databases.connect()
        self._connection.use(task.db)
        self.observation, self.reward = task.query, None
        self.info, self.trajectory = {}, []
        return task.query, self.info

    def step(self, action: str) -> tuple[Answer, float, bool, dict[str, Any]]:
        """Take an action.

        Returns:
            The observation, the reward, whether the episode is over, and ``info``.

        Raises:
            EnvironmentStateError: There was no `reset`.
            RewardError: The task has no gold.
            DatabaseError: The server failed.
        """
        if self._connection is None or self.task is None:
            raise EnvironmentStateError("step() before reset()")
        if action == "skip":
            self.reward = 0.0
            return self.observation, 0.0, True, self.info
        if action.startswith("submit"):
            result = gold_score(self._connection, self.task, self.observation, self._version)
            self.reward, self.info = result.value, dict(result.detail)
            return self.observation, result.value, True, self.info
        self.observation, self.reward = self._connection.execute(action), 0.0
        self.info = {"action_executed": not is_error(self.observation)}
        self.trajectory.append((action, self.observation))
        return self.observation, 0.0, False, self.info

    def close(self) -> None:
        """End the connection. Idempotent."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def gold_score(connection: Connection, task: Task, answer: Answer, version: Version) -> Score:
    """The score of an answer against gold, run now and on the agent's connection.

    Raises:
        RewardError: The task has no gold.
        DatabaseError: The server failed.
    """
    if not task.gold:
        raise RewardError(f"task {task.task_id!r} has no gold")
    return score(answer, connection.execute(task.gold[0]), version)


def is_error(answer: Answer) -> bool:
    """Whether a statement failed."""
    return isinstance(answer, str) and answer.startswith(ERROR)
