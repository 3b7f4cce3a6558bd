"""Loaders of the bundled tasks, which were written for InterCode.

The tasks are in files of the folder ``builtin/``. ``ENV_*.json`` has the standard tasks of an
environment. ``hard_ENV.json`` has hard tasks, with exploration, misleading data and several layers
of faults. ``starter_ENV.json`` has easy tasks for small models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import load_file
from intercode.task import Dataset, Task

PREFIX = "builtin:"
"""The prefix by which names of images and repositories refer to files in `FOLDER`."""
FOLDER = Path(__file__).parent / "builtin"
DATABASES = FOLDER / "databases"
SPLITS = ("train", "test")
"""The splits of the starter tasks."""


@cached_loader
def load(env: str = "bash") -> Dataset:
    """Load all standard tasks of an environment, from its files in alphabetical order.

    Args:
        env: An environment with files ``ENV_*.json``: ``bash``, ``python``, ``sql`` or ``swe``.
    """
    files = sorted(track_file(FOLDER).glob(f"{env}_*.json"))
    return _dataset((task for file in files for task in load_file(file)), env)


def load_sql() -> Dataset:
    """Load the standard SQL tasks, with their databases."""
    return load("sql")


def load_python() -> Dataset:
    """Load the standard Python tasks."""
    return load("python")


def load_swe() -> Dataset:
    """Load the standard SWE tasks, with their repositories in the same folder."""
    return load("swe")


@cached_loader
def load_hard(env: str) -> Dataset:
    """Load the hard tasks of an environment.

    Args:
        env: An environment with a file ``hard_ENV.json``: ``bash``, ``python``, ``sql`` or ``swe``.

    Raises:
        TaskError: The environment has no hard tasks.
    """
    return _dataset(load_file(track_file(FOLDER) / f"hard_{env}.json"), env, "-hard")


def load_hard_bash() -> Dataset:
    """Load the hard tasks for Bash."""
    return load_hard("bash")


def load_hard_sql() -> Dataset:
    """Load the hard tasks for SQL, with their databases."""
    return load_hard("sql")


def load_hard_python() -> Dataset:
    """Load the hard tasks for Python."""
    return load_hard("python")


def load_hard_swe() -> Dataset:
    """Load the hard SWE tasks, with their repositories."""
    return load_hard("swe")


@cached_loader
def load_starter(env: str, split: str | None = None) -> Dataset:
    """Load the starter tasks of an environment.

    Args:
        env: ``bash``, ``sql`` or ``python``.
        split: One of `SPLITS`; None: all tasks.

    Raises:
        TaskError: The split does not exist.
    """
    dataset = _dataset(load_file(track_file(FOLDER) / f"starter_{env}.json"), env, "-starter")
    return dataset if split is None else dataset.split(split)


def load_starter_bash(split: str | None = None) -> Dataset:
    """Load the starter tasks for Bash."""
    return load_starter("bash", split)


def load_starter_sql(split: str | None = None) -> Dataset:
    """Load the starter tasks for SQL, with their database."""
    return load_starter("sql", split)


def load_starter_python(split: str | None = None) -> Dataset:
    """Load the starter tasks for Python."""
    return load_starter("python", split)


def _dataset(tasks: Iterable[Task], env: str, suffix: str = "") -> Dataset:
    databases = str(DATABASES) if env == "sql" else None
    return Dataset(tasks, f"{env}{suffix}", str(FOLDER), databases)
