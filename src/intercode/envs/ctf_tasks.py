"""Which CTF tasks an environment takes."""

from __future__ import annotations

from intercode.errors import TaskError
from intercode.rewards.flag import subtasks
from intercode.task import Dataset

NETWORK = "network"
"""The tag of tasks that need the outside network."""


def offline(tasks: Dataset) -> Dataset:
    """The tasks that can be solved without the network.

    Raises:
        TaskError: There are none.
    """
    kept = tasks.filter(lambda task: NETWORK not in task.tags)
    if tasks and not kept:
        raise TaskError(f"dataset {tasks.name!r}: all {len(tasks)} tasks need the network")
    return kept


def check(tasks: Dataset) -> None:
    """Refuse tasks that cannot be solved, or not as they say.

    Raises:
        TaskError: It names the task and what is wrong with it.
    """
    for row, task in enumerate(tasks):
        if not task.gold:
            raise TaskError(
                f"{tasks.source or tasks.name}: row {row}, task {task.task_id!r} has no flag "
                f"under 'gold'"
            )
        subtasks(task)
        solution = task.metadata.get("solution", [])
        if not isinstance(solution, list) or not all(isinstance(part, str) for part in solution):
            raise TaskError(f"task {task.task_id!r}: 'metadata.solution' must be a list of texts")
