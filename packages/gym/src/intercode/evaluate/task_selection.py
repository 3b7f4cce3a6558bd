"""Selected and excluded tasks, with a reason for each exclusion.

`select_tasks` selects tasks of a dataset by ids, limit and exclusion list. A person, or the command
``intercode validate``, writes an exclusion list to a file. In JSON, the list also states its
dataset, its date and the version of InterCode. In plain text, each line has a task's id and, if
any, the reason; a line that begins with ``#`` is a comment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from intercode import __version__
from intercode.errors import RecordWriteError, UsageError
from intercode.rewards.swe_plan import task_name_problem
from intercode.task import CANNOT, Dataset, Task
from intercode_sandbox.units import format_names

FORMAT = 1
_NO_REASON = "no reason given"


@dataclass(frozen=True, slots=True)
class ExcludedTasks:
    """Excluded tasks with their reasons."""

    tasks: Mapping[str, str]
    """Task id → reason."""
    dataset: str = ""
    """The name of the list's dataset; empty if the list does not state it."""
    digest: str = ""
    """The digest of the list's dataset."""
    intercode: str = ""
    """The version of InterCode that wrote the list."""
    date: str = ""
    format: int = field(default=FORMAT)

    @classmethod
    def from_tasks(cls, dataset: Dataset, tasks: Mapping[str, str]) -> ExcludedTasks:
        """Make an exclusion list for a dataset, dated with the current time."""
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(dict(tasks), dataset.name, dataset.digest, __version__, date)

    def check(self, dataset: Dataset) -> str:
        """Check that the list belongs to a dataset.

        Returns:
            A warning if the list belongs to another version of the tasks; otherwise an empty text.

        Raises:
            UsageError: The list names tasks that the dataset does not have.
        """
        task_ids = {task.task_id for task in dataset}
        if unknown_ids := [task_id for task_id in self.tasks if task_id not in task_ids]:
            raise UsageError(
                f"the exclusion list names tasks that are not in {dataset.name}: "
                f"{format_names(unknown_ids, 5)}"
            )
        if self.digest and self.digest != dataset.digest:
            return (
                f"the exclusion list was made for {self.dataset} ({self.digest[:8]}), "
                f"and this is {dataset.name} ({dataset.digest[:8]}): validate it again"
            )
        return ""

    def write(self, path: Path) -> None:
        """Write the list as JSON.

        Raises:
            RecordWriteError: The file cannot be written.
        """
        try:
            path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="ascii")
        except OSError as error:
            raise RecordWriteError(f"cannot write {path}: {error.strerror}") from error


def read_exclusion(path: Path) -> ExcludedTasks:
    """Read a list from a file: JSON if the text starts with a brace, else plain text.

    Raises:
        UsageError: The file cannot be read, or is malformed; the message gives the position.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return _from_json(path, text) if text.lstrip().startswith("{") else _from_lines(path, text)


def ungradable_tasks(dataset: Dataset) -> dict[str, str]:
    """Return the tasks that cannot be graded: task id → reason.

    The reason is a mark in the task's metadata, or a test whose name is impossible.
    """
    reasons = ((task.task_id, task.metadata.get(CANNOT)) for task in dataset)
    stated_reasons = {task_id: str(reason) for task_id, reason in reasons if reason is not None}
    return {**tasks_with_odd_tests(dataset), **stated_reasons}


def tasks_with_odd_tests(dataset: Dataset) -> dict[str, str]:
    """Return the repository tasks with an impossible test name, and the reason for each."""
    tasks = (task for task in dataset if "FAIL_TO_PASS" in task.metadata)
    return {task.task_id: reason for task in tasks if (reason := task_name_problem(task))}


def select_tasks(
    dataset: Dataset,
    ids: Sequence[str] | None,
    limit: int | None,
    exclude: Collection[str] = (),
) -> list[Task]:
    """Return the selected tasks that are not excluded, in the dataset's order.

    Args:
        dataset: The dataset.
        ids: Ids of the tasks to select; None or empty: all tasks.
        limit: Maximum number of tasks, at least 1; None: unlimited.
        exclude: Ids of excluded tasks, or a mapping from ids to reasons.

    Raises:
        TaskNotFoundError: An id is unknown.
        UsageError: The limit is below 1, or no task remains.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    if ids:
        selected_ids = {dataset.by_id(task_id).task_id for task_id in ids}
        selected_tasks = [task for task in dataset if task.task_id in selected_ids]
    else:
        selected_tasks = list(dataset)
    if not selected_tasks:
        raise UsageError(f"the dataset {dataset.source or dataset.name} has no tasks")
    selected_tasks = [task for task in selected_tasks if task.task_id not in exclude]
    if not selected_tasks:
        reason = next(iter(exclude.values())) if isinstance(exclude, Mapping) else ""
        reason_text = f": {reason}" if reason and len(exclude) == 1 else ""
        raise UsageError(f"all requested tasks are excluded{reason_text}")
    return selected_tasks[:limit]


def _from_json(path: Path, text: str) -> ExcludedTasks:
    try:
        document: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    if document.get("format", FORMAT) != FORMAT:
        raise UsageError(
            f"{path}: format {document['format']!r}, which this version does not support"
        )
    tasks = document.get("tasks")
    if not isinstance(tasks, dict) or not all(isinstance(reason, str) for reason in tasks.values()):
        raise UsageError(f"{path}: field 'tasks' must be an object, task id → reason")
    facts = {name: document.get(name, "") for name in ("dataset", "digest", "intercode", "date")}
    if malformed_fields := [name for name, value in facts.items() if not isinstance(value, str)]:
        raise UsageError(f"{path}: field {malformed_fields[0]!r} must be text")
    return ExcludedTasks(tasks, **facts)


def _from_lines(path: Path, text: str) -> ExcludedTasks:
    tasks: dict[str, str] = {}
    for line_number, line in enumerate(text.split("\n"), 1):
        words = line.strip().split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        if words[0] in tasks:
            raise UsageError(f"{path}: line {line_number}: {words[0]!r} is listed twice")
        tasks[words[0]] = words[1] if len(words) > 1 else _NO_REASON
    return ExcludedTasks(tasks)
