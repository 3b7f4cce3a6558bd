"""Containment of the paths that data names: a task's database or repository, a Dockerfile's base.

Data may come from strangers. Therefore every path that data names must lie in the data's own
folder, after links are resolved. Otherwise an agent could print files that only the user of
InterCode may read. The user names files in other folders on the command line.
"""

from __future__ import annotations

import os
from pathlib import Path


def resolve_data_path(folder: Path, path: str | Path) -> Path:
    """Return the full path of a file that data names, if the path lies in the data's folder.

    Args:
        folder: The folder of the data; the folder itself may be a link.
        path: The path as written; the file need not exist.

    Raises:
        ValueError: The path leads out of the folder, or is invalid.
    """
    full_path = Path(folder, path)
    # Path.resolve() would fail for circular links.
    real_path = Path(os.path.realpath(full_path))
    if not str(path).startswith("~") and real_path.is_relative_to(os.path.realpath(folder)):
        return full_path
    raise ValueError(
        f"{str(path)!r} is not in {folder}, and data must not name files outside of it"
    )
