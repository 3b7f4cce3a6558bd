"""The tasks that come with InterCode, written for it: ``builtin/ENV_*.json``."""

from __future__ import annotations

from pathlib import Path

from intercode.datasets.files import load_file
from intercode.datasets.shared import seen, shared
from intercode.task import Dataset

PREFIX = "builtin:"
"""The prefix of files of `FOLDER` in names of images and repositories."""
FOLDER = Path(__file__).parent / "builtin"
DATABASES = FOLDER / "databases"


@shared
def load(env: str = "bash") -> Dataset:
    """Load all bundled tasks of an environment, in the order of their files' names."""
    files = sorted(seen(FOLDER).glob(f"{env}_*.json"))
    tasks = (task for file in files for task in load_file(file))
    return Dataset(tasks, env, str(FOLDER), str(DATABASES) if env == "sql" else None)


def load_sql() -> Dataset:
    """Load the bundled SQL tasks, with their databases."""
    return load("sql")


def load_python() -> Dataset:
    """Load the bundled Python tasks."""
    return load("python")


def load_swe() -> Dataset:
    """Load the bundled SWE tasks; their repositories lie beside them."""
    return load("swe")
