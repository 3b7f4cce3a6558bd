"""Starter tasks: easy ones that a small model can begin with, ``builtin/starter_ENV.json``."""

from __future__ import annotations

from intercode.datasets.builtin import DATABASES, FOLDER
from intercode.datasets.files import load_file
from intercode.datasets.shared import seen, shared
from intercode.task import Dataset

SPLITS = ("train", "test")


@shared
def load(env: str, split: str | None = None) -> Dataset:
    """Load the starter tasks of an environment.

    Args:
        env: ``bash``, ``sql`` or ``python``.
        split: One of `SPLITS`; None: all tasks.

    Raises:
        TaskError: There is no such split.
    """
    tasks = load_file(seen(FOLDER) / f"starter_{env}.json")
    databases = str(DATABASES) if env == "sql" else None
    dataset = Dataset(tasks, f"{env}-starter", str(FOLDER), databases)
    return dataset if split is None else dataset.split(split)


def load_bash(split: str | None = None) -> Dataset:
    """Load the starter tasks for Bash."""
    return load("bash", split)


def load_sql(split: str | None = None) -> Dataset:
    """Load the starter tasks for SQL, with their database."""
    return load("sql", split)


def load_python(split: str | None = None) -> Dataset:
    """Load the starter tasks for Python."""
    return load("python", split)
