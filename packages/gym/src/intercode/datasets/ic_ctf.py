"""IC-CTF, the puzzles of the 2023 release (from picoCTF), from a copy that the user has.

A folder is taken as the release lays it out: ``data/ctf/ic_ctf.json``, and the files of task N in
``data/ctf/task_assets/N/``, or any other folder that has ``ic_ctf.json`` and ``task_assets``. A
task has its files in ``/ctf/N``, as in the release. The commands that its data has under ``setup``
fetch files from the network; they are kept as ``metadata.released_setup`` and not run. The
write-ups in ``solution`` are left out: in 2023 an agent could read them.
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
"""The tasks that cannot be solved without the outside network: they are tagged ``network``."""

_FILE = "ic_ctf.json"
_ASSETS = "task_assets"
_WRITE_UP = "solution"
"""The folder among a task's files that tells the way to its flag, and often the flag."""


@cached_loader
def load(root: str | Path | None = None) -> Dataset:
    """Load all tasks; a task's id is that of the data.

    Without the folder of assets, which is not in every copy, the tasks have no files: most of them
    cannot be solved then.

    Args:
        root: A folder with the data in it or a little below; None: where
            ``intercode datasets fetch ic-ctf`` puts it.

    Raises:
        TaskError: It is not there, or malformed.
    """
    place, _ = locate(root, "ic-ctf", [(_FILE, _ASSETS), (_FILE,)])

    def convert(row: Mapping[str, Any], index: int) -> dict[str, Any]:
        return task_fields(row, place)

    return Dataset(read_tasks(place / _FILE, convert), "ic-ctf", str(place / _FILE))


def task_fields(row: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the fields of a task.

    Args:
        row: The row of the release's file.
        place: The folder of that file.

    Raises:
        TaskError: Its id is not a number.
    """
    number = str(row["task_id"])
    if not (number.isascii() and number.isdigit()):
        raise TaskError(f"field 'task_id' must be a number, not {number!r}")
    fields = {**row, "directory": f"/ctf/{number}", "released_setup": row.get("setup")}
    fields["setup"] = None
    if track_file(folder := place / _ASSETS / number).is_dir():
        fields["assets"] = str(folder)
        fields["assets_without"] = [_WRITE_UP]
    if int(number) in NEED_NETWORK:
        fields["tags"] = [*row.get("tags", ()), "network"]
    return fields
