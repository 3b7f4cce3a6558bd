"""Loader of SWE-bench (Jimenez et al. 2024): issues of Python projects, from the user's copy.

The copy is a JSON or JSONL file with the authors' rows, or a folder with one such file. The loader
omits the field ``hints_text``, because the hints were written after the issue.

A row names a repository and a commit, but not where the repository is: the option
``--repositories`` names the location. A row also lacks the command that runs the tests. The image
must have pytest and the dependencies of the project. Tasks of projects with another test runner
(Django, SymPy) must name the runner in the field ``runner``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import home, read_tasks
from intercode.errors import TaskError
from intercode.task import Dataset

TEST_TIMEOUT = 1800.0
"""The time limit of a task's tests in seconds, as in the authors' evaluation program."""

_SUFFIXES = (".json", ".jsonl")
_REQUIRED_FIELDS = ("repo", "base_commit", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_METADATA_FIELDS = ("version", "environment_setup_commit", "created_at")


@cached_loader
def load(root: str | Path | None = None, name: str = "swe-bench") -> Dataset:
    """Load all rows of a copy. A task's id is the authors' ``instance_id``.

    Args:
        root: The file, or a folder with one file of rows; None: the folder ``datasets/NAME`` in
            InterCode's cache.
        name: The dataset's name.

    Returns:
        The dataset.

    Raises:
        TaskError: The file is absent or malformed, or the folder has several files of rows.
    """
    file = _file(home(name) if root is None else Path(root), name)
    return Dataset(read_tasks(file, _task), name, str(file))


def load_lite(root: str | Path | None = None) -> Dataset:
    """Load SWE-bench Lite; see `load`."""
    return load(root, "swe-bench-lite")


def load_verified(root: str | Path | None = None) -> Dataset:
    """Load SWE-bench Verified; see `load`."""
    return load(root, "swe-bench-verified")


def _file(path: Path, name: str) -> Path:
    if track_file(path).is_file():
        return path
    files = sorted(path.glob("*")) if path.is_dir() else []
    data_files = [file for file in files if file.suffix in _SUFFIXES]
    if len(data_files) != 1:
        raise TaskError(
            f"{path}: dataset {name!r} must be one file of rows, {' or '.join(_SUFFIXES)}, or a "
            f"folder with one; there are {len(data_files)}"
        )
    return data_files[0]


def _task(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {
        "task_id": row["instance_id"],
        "query": row["problem_statement"],
        "gold": row["patch"],
        "tags": [row["repo"]],
        "test_timeout": TEST_TIMEOUT,
        **{field: row[field] for field in _REQUIRED_FIELDS},
        **{field: row.get(field) for field in _METADATA_FIELDS},
    }
