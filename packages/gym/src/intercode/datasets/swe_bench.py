"""Loader of SWE-bench (Jimenez et al. 2024): issues of Python projects, from the user's copy.

The authors' rows are in one JSON or JSONL file, or in a folder with one such file. The agent does
not see ``hints_text``, which was written after the issue.

A row names a repository and a commit, but no location: see ``--repositories``. A row also lacks the
test command. The image must have pytest and the project's dependencies, and tasks of projects with
another test runner (Django, SymPy) must name the runner.
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
"""Time limit of a task's tests in seconds, as in the authors' harness."""

_SUFFIXES = (".json", ".jsonl")
_REQUIRED_FIELDS = ("repo", "base_commit", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
_METADATA_FIELDS = ("version", "environment_setup_commit", "created_at")


@cached_loader
def load(root: str | Path | None = None, name: str = "swe-bench") -> Dataset:
    """Load all rows; a task's id is the authors' ``instance_id``.

    Args:
        root: The file, or a folder with one file of rows; None: ``datasets/NAME`` in InterCode's
            cache.
        name: The dataset's name.

    Returns:
        The dataset.

    Raises:
        TaskError: The file is absent, malformed or not the only one in its folder.
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
