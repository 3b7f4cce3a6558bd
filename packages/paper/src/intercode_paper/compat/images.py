"""The images and databases of 2023: current names for the names of 2023."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from intercode.datasets.builtin import DATABASES
from intercode.datasets.nl2bash import BASE_IMAGE
from intercode.errors import TaskError

DATA = Path(__file__).with_name("data")
_HOST = ("intercode-ctf", "intercode-python", "intercode-swe", "docker-env-sql")
"""Names of images in place of which ``host`` is used. Their tasks need only the host's tools, and
bring all other files themselves."""


def image_for(name: str, data_path: str | None = None) -> str:
    """Return the current name of an image.

    Args:
        name: A name of 2023; any other name is returned unchanged.
        data_path: The path of the data file. The files of ``intercode-nl2bash`` and
            ``intercode-bash`` are searched beside the data file and above it. The layout is that of
            the release, or of `intercode.datasets.nl2bash`.

    Raises:
        TaskError: The data file's name has the number of a file system of NL2Bash whose files are
            missing.
    """
    if name in _HOST:
        return "host"
    if name == "intercode-bash":
        setup_script = _find_above(data_path, ["docker/bash_scripts/setup_fs.sh"])
        return f"host+{setup_script or DATA / 'testbed.sh'}"
    if name != "intercode-nl2bash":
        return name
    match = re.search(r"fs_(\d)", Path(data_path or "").name)
    file_system_number = match[1] if match else "1"
    script_name = f"docker/bash_scripts/setup_nl2b_fs_{file_system_number}.sh"
    layer_path = _find_above(
        data_path, [f"filesystems/fs_{file_system_number}.tar.gz", script_name]
    )
    if layer_path is None and match:
        raise TaskError(
            f"{data_path}: its tasks need the file system {file_system_number} of NL2Bash, as "
            f"{script_name} in a folder above, where the release has it; to try them without: "
            "image_name='nl2bash'"
        )
    return BASE_IMAGE if layer_path is None else f"{BASE_IMAGE}+{layer_path}"


def find_databases(data_path: str | None) -> Path:
    """Return the path of the databases for a data file.

    The databases are searched in the folder of the data file and above it, as in the release.
    Without a match, the result is the path of the bundled databases.
    """
    patterns = ["*_dbs.sql", "spider_dev.sql", "sql/spider/*_dbs.sql", "sql/spider/spider_dev.sql"]
    return _find_above(data_path, patterns) or DATABASES


def _find_above(data_path: str | None, patterns: Iterable[str]) -> Path | None:
    """Return the first file that matches a pattern, in the data's folder or four folders above."""
    if data_path is None:
        return None
    for folder in list(Path(data_path).resolve().parents)[:5]:
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                return path
    return None
