"""Python runtimes in layers: copies of this machine's Pythons, for images with another release.

The source of a copy is a Python that ``uv python install 3.12`` or pyenv has installed, or else the
distribution's own. The copy omits the parts that no agent needs: tests, headers and installed
packages. A copied program searches for its own shared library relative to the program's path, so a
copy runs in any folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import msgspec

from intercode.errors import UsageError

_FACTS = """
import json, platform, sys
print(json.dumps({"prefix": sys.base_prefix, "version": platform.python_version(),
    "release": "%d.%d" % sys.version_info[:2], "kind": sys.implementation.name}))
"""
_INSTALL_FOLDERS = (
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-{}*/bin/python{}"),
    ("PYENV_ROOT", "~/.pyenv", "versions/{}*/bin/python{}"),
)
"""Installers of Pythons: the variable that names the installer's folder, the folder's default path,
and a pattern of the programs in the folder."""
_PATIENCE = 30.0
"""Maximum seconds in which a candidate must print its facts."""
_EXCLUDED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test",
     "tkinter", "turtledemo", "lib2to3", "pydoc_data"}
)  # fmt: skip
_ORIGIN = b"$ORIGIN/../lib"


class PythonInstallation(msgspec.Struct, frozen=True, kw_only=True):
    """A Python that is installed on this machine."""

    prefix: str
    version: str
    release: str
    """Release of the language, such as ``3.12``."""
    kind: str


def find_python(release: str, agent: str) -> PythonInstallation:
    """Find a Python of the given release on this machine.

    Args:
        release: The release, such as ``3.12``.
        agent: The agent that needs the Python, for the message.

    Returns:
        A complete CPython of the release, with its standard library.

    Raises:
        UsageError: This machine has no such Python.
    """
    for program_path in _candidates(release):
        try:
            command = [program_path, "-I", "-c", _FACTS]
            result = subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
            python = msgspec.json.decode(result.stdout, type=PythonInstallation)
        # A candidate may not be a working Python, such as a broken shim of pyenv.
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
            continue
        library_path = Path(python.prefix, "lib", f"python{release}")
        is_complete = (library_path / "os.py").is_file() and (library_path / "ensurepip").is_dir()
        if python.release == release and python.kind == "cpython" and is_complete:
            return python
    raise UsageError(
        f"{agent} needs Python {release}, which this machine lacks: uv python install {release}"
    )


def _candidates(release: str) -> Iterator[str]:
    for variable, default_folder, pattern in _INSTALL_FOLDERS:
        root = Path(os.environ.get(variable) or default_folder).expanduser()
        yield from map(str, sorted(root.glob(pattern.format(release, release))))
    # A distribution's Python comes last, because it needs files in other folders.
    if program := shutil.which(f"python{release}"):
        yield program


def pack_python(python: PythonInstallation, target_folder: str) -> bytes:
    """Copy a Python into a tarball; equal Pythons give equal tarballs.

    Args:
        python: The installed Python.
        target_folder: The folder of the Python within the tarball.

    Returns:
        The tarball, uncompressed.
    """
    prefix, program_path = Path(python.prefix), f"bin/python{python.release}"
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:

        def add(path: Path, data: bytes | None = None) -> None:
            member = archive.gettarinfo(
                path, f"{target_folder}/{path.relative_to(prefix)}".lstrip("/")
            )
            member.mtime = member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                data = path.read_bytes() if data is None else data
                member.type, member.linkname, member.size = tarfile.REGTYPE, "", len(data)
            archive.addfile(member, BytesIO(data) if data is not None else None)

        add(prefix / program_path, _relocate_library((prefix / program_path).read_bytes(), prefix))
        for library_path in sorted(prefix.glob(f"lib/libpython{python.release}.so*")):
            add(library_path)
        for folder, subfolders, file_names in os.walk(prefix / "lib" / f"python{python.release}"):
            subfolders[:] = sorted(set(subfolders) - _EXCLUDED_FOLDERS)
            for file_name in sorted(file_names):
                if not file_name.endswith(".a"):
                    add(Path(folder, file_name))
    return buffer.getvalue()


def _relocate_library(program: bytes, prefix: Path) -> bytes:
    """Replace the absolute path of a program's library by a path relative to the program.

    The new path must fit into the bytes of the old path. If the old path is shorter, the program is
    returned unchanged.
    """
    library_path = os.fsencode(prefix / "lib")
    if len(library_path) < len(_ORIGIN):
        return program
    return program.replace(library_path + b"\0", _ORIGIN.ljust(len(library_path) + 1, b"\0"))
