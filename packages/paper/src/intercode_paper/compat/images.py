"""The images and databases of 2023: the resolution of their old names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from intercode.datasets.builtin import DATABASES
from intercode.datasets.nl2bash import BASE_IMAGE
from intercode.errors import TaskError

DATA = Path(__file__).with_name("data")
_HOST = ("intercode-ctf", "intercode-python", "intercode-swe", "docker-env-sql")
"""Images that the image ``host`` replaces: tasks need only their tools, and bring their files."""


def image_for(name: str, data_path: str | None = None) -> str:
    """Return the present name of an image.

    Args:
        name: A name of 2023; any other name is returned unchanged.
        data_path: The data file. The files of ``intercode-nl2bash`` are beside it or above it, as
            in a checkout of the release, or in the layout of `intercode.datasets.nl2bash`.

    Raises:
        TaskError: The data needs a file system of NL2Bash that does not exist.
    """
    if name in _HOST:
        return "host"
    if name == "intercode-bash":
        script = _find_above(data_path, ["docker/bash_scripts/setup_fs.sh"])
        return f"host+{script or DATA / 'testbed.sh'}"
    if name != "intercode-nl2bash":
        return name
    match = re.search(r"fs_(\d)", Path(data_path or "").name)
    file_system_number = match[1] if match else "1"
    scripts = f"docker/bash_scripts/setup_nl2b_fs_{file_system_number}.sh"
    layer = _find_above(data_path, [f"filesystems/fs_{file_system_number}.tar.gz", scripts])
    if layer is None and match:
        raise TaskError(
            f"{data_path}: its tasks need the file system {file_system_number} of NL2Bash, as "
            f"{scripts} in a folder above, where the release has it; to try them without: "
            "image_name='nl2bash'"
        )
    return BASE_IMAGE if layer is None else f"{BASE_IMAGE}+{layer}"


def find_databases(data_path: str | None) -> Path:
    """Return the path of a data file's databases: beside it, as in the release, or bundled."""
    patterns = ["*_dbs.sql", "spider_dev.sql", "sql/spider/*_dbs.sql", "sql/spider/spider_dev.sql"]
    return _find_above(data_path, patterns) or DATABASES


def _find_above(data_path: str | None, patterns: Iterable[str]) -> Path | None:
    """Return the first match of some patterns in the data's folder, or in four folders above."""
    if data_path is None:
        return None
    for folder in list(Path(data_path).resolve().parents)[:5]:
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                return path
    return None
