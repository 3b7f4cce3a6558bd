"""The tasks that come with InterCode, written for it: ``builtin/ENV_*.json``; and the starter tasks,
``builtin/starter_ENV.json``, which a small model can begin with."""

from __future__ import annotations

from pathlib import Path

from intercode.datasets.files import load_file
from intercode.datasets.shared import seen, shared
from intercode.task import Dataset

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


@shared
def load_starter(env: str) -> Dataset:
    """Load the starter tasks of an environment: one or two commands each; splits train and test."""
    tasks = load_file(seen(FOLDER) / f"starter_{env}.json")
    return Dataset(tasks, f"{env}-starter", str(FOLDER), str(DATABASES) if env == "sql" else None)


def load_bash_starter() -> Dataset:
    """Load the starter tasks for Bash."""
    return load_starter("bash")


def load_sql_starter() -> Dataset:
    """Load the starter tasks for SQL, with their database."""
    return load_starter("sql")


def load_python_starter() -> Dataset:
    """Load the starter tasks for Python."""
    return load_starter("python")
