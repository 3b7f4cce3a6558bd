"""Loader of NL2Bash, the Bash tasks of the 2023 paper, from the user's copy.

No data of NL2Bash are bundled. The 200 tasks are in four suites, each with a file system. The copy
has one of two layouts. In the layout of the 2023 release, the script
``docker/bash_scripts/setup_nl2b_fs_N.sh`` builds the file system of suite N. In the other layout,
the file systems are archives: ``data/nl2bash/filesystems/fs_N.tar.gz``. The file system of a suite
is a layer over the image ``nl2bash``, which has the tools of the paper's image.

Many queries have several solutions, but gold is a single command by one author. Some golds do not
solve their queries. The file `REVIEW` has a review of each task by InterCode's authors. A review
states whether gold is right, lists other right golds, and names the type of the answer
(`intercode.rewards.answer_types`). Or it gives the reason why the task cannot be scored. The
reviews are applied on request.

Tasks whose queries depend on the clock ("modified more than 7 days ago") are marked. At the start
of every episode, their files have the same ages (`intercode.task.Task.ages`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import apply, load_file, locate, read_rows
from intercode.errors import TaskError
from intercode.task import CANNOT, CLOCK, Dataset, Task

BASE_IMAGE = "nl2bash"
SUITES = ("nl2bash_fs_1", "nl2bash_fs_2", "nl2bash_fs_3", "nl2bash_fs_4", "test_queries")
REVIEW = Path(__file__).with_name("nl2bash_reviewed.jsonl")
"""The file of reviews of the tasks in the four file systems. ``suite`` and ``row`` identify a task;
see ``benchmarks/graders/REVIEW.md``."""

_FILE_SYSTEM_SUITES = SUITES[:4]
_RECENT_SECONDS, _DAY_SECONDS = 600, 86400
_AGES: Mapping[str, Mapping[str, int]] = {
    # The newest file of each folder is ten minutes old; a few files are older, as in the release.
    # Queries ask for files changed in the last 5 minutes, or in the last hour. Ten minutes are more
    # than 5 minutes, and remain less than an hour for the first 50 minutes of an episode.
    **{f"fs1-{row}": {"/testbed": _RECENT_SECONDS} for row in (11, 12, 47)},
    **{f"fs2-{row}": {"/system": _RECENT_SECONDS} for row in (17, 18, 19, 25, 32, 39, 41)},
    **{f"fs3-{row}": {"/workspace": _RECENT_SECONDS} for row in (0, 2, 3, 12)},
    "fs1-46": {"/var/log": 3 * _DAY_SECONDS},
    # The queries of these tasks ask for the current time, so no ages are needed.
    **{name: {} for name in ("fs2-42", "fs4-21")},
}
"""Id of a task that depends on the clock → its metadata under `intercode.task.CLOCK`: path of a
folder → age of its newest file in seconds."""
_NON_ANSWER_FIELDS = {"suite", "row", "gold", "golds", "answer", "may_change", "note"}


@cached_loader
def load(
    root: str | Path | None = None, suite: str | None = None, reviewed: bool = False
) -> Dataset:
    """Load all 200 tasks, or the tasks of a suite.

    Args:
        root: A folder that contains ``data/nl2bash``; None: the folder that
            ``intercode datasets fetch nl2bash`` has written.
        suite: One of `SUITES`. The task ids are then the row numbers, from 0. None: the suites of
            all four file systems. The task in row 7 of the second suite then has the id ``fs2-7``.
        reviewed: Whether to apply the reviews in `REVIEW`. A task that cannot be scored then has
            the reason under `intercode.task.CANNOT` in its metadata, and runs exclude the task.

    Returns:
        The dataset.

    Raises:
        TaskError: The suite is unknown, or its folder, file or file system is absent or malformed.
    """
    if suite is not None and suite not in SUITES:
        raise TaskError(f"there is no suite {suite!r}; known: {', '.join(SUITES)}")
    if root is None:
        root, _ = locate(None, "nl2bash", [(f"data/nl2bash/{_FILE_SYSTEM_SUITES[0]}.json",)])
    root = Path(root).resolve()
    if suite is None:
        tasks = [
            task
            for suite_name in _FILE_SYSTEM_SUITES
            for task in _suite(root, suite_name, reviewed)
        ]
        name, source = "nl2bash", root / "data" / "nl2bash"
    else:
        tasks = _suite(root, suite, reviewed)
        tasks = [replace(task, task_id=str(row), tags=()) for row, task in enumerate(tasks)]
        name, source = suite, _file(root, suite)
    return Dataset(tasks, f"{name} (reviewed)" if reviewed else name, str(source))


def _file(root: Path, suite: str) -> Path:
    return root / "data" / "nl2bash" / f"{suite}.json"


def _suite(root: Path, suite: str, reviewed: bool) -> list[Task]:
    tasks = load_file(_file(root, suite), suite)
    image, suite_id = image_for(root, suite), suite.removeprefix("nl2bash_").replace("_", "")
    suite_tasks = [
        # A task with a `folder` may name only files within it. The image of these tasks includes
        # a file outside the folder of the data file, so `folder` is None.
        replace(task, task_id=f"{suite_id}-{row}", image=image, tags=(suite_id,), folder=None)
        for row, task in enumerate(tasks)
    ]
    suite_tasks = [
        replace(task, metadata={**task.metadata, CLOCK: _AGES[task.task_id]})
        if task.task_id in _AGES
        else task
        for task in suite_tasks
    ]
    return [*map(_apply_review, suite_tasks)] if reviewed else suite_tasks


def _apply_review(task: Task) -> Task:
    """Return a task with the corrections of its review, and with the type of its answer.

    Raises:
        TaskError: The task has no review.
    """
    if (review := _review().get(task.task_id)) is None:
        raise TaskError(f"there is no review of task {task.task_id!r}")
    task = apply(task, review)
    if CANNOT in review:
        return task
    answer_options = {
        name: value for name, value in review.items() if name not in _NON_ANSWER_FIELDS
    }
    metadata = {**task.metadata, "answer": {"type": review["answer"], **answer_options}}
    return replace(task, may_change=tuple(review.get("may_change", ())), metadata=metadata)


@cache
def _review() -> Mapping[str, Mapping[str, Any]]:
    """Read the file of reviews.

    Returns:
        Id of a task → its review.
    """
    return {f"fs{row['suite']}-{row['row']}": row for _, row in read_rows(REVIEW)}


def image_for(root: Path, suite: str) -> str:
    """Return the name of a suite's image: the image ``nl2bash`` with the suite's file system.

    Args:
        root: The folder of the copy.
        suite: One of `SUITES`; ``test_queries`` has no file system.

    Raises:
        TaskError: The folder has neither an archive nor a script of the suite's file system.
    """
    match = re.fullmatch(r"nl2bash_fs_(\d)", suite)
    if match is None:
        # The suite "test_queries" has no file system of this kind: the 2023 release built a small
        # image for it.
        return BASE_IMAGE
    layers = (
        root / "data" / "nl2bash" / "filesystems" / f"fs_{match[1]}.tar.gz",
        root / "docker" / "bash_scripts" / f"setup_nl2b_fs_{match[1]}.sh",
    )
    for layer in layers:
        if track_file(layer).is_file():
            return f"{BASE_IMAGE}+{layer}"
    raise TaskError(f"suite {suite} needs its file system, as {layers[0]} or {layers[1]}")
