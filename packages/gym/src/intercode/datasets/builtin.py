"""The tasks that come with InterCode, written for it: files of ``builtin/``.

``ENV_*.json`` holds an environment's own tasks; ``hard_ENV.json`` hard ones, with exploration,
misleading data, faults behind faults; ``starter_ENV.json`` easy ones, for small models.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import load_file
from intercode.task import Dataset, Task

PREFIX = "builtin:"
"""The prefix of files of `FOLDER` in names of images and repositories."""
FOLDER = Path(__file__).parent / "builtin"
DATABASES = FOLDER / "databases"
SPLITS = ("train", "test")
"""The splits of the starter tasks."""


@cached_loader
def load(env: str = "bash") -> Dataset:
    """Load all bundled tasks of an environment, in the order of their files' names."""
    files = sorted(track_file(FOLDER).glob(f"{env}_*.json"))
    return _dataset((task for file in files for task in load_file(file)), env)


def load_sql() -> Dataset:
    """Load the bundled SQL tasks, with their databases."""
    return load("sql")


def load_python() -> Dataset:
    """Load the bundled Python tasks."""
    return load("python")


def load_swe() -> Dataset:
    """Load the bundled SWE tasks; their repositories lie beside them."""
    return load("swe")


@cached_loader
def load_hard(env: str) -> Dataset:
    """Load the hard tasks of an environment.

    Args:
        env: ``bash``, ``python``, ``sql`` or ``swe``: any that has a file ``hard_ENV.json``.

    Raises:
        TaskError: It has none.
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
        TaskError: There is no such split.
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
