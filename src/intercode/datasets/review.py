"""A review of a dataset's golds: which are wrong, what is right instead, what cannot be graded.

A file with a line for each task that was looked at and has something to say, ``row`` naming it:
``gold`` is ``right`` or ``wrong``, ``golds`` are others, which are as right, and ``tests`` are
further ones; or ``cannot`` says why a right answer cannot be told from a wrong one. ``note`` is for
people. All of it was written for this project; nothing is quoted from the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from intercode.datasets.files import read_rows
from intercode.errors import TaskError
from intercode.task import CANNOT, Task


def apply(task: Task, review: Mapping[str, Any] | None) -> Task:
    """A task with what a review says of it; as it is where that is nothing.

    Raises:
        TaskError: The review is of another task, so of another version of the data.
    """
    if review is None:
        return task
    if review.get("db", task.db) != task.db:
        raise TaskError(
            f"task {task.task_id!r} is over {task.db!r}, but was over {review['db']!r} when it was "
            f"reviewed: this is another version of the data"
        )
    if CANNOT in review:
        return replace(task, metadata={**task.metadata, CANNOT: review[CANNOT]})
    own = task.gold if review["gold"] == "right" else ()
    tests = (*task.tests, *review.get("tests", ()))
    return replace(task, gold=(*own, *review["golds"]), tests=tests)


@cache
def reviews(file: Path) -> Mapping[str, Mapping[str, Any]]:
    """The lines of a review, by their ``row`` as text."""
    return {str(row["row"]): row for _, row in read_rows(file)}
