"""Generated tasks for Bash, SQL and Python, unlimited in number, each with gold.

A task is a composition of operations. Its difficulty is the number of operations, and each
operation matters for the result. Kind, seed, difficulty, split and index alone determine a task.
Equal arguments therefore give equal tasks on every machine, and no task depends on earlier tasks::

    from intercode.datasets.generated import load_generated

    data = load_generated("bash", seed=1, difficulty=2, split="train", count=500)
    env = intercode.make("bash", data=data)
    env.reset(index=123_456)  # an index above `count` is valid, too: the tasks have no end

On a command line, the name of the dataset includes the options:
``--data generated-bash:seed=1,difficulty=2,count=500,split=train``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from numbers import Integral
from typing import Any

from intercode.datasets.generated import bash as bash_tasks, python as python_tasks
from intercode.datasets.generated.sampling import (
    SPLITS,
    Family,
    SeededChoices,
    TaskDraft,
    TaskNamePool,
    has_held_out_pair,
)
from intercode.datasets.generated.sql import DATABASES, SqlTaskGenerator, database_name, script
from intercode.errors import TaskError, UsageError
from intercode.task import LOOKS, Dataset, Task
from intercode_sandbox.host_files import atomic_file, cache_root, sha256
from intercode_sandbox.spelling_suggestions import hint_text

__all__ = [
    "KINDS",
    "SPLITS",
    "GeneratedDataset",
    "load_generated",
    "load_bash",
    "load_python",
    "load_sql",
    "task",
]

KINDS = ("bash", "python", "sql")
MAX_DIFFICULTY = 4
"""The highest difficulty, which is the maximum number of operations in a task."""


class GeneratedDataset(Dataset):
    """A dataset of generated tasks.

    The dataset lists its first tasks. All further tasks can be requested by index or id, and are
    then generated.
    """

    def __init__(
        self, make_task: Callable[[int], Task], count: int, name: str, databases: str | None = None
    ) -> None:
        super().__init__(map(make_task, range(count)), name, databases=databases)
        self._make_task = make_task
        self._prefix = self._tasks[0].task_id.rpartition("-")[0]

    def at(self, index: int) -> Task:
        """Return the task at an index, which may be any integer from 0.

        A task beyond the listed tasks is generated.
        """
        known = isinstance(index, bool) or not isinstance(index, Integral) or index < len(self)
        return super().at(index) if known else self._make_task(int(index))

    def by_id(self, task_id: str | int) -> Task:
        """Return the task with an id. A task that the dataset does not list is generated."""
        prefix, _, index = str(task_id).rpartition("-")
        if prefix == self._prefix and re.fullmatch(r"0|[1-9][0-9]*", index):
            return self.at(int(index))
        return super().by_id(task_id)


def load_generated(
    kind: str, *, seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> GeneratedDataset:
    """Return generated tasks.

    Args:
        kind: One of `KINDS`.
        seed: The seed of all tasks, an integer from 0.
        difficulty: The number of operations, from 1 (``compositions``: 2) to 4.
        split: One of `SPLITS`. The tasks of ``validation`` and ``test`` have names and values that
            ``train`` never has. The tasks of ``compositions`` have pairs of operations that
            ``train`` never has.
        count: The number of tasks that the dataset lists, from 1. Further tasks have indices from
            `count`: see `GeneratedDataset.at`.

    Returns:
        The dataset.

    Raises:
        UsageError: An argument is not valid.
        TaskError: The databases for SQL cannot be written to the cache.
    """
    _check(kind, seed, difficulty, split, 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"count must be a whole number from 1, not {count!r}")
    # The databases are checked on each call, because the user may have cleaned the cache.
    databases = _write_databases(seed, split) if kind == "sql" else None
    return _cached_tasks(kind, seed, difficulty, split, count, databases)


def load_bash(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> GeneratedDataset:
    """Load generated tasks for Bash; see `load_generated`."""
    return load_generated("bash", seed=seed, difficulty=difficulty, split=split, count=count)


def load_sql(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> GeneratedDataset:
    """Load generated tasks for SQL; see `load_generated`."""
    return load_generated("sql", seed=seed, difficulty=difficulty, split=split, count=count)


def load_python(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> GeneratedDataset:
    """Load generated tasks for Python; see `load_generated`."""
    return load_generated("python", seed=seed, difficulty=difficulty, split=split, count=count)


def task(
    kind: str, index: int, *, seed: int = 0, difficulty: int = 1, split: str = "train"
) -> Task:
    """Generate a task. A task for SQL needs the databases that `load_generated` writes.

    Args:
        kind: As in `load_generated`.
        index: The index of the task, from 0.
        seed: As in `load_generated`.
        difficulty: As in `load_generated`.
        split: As in `load_generated`.

    Raises:
        UsageError: An argument is not valid.
    """
    _check(kind, seed, difficulty, split, index)
    family: Family = {"bash": bash_tasks.draft, "python": python_tasks.draft}.get(
        kind
    ) or SqlTaskGenerator(seed, split)
    pool = TaskNamePool.from_split(split)

    def belongs_to_split(operations: Sequence[str]) -> bool:
        return has_held_out_pair(kind, operations) == (split == "compositions")

    facts = (kind, seed, difficulty, split, index)
    draw, draft = SeededChoices(*facts), None
    while draft is None:
        draft = family(draw, pool, difficulty, belongs_to_split)
    return _task(facts, draft)


def _task(facts: tuple[str, int, int, str, int], draft: TaskDraft) -> Task:
    kind, seed, difficulty, split, index = facts
    metadata: dict[str, Any] = {
        "split": split,
        "operations": list(draft.operations),
        "wrong": list(draft.wrong_solutions),
    }
    if draft.looks:
        metadata[LOOKS] = list(draft.looks)
    return Task(
        f"{kind}-{split}-{seed}-{difficulty}-{index}",
        draft.query,
        gold=(draft.gold,),
        tags=(f"difficulty {difficulty}", *(("look",) if draft.looks else ())),
        metadata=metadata,
        **draft.fields,
    )


@lru_cache(maxsize=16)
def _cached_tasks(
    kind: str, seed: int, difficulty: int, split: str, count: int, databases: str | None
) -> GeneratedDataset:
    make_task = partial(task, kind, seed=seed, difficulty=difficulty, split=split)
    return GeneratedDataset(make_task, count, f"generated-{kind}", databases)


def _check(kind: str, seed: int, difficulty: int, split: str, index: int) -> None:
    for option, value, choices in (("kind", kind, KINDS), ("split", split, SPLITS)):
        if value not in choices:
            suggestion = hint_text(str(value), choices)
            raise UsageError(f"generated tasks have no {option} {value!r}{suggestion}")
    for option, option_value in (("seed", seed), ("difficulty", difficulty), ("index", index)):
        if isinstance(option_value, bool) or not isinstance(option_value, int) or option_value < 0:
            raise UsageError(f"{option} must be a whole number from 0, not {option_value!r}")
    min_difficulty = 2 if split == "compositions" else 1
    if not min_difficulty <= difficulty <= MAX_DIFFICULTY:
        raise UsageError(
            f"the difficulty of split {split!r} must be {min_difficulty} to {MAX_DIFFICULTY}, "
            f"not {difficulty}"
        )


def _write_databases(seed: int, split: str) -> str:
    """Write the SQL scripts of the databases for a seed and a split to InterCode's cache.

    Returns:
        The folder of the scripts. Its name is the digest of their content.

    Raises:
        TaskError: The folder cannot be written.
    """
    scripts = {
        database_name(database_number): script(seed, split, database_number)
        for database_number in range(DATABASES)
    }
    folder = cache_root() / "generated" / sha256("".join(scripts.values()))[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in scripts.items():
            if not (path := folder / f"{name}.sql").exists():
                with atomic_file(path, parallel=True) as temporary_file:
                    temporary_file.write_text(text, encoding="ascii")
    except OSError as error:
        raise TaskError(f"the databases cannot be written to {folder}: {error.strerror}") from error
    return str(folder)
