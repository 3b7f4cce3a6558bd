"""Generated tasks for Bash, SQL and Python: as many as one wants, each with gold.

A task is a composition of as many operations as its difficulty says, each of which matters. It
follows from kind, seed, difficulty, split and index alone: so the same arguments give the same
tasks on every machine, and any task can be had without those before it::

    from intercode.datasets.generated import generated

    data = generated("bash", seed=1, difficulty=2, split="train", count=500)
    env = intercode.make("bash", data=data)
    env.reset(index=123_456)  # beyond those that are listed: there is no last one

By name: ``--data generated-bash:seed=1,difficulty=2,count=500,split=train``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from numbers import Integral
from typing import Any

from intercode.datasets.generated import bash as bash_tasks, python as python_tasks
from intercode.datasets.generated.draw import SPLITS, Draft, Draw, Family, Pool, held_out
from intercode.datasets.generated.sql import DATABASES, Queries, name_of, script
from intercode.errors import TaskError, UsageError
from intercode.task import LOOKS, Dataset, Task
from intercode_sandbox.files import atomic_file, cache_root, sha256
from intercode_sandbox.suggestions import hint_text

__all__ = [
    "KINDS",
    "SPLITS",
    "Generated",
    "generated",
    "load_bash",
    "load_python",
    "load_sql",
    "task",
]

KINDS = ("bash", "python", "sql")
HARDEST = 4
"""The highest difficulty: the most operations of a task."""


class Generated(Dataset):
    """Generated tasks: those that are listed, and behind them all others, by index or id."""

    def __init__(
        self, make: Callable[[int], Task], count: int, name: str, databases: str | None = None
    ) -> None:
        super().__init__(map(make, range(count)), name, databases=databases)
        self._make = make
        self._prefix = self._tasks[0].task_id.rpartition("-")[0]

    def at(self, index: int) -> Task:
        """The task at an index; there is one for every whole number from 0."""
        known = isinstance(index, bool) or not isinstance(index, Integral) or index < len(self)
        return super().at(index) if known else self._make(int(index))

    def by_id(self, task_id: str | int) -> Task:
        """The task with this id, whether it is listed or not."""
        prefix, _, index = str(task_id).rpartition("-")
        if prefix == self._prefix and re.fullmatch(r"0|[1-9][0-9]*", index):
            return self.at(int(index))
        return super().by_id(task_id)


def generated(
    kind: str, *, seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> Generated:
    """Return generated tasks.

    Args:
        kind: One of `KINDS`.
        seed: Everything follows from it.
        difficulty: The number of operations, from 1 to 4.
        split: ``train``; ``validation`` or ``test``, with names and values of their own; or
            ``compositions``, with pairs of operations that ``train`` never has.
        count: The number of tasks that are listed. There is no last one: see `Generated.at`.

    Raises:
        UsageError: An argument makes no sense.
        TaskError: The databases of SQL cannot be written to the cache.
    """
    _check(kind, seed, difficulty, split, 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"count must be a whole number from 1, not {count!r}")
    # Each time, as the cache may have been cleaned.
    databases = _written(seed, split) if kind == "sql" else None
    return _listed(kind, seed, difficulty, split, count, databases)


def load_bash(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> Generated:
    """Load generated tasks for Bash; see `generated`."""
    return generated("bash", seed=seed, difficulty=difficulty, split=split, count=count)


def load_sql(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> Generated:
    """Load generated tasks for SQL; see `generated`."""
    return generated("sql", seed=seed, difficulty=difficulty, split=split, count=count)


def load_python(
    seed: int = 0, difficulty: int = 1, split: str = "train", count: int = 500
) -> Generated:
    """Load generated tasks for Python; see `generated`."""
    return generated("python", seed=seed, difficulty=difficulty, split=split, count=count)


def task(
    kind: str, index: int, *, seed: int = 0, difficulty: int = 1, split: str = "train"
) -> Task:
    """Return one generated task. One for SQL needs the databases that `generated` writes.

    Args:
        kind: As for `generated`.
        index: Its number, from 0.
        seed: As for `generated`.
        difficulty: As for `generated`.
        split: As for `generated`.

    Raises:
        UsageError: An argument makes no sense.
    """
    _check(kind, seed, difficulty, split, index)
    family: Family = {"bash": bash_tasks.draft, "python": python_tasks.draft}.get(kind) or Queries(
        seed, split
    )
    pool = Pool.of(split)

    def wanted(operations: Sequence[str]) -> bool:
        return held_out(kind, operations) == (split == "compositions")

    facts = (kind, seed, difficulty, split, index)
    draw, found = Draw(*facts), None
    while found is None:
        found = family(draw, pool, difficulty, wanted)
    return _task(facts, found)


def _task(facts: tuple[str, int, int, str, int], found: Draft) -> Task:
    kind, seed, difficulty, split, index = facts
    metadata: dict[str, Any] = {
        "split": split,
        "operations": list(found.operations),
        "wrong": list(found.wrong),
    }
    if found.looks:
        metadata[LOOKS] = list(found.looks)
    return Task(
        f"{kind}-{split}-{seed}-{difficulty}-{index}",
        found.query,
        gold=(found.gold,),
        tags=(f"difficulty {difficulty}", *(("look",) if found.looks else ())),
        metadata=metadata,
        **found.fields,
    )


@lru_cache(maxsize=16)
def _listed(
    kind: str, seed: int, difficulty: int, split: str, count: int, databases: str | None
) -> Generated:
    make = partial(task, kind, seed=seed, difficulty=difficulty, split=split)
    return Generated(make, count, f"generated-{kind}", databases)


def _check(kind: str, seed: int, difficulty: int, split: str, index: int) -> None:
    for said, value, known in (("kind", kind, KINDS), ("split", split, SPLITS)):
        if value not in known:
            near = hint_text(str(value), known)
            raise UsageError(f"generated tasks have no {said} {value!r}{near}")
    for said, number in (("seed", seed), ("difficulty", difficulty), ("index", index)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise UsageError(f"{said} must be a whole number from 0, not {number!r}")
    least = 2 if split == "compositions" else 1
    if not least <= difficulty <= HARDEST:
        raise UsageError(
            f"the difficulty of split {split!r} must be {least} to {HARDEST}, not {difficulty}"
        )


def _written(seed: int, split: str) -> str:
    """Return the folder of databases, whose name tells their content: of no other version."""
    scripts = {name_of(number): script(seed, split, number) for number in range(DATABASES)}
    folder = cache_root() / "generated" / sha256("".join(scripts.values()))[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in scripts.items():
            if not (path := folder / f"{name}.sql").exists():
                with atomic_file(path, parallel=True) as new:
                    new.write_text(text, encoding="ascii")
    except OSError as error:
        raise TaskError(f"the databases cannot be written to {folder}: {error.strerror}") from error
    return str(folder)
