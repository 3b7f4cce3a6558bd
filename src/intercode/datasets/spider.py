"""Spider (Yu et al. 2018): questions over databases of many domains, from a copy the user has.

Two layouts are read:

- the authors': ``dev.json``, ``tables.json`` and ``database/NAME/NAME.sqlite``; gold is in
  SQLite's dialect, and hardness is computed by the authors' rule (`spider_hardness`). The folder
  ``database`` of their distilled test suites has the same layout, with more files for each name;
- that of the 2023 release of InterCode: ``ic_spider_dev.json`` and ``ic_spider_dbs.sql``; gold is
  in MySQL's, and hardness is stored. 19 of its 1,034 golds fail on MySQL 8: `REVIEW` has others.

``metadata`` holds ``dialect``, ``hardness`` and ``db_tables`` (table → columns), and
``permute_columns``: as in the authors' own evaluation, an answer's columns may come in another
order than gold's, unless the question says in which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from intercode.datasets.files import load_file
from intercode.datasets.layout import locate, read_tables, read_tasks
from intercode.datasets.review import apply, reviews
from intercode.datasets.spider_hardness import hardness
from intercode.errors import TaskError
from intercode.task import Dataset, Task

SPLITS = {
    "dev": (("dev.json",), "tables.json", "database"),
    "train": (("train_spider.json", "train_others.json"), "tables.json", "database"),
    "test": (("test.json",), "test_tables.json", "test_database"),
}
"""Split → the authors' files of tasks, of tables, and the folder of databases."""
REVIEW = Path(__file__).with_name("spider_reviewed.jsonl")
"""The release's golds that are known to be wrong, by `row` (`intercode.datasets.review`)."""

_FIXED_ORDER = re.compile(
    r"\bin (?:this|that|the following|the given|exactly this) order\b|\bfollowed by\b"
    r"|\b(?:first|second|third|last|left|right)most? column\b|\border of (?:the )?columns\b",
    re.IGNORECASE,
)
_RELEASE = ("ic_spider_dev.json", "ic_spider_dbs.sql")


def load(
    root: str | Path | None = None,
    split: str = "dev",
    databases: str | Path | None = None,
    reviewed: bool = False,
) -> Dataset:
    """One split; a task's id is its row number.

    Args:
        root: A folder with one of the layouts in it or a little below; None: where
            ``intercode datasets fetch spider`` puts it.
        split: One of `SPLITS`; the 2023 release has only ``dev``.
        databases: Other databases of the same names, for instance a test suite's.
        reviewed: Whether golds of the 2023 release that are known to be wrong are replaced.

    Raises:
        TaskError: It is not there, or malformed; or a review of the authors' golds is asked for.
    """
    if split not in SPLITS:
        raise TaskError(f"Spider has no split {split!r}; known: {', '.join(SPLITS)}")
    files, tables, folder = SPLITS[split]
    layouts = [(*files, tables, folder)] + ([_RELEASE] if split == "dev" else [])
    place, layout = locate(root, "spider", layouts)
    name = "spider" if split == "dev" else f"spider-{split}"
    if layout == 1:
        source, stored = place / _RELEASE[0], place / _RELEASE[1]
        tasks = [_released(task) for task in load_file(source)]
        if reviewed:
            tasks = [apply(task, reviews(REVIEW).get(task.task_id)) for task in tasks]
            name = f"{name} (reviewed)"
        return Dataset(tasks, name, str(source), str(databases or stored))
    if reviewed:
        raise TaskError(f"{place}: only the golds of the 2023 release ({_RELEASE[0]}) are reviewed")
    schemas = read_tables(place / tables)
    tasks = []
    for file in files:
        first = len(tasks)

        def convert(row: Mapping[str, Any], index: int, first: int = first) -> dict[str, Any]:
            return {**_authored(row, schemas), "task_id": first + index}

        tasks += read_tasks(place / file, convert)
    return Dataset(tasks, name, str(place / files[0]), str(databases or place / folder))


def _authored(row: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    level = row.get("hardness") or hardness(row["query"])
    return {
        "query": row["question"],
        "gold": row["query"],
        "db": row["db_id"],
        "tags": [level] if level else [],
        "hardness": level,
        "dialect": "sqlite",
        "db_tables": schemas.get(row["db_id"]),
        "permute_columns": not fixes_order(row["question"]),
    }


def _released(task: Task) -> Task:
    level = task.metadata.get("hardness") or hardness("; ".join(task.gold), "mysql")
    free = not fixes_order(task.query)
    facts = {"hardness": level, "dialect": "mysql", "permute_columns": free}
    return replace(task, tags=(level,) if level else (), metadata={**task.metadata, **facts})


def fixes_order(question: str) -> bool:
    """Whether a question says in which order the columns of its answer come."""
    return _FIXED_ORDER.search(question) is not None
