"""The Bash tasks of the 2023 paper, from a copy of its data that the user has.

Nothing of it is bundled. A folder is taken in either of two layouts: that of the release itself,
where ``docker/bash_scripts/setup_nl2b_fs_N.sh`` makes the file system of suite N, or one with the
ready file systems as ``data/nl2bash/filesystems/fs_N.tar.gz``. What is there is laid over the
image ``nl2bash``, which has the tools of the paper's own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from intercode.datasets.files import load_file
from intercode.errors import TaskError
from intercode.task import Dataset

BASE_IMAGE = "nl2bash"
SUITES = ("nl2bash_fs_1", "nl2bash_fs_2", "nl2bash_fs_3", "nl2bash_fs_4", "test_queries")


def load(root: str | Path, suite: str = "nl2bash_fs_1") -> Dataset:
    """One suite; a task's id is its row number.

    Args:
        root: The folder that holds ``data/nl2bash``.
        suite: One of `SUITES`.

    Raises:
        TaskError: The folder or the suite is not there, or its file is malformed.
    """
    if suite not in SUITES:
        raise TaskError(f"there is no suite {suite!r}; known: {', '.join(SUITES)}")
    root = Path(root).resolve()
    tasks = load_file(root / "data" / "nl2bash" / f"{suite}.json", suite)
    image = image_for(root, suite)
    return Dataset((replace(task, image=image) for task in tasks), suite, tasks.source)


def image_for(root: Path, suite: str) -> str:
    """The image of a suite: the base, and the suite's file system over it, if it has one.

    Raises:
        TaskError: The folder has the suite's file system in neither form.
    """
    number = re.fullmatch(r"nl2bash_fs_(\d)", suite)
    if number is None:
        # The release made the file system of its test queries in a small image of their own.
        return BASE_IMAGE
    layers = (
        root / "data" / "nl2bash" / "filesystems" / f"fs_{number[1]}.tar.gz",
        root / "docker" / "bash_scripts" / f"setup_nl2b_fs_{number[1]}.sh",
    )
    for layer in layers:
        if layer.is_file():
            return f"{BASE_IMAGE}+{layer}"
    raise TaskError(f"suite {suite} needs its file system, as {layers[0]} or {layers[1]}")
