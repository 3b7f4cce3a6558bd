"""Loader of IC-CTF, the puzzles of the 2023 release (from picoCTF), from the user's copy.

The copy has the layout of the release: ``data/ctf/ic_ctf.json``, and the files of task N in
``data/ctf/task_assets/N/``. Any folder with ``ic_ctf.json`` and ``task_assets`` is valid. In the
sandbox, the files of task N are in ``/ctf/N``, as in the release.

In the data, the field ``setup`` has commands that fetch files from the network. The loader copies
these commands to ``metadata.released_setup``, and no command is executed. The folders ``solution``
explain how to solve the tasks. The loader omits these folders; in the 2023 release, an agent could
read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intercode.datasets.dataset_cache import cached_loader, track_file
from intercode.datasets.files import locate, read_tasks
from intercode.errors import TaskError
from intercode.task import Dataset

# fmt: off
NEED_NETWORK = frozenset({
    1, 7, 9, 14, 16, 20, 28, 29, 35, 39, 41, 42, 43, 54, 57, 62, 66, 73, 87, 88, 89, 95,
})
# fmt: on
"""The ids of the tasks that need the internet. These tasks get the tag ``network``."""

_FILE = "ic_ctf.json"
_ASSETS = "task_assets"
_WRITE_UP = "solution"
"""The folder among a task's files that explains the solution, and often contains the flag."""


@cached_loader
def load(root: str | Path | None = None) -> Dataset:
    """Load all tasks. The ids are those in the data.

    Some copies lack the folder ``task_assets``. Most tasks cannot be solved without the files of
    this folder.

    Args:
        root: A folder that contains the data, at most three levels deep; None: the folder that
            ``intercode datasets fetch ic-ctf`` has written.

    Returns:
        The dataset.

    Raises:
        TaskError: The data are absent or malformed.
    """
    dataset_folder, _ = locate(root, "ic-ctf", [(_FILE, _ASSETS), (_FILE,)])

    def convert(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return task_fields(row, dataset_folder)

    return Dataset(
        read_tasks(dataset_folder / _FILE, convert), "ic-ctf", str(dataset_folder / _FILE)
    )


def task_fields(row: Mapping[str, Any], dataset_folder: Path) -> dict[str, Any]:
    """Return the fields of a task in the form for `Task.from_dict`.

    Args:
        row: A row of ``ic_ctf.json``.
        dataset_folder: The folder with ``ic_ctf.json``.

    Raises:
        TaskError: The task's id is not a number.
    """
    task_number = str(row["task_id"])
    if not (task_number.isascii() and task_number.isdigit()):
        raise TaskError(f"field 'task_id' must be a number, not {task_number!r}")
    fields = {**row, "directory": f"/ctf/{task_number}", "released_setup": row.get("setup")}
    fields["setup"] = None
    if track_file(folder := dataset_folder / _ASSETS / task_number).is_dir():
        fields["assets"] = str(folder)
        fields["assets_without"] = [_WRITE_UP]
    if int(task_number) in NEED_NETWORK:
        fields["tags"] = [*row.get("tags", ()), "network"]
    return fields
