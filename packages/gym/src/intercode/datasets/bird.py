"""Loader of BIRD (Li et al. 2023): questions over large and dirty databases, from the user's copy.

The copy has one of three layouts:

- the authors' dev set: ``dev.json``, ``dev_tables.json`` and ``dev_databases/NAME/NAME.sqlite``
  (for the train set, the same names with ``train``);
- the authors' mini-dev: ``mini_dev_sqlite.json`` beside ``dev_tables.json`` and ``dev_databases``;
- the 2023 release of InterCode: ``ic_bird.json`` alone. The release has no databases for BIRD, so
  the caller must pass the authors' folder ``dev_databases`` as `databases`.

Gold is in SQLite's dialect. The authors' difficulty (``simple``, ``moderate``, ``challenging``) is
a tag of the task, and ``metadata["hardness"]``. The authors give external knowledge with many
questions: a sentence that explains values or terms. This knowledge is ``metadata["evidence"]`` and,
by default, a part of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader
from intercode.datasets.files import locate, read_tables, read_tasks
from intercode.errors import TaskError
from intercode.task import Dataset

SPLITS = {
    "dev": ("dev.json", "dev_tables.json", "dev_databases"),
    "mini_dev": ("mini_dev_sqlite.json", "dev_tables.json", "dev_databases"),
    "train": ("train.json", "train_tables.json", "train_databases"),
}
"""Name of a split → the authors' file of tasks, file of tables, and folder of databases."""

_RELEASE = "ic_bird.json"


@cached_loader
def load(
    root: str | Path | None = None,
    split: str = "dev",
    evidence: bool = True,
    databases: str | Path | None = None,
) -> Dataset:
    """Load a split of BIRD. A task's id is the number of its row.

    Args:
        root: A folder that contains one of the layouts, at most three levels deep; None: the folder
            that ``intercode datasets fetch bird`` (or ``bird-mini-dev``) has written.
        split: One of `SPLITS`; for the 2023 release, ``dev``.
        evidence: Whether the query includes the external knowledge, as in BIRD's main setting. The
            2023 release did not include it.
        databases: Another folder with the databases; None: the folder in the layout.

    Returns:
        The dataset.

    Raises:
        TaskError: The split is unknown, absent or malformed.
    """
    if split not in SPLITS:
        raise TaskError(f"BIRD has no split {split!r}; known: {', '.join(SPLITS)}")
    file, tables, folder = SPLITS[split]
    layouts = [(file, folder)] + ([(_RELEASE,)] if split == "dev" else [])
    name = "bird" if split == "dev" else f"bird-{split.replace('_', '-')}"
    dataset_folder, layout = locate(root, name, layouts)
    source = dataset_folder / (_RELEASE if layout == 1 else file)
    schemas = read_tables(dataset_folder / tables) if (dataset_folder / tables).is_file() else {}
    tasks = read_tasks(source, lambda row, index: _fields(row, index, schemas, evidence))
    database_path = databases or (dataset_folder / folder if layout == 0 else None)
    return Dataset(tasks, name, str(source), None if database_path is None else str(database_path))


def load_mini_dev(
    root: str | Path | None = None, evidence: bool = True, databases: str | Path | None = None
) -> Dataset:
    """Load the 500 tasks of the mini-dev; see `load`."""
    return load(root, "mini_dev", evidence, databases)


def _fields(
    row: Mapping[str, Any], index: int, schemas: Mapping[str, Any], evidence: bool
) -> dict[str, Any]:
    database = row["db"] if "db" in row else row["db_id"]
    question = row["question"] if "question" in row else row["query"]
    knowledge = (row.get("evidence") or "").strip()
    if evidence and knowledge:
        question = f"{question}\nExternal knowledge: {knowledge}"
    level = row.get("difficulty")
    return {
        "task_id": index,
        "query": question,
        "gold": row["SQL"],
        "db": database,
        "tags": [level] if level else [],
        "question_id": row.get("question_id"),
        "evidence": knowledge,
        "hardness": level,
        "dialect": "sqlite",
        "db_tables": schemas.get(database),
    }
