"""Hard tasks: exploration, misleading data, faults behind faults; ``builtin/hard_ENV.json``."""

from __future__ import annotations

from intercode.datasets.builtin import DATABASES, FOLDER
from intercode.datasets.files import load_file
from intercode.datasets.shared import seen, shared
from intercode.task import Dataset


@shared
def load(env: str) -> Dataset:
    """Load the hard tasks of an environment.

    Args:
        env: ``bash``, ``python``, ``sql`` or ``swe``: any that has a file ``hard_ENV.json``.

    Raises:
        TaskError: It has none.
    """
    tasks = load_file(seen(FOLDER) / f"hard_{env}.json")
    return Dataset(tasks, f"{env}-hard", str(FOLDER), str(DATABASES) if env == "sql" else None)


def load_bash() -> Dataset:
    """Load the hard tasks for Bash."""
    return load("bash")


def load_sql() -> Dataset:
    """Load the hard tasks for SQL, with their databases."""
    return load("sql")


def load_python() -> Dataset:
    """Load the hard tasks for Python."""
    return load("python")


def load_swe() -> Dataset:
    """Load the hard SWE tasks, with their repositories."""
    return load("swe")
