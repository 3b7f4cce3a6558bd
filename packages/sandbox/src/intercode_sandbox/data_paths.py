"""Paths that data names: a task's database or repository, what a Dockerfile is from.

Data is a stranger's. What it names lies in its own folder, also where links are followed, or else
an agent could print what its user alone may read. What lies elsewhere is for the command to name.
"""

from __future__ import annotations

import os
from pathlib import Path


def resolve_data_path(folder: Path, path: str | Path) -> Path:
    """Return a path that data names, from the data's folder on.

    Args:
        folder: The folder of the data; links may lead to it.
        path: The path as it is written. It need not exist.

    Raises:
        ValueError: It does not lie in the folder, or cannot be a path.
    """
    full_path = Path(folder, path)
    # Not resolve(), which fails for links that lead in a circle.
    real_path = Path(os.path.realpath(full_path))
    if not str(path).startswith("~") and real_path.is_relative_to(os.path.realpath(folder)):
        return full_path
    raise ValueError(
        f"{str(path)!r} is not in {folder}, and data must not name files outside of it"
    )
