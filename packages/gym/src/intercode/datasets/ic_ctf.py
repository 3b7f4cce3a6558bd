"""Loader of IC-CTF, the puzzles of the 2023 release (from picoCTF), from the user's copy.

The copy has the release's layout: ``data/ctf/ic_ctf.json``, and the files of task N in
``data/ctf/task_assets/N/``. Any folder with ``ic_ctf.json`` and ``task_assets`` is valid. In the
sandbox, the files of task N are in ``/ctf/N``, as in the release.

The commands under ``setup`` fetch files from the network. ``metadata.released_setup`` retains
these commands, but they are not executed. The write-ups in ``solution`` are omitted: in 2023, an
agent could read them.
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
"""Ids of the tasks that need the internet, which have the tag ``network``."""

_FILE = "ic_ctf.json"
_ASSETS = "task_assets"
_WRITE_UP = "solution"
"""Folder of a task's files that explains the solution, and often contains the flag."""


@cached_loader
def load(root: str | Path | None = None) -> Dataset:
    """Load all tasks, with the ids of the data.

    Some copies lack the folder of assets. Without their files, most tasks cannot be solved.

    Args:
        root: A folder with the data, at most three levels below; None: the folder of
            ``intercode datasets fetch ic-ctf``.

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
    """Return the fields of a task for `Task.from_dict`.

    Args:
        row: The row of the release's file.
        dataset_folder: The folder of the release's file.

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
