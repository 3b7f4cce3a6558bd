"""Which task comes next: the one that was asked for, or the next of a seeded order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from intercode.errors import UsageError
from intercode.task import Dataset, Task


class TaskOrder:
    """Goes through the tasks in a seeded order, and when all had their turn, in another.

    Args:
        tasks: The tasks.
    """

    def __init__(self, tasks: Dataset) -> None:
        self._tasks = tasks
        self._left: list[int] = []

    def restart(self) -> None:
        """Forget the order: the next task begins another."""
        self._left = []

    def choose(self, options: Mapping[str, Any], draw_seed: Callable[[], int]) -> Task:
        """The task of an episode.

        Args:
            options: Those of `reset`.
            draw_seed: Gives the seed of an order, when one begins.

        Raises:
            TaskNotFoundError: No task has that id.
            UsageError: There is another option than ``task_id``.
        """
        if unknown := sorted(set(options) - {"task_id"}):
            raise UsageError(f"reset knows no option {unknown[0]!r}, only 'task_id'")
        if "task_id" in options:
            return self._tasks.by_id(options["task_id"])
        if not self._left:
            self._left = self._tasks.order(draw_seed())[::-1]
        return self._tasks[self._left.pop()]
