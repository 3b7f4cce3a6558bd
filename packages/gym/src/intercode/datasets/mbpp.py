"""Loader of MBPP (Austin et al. 2021): 974 small Python functions, with three asserts each.

The user's copy is one of two files with the same tasks: the authors' ``mbpp.jsonl``, or
``ic_mbpp.json`` of the 2023 release. A task's ``metadata.test_setup_code`` is executed before its
tests. ``metadata.challenge_tests`` contains additional tests of the authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader
from intercode.datasets.files import apply, locate, read_tasks, reviews
from intercode.errors import TaskError
from intercode.task import Dataset

SPLITS = {
    "all": range(1, 975),
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""Name of a split → the ids of its tasks. The splits are those of the authors, and ``all``."""
REVIEW = Path(__file__).with_name("mbpp_reviewed.jsonl")
"""The file of InterCode's reviews of tasks whose tests are wrong, or whose tests a constant result
passes. The function `intercode.datasets.files.apply` describes its format."""

_AUTHORED = "mbpp.jsonl"
_RELEASED = "ic_mbpp.json"


@cached_loader
def load(root: str | Path | None = None, split: str = "all", reviewed: bool = False) -> Dataset:
    """Load a split of MBPP. The task ids are those of the authors.

    Args:
        root: A folder that contains one of the files, at most three levels deep; None: the folder
            ``datasets/mbpp`` in InterCode's cache.
        split: One of `SPLITS`.
        reviewed: Whether to apply the corrections in `REVIEW`.

    Returns:
        The dataset.

    Raises:
        TaskError: The split is unknown, or the file absent or malformed.
    """
    if split not in SPLITS:
        raise TaskError(f"MBPP has no split {split!r}; known: {', '.join(SPLITS)}")
    dataset_folder, layout = locate(root, "mbpp", [(_AUTHORED,), (_RELEASED,)])
    file = dataset_folder / (_AUTHORED, _RELEASED)[layout]
    tasks = read_tasks(file, _authored_fields if layout == 0 else _released_fields)
    if reviewed:
        tasks = [apply(task, reviews(REVIEW).get(task.task_id)) for task in tasks]
    ids = {str(task_number) for task_number in SPLITS[split]}
    name = "mbpp" if split == "all" else f"mbpp-{split}"
    name = f"{name} (reviewed)" if reviewed else name
    return Dataset((task for task in tasks if task.task_id in ids), name, str(file))


def _authored_fields(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {
        "task_id": row["task_id"],
        "query": row["text"],
        "gold": row["code"],
        "tests": row["test_list"],
        "test_setup_code": row.get("test_setup_code") or None,
        "challenge_tests": row.get("challenge_test_list") or None,
    }


def _released_fields(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    setup = row.get("test_setup_code") or None
    return {"task_id": index + 1, **row, "test_setup_code": setup}
