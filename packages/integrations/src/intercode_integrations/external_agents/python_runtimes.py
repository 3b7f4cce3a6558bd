"""The Python that a layer carries: a copy of one of this machine, where an image has another one.

It is one that a user has installed, for instance by ``uv python install 3.12`` or by pyenv, without
what no agent needs: tests, headers, packages of its own. It finds its library beside itself, so
that it runs below any folder.
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
"""Tools' folders of Pythons: the variable that names it, the usual one, the programs in it."""
_PATIENCE = 30.0
"""Seconds in which a Python must say what it is."""
_EXCLUDED_FOLDERS = frozenset(
    {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test",
     "tkinter", "turtledemo", "lib2to3", "pydoc_data"}
)  # fmt: skip
_ORIGIN = b"$ORIGIN/../lib"


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """A Python of this machine."""

    prefix: str
    version: str
    release: str
    """As ``3.12``."""
    kind: str


def find_python(release: str, agent: str) -> Python:
    """Find a Python of a release.

    Args:
        release: As ``3.12``.
        agent: What needs it, for the message.

    Raises:
        UsageError: This machine has none that can be copied.
    """
    for path in _candidates(release):
        try:
            command = [path, "-I", "-c", _FACTS]
            result = subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
            python = msgspec.json.decode(result.stdout, type=Python)
        # For instance a shim that leads nowhere.
        except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError):
            continue
        library = Path(python.prefix, "lib", f"python{release}")
        is_complete = (library / "os.py").is_file() and (library / "ensurepip").is_dir()
        if python.release == release and python.kind == "cpython" and is_complete:
            return python
    raise UsageError(
        f"{agent} needs Python {release}, which this machine lacks: uv python install {release}"
    )


def _candidates(release: str) -> Iterator[str]:
    for variable, folder, pattern in _INSTALL_FOLDERS:
        root = Path(os.environ.get(variable) or folder).expanduser()
        yield from map(str, sorted(root.glob(pattern.format(release, release))))
    if program := shutil.which(f"python{release}"):  # last: a distribution's needs more of it
        yield program


def pack_python(python: Python, target_folder: str) -> bytes:
    """Pack a Python, as a tarball that is the same for the same Python.

    Args:
        python: It.
        target_folder: The folder in which the tarball has it.
    """
    prefix, program = Path(python.prefix), f"bin/python{python.release}"
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

        add(prefix / program, _relocate_library((prefix / program).read_bytes(), prefix))
        for library in sorted(prefix.glob(f"lib/libpython{python.release}.so*")):
            add(library)
        for folder, folders, files in os.walk(prefix / "lib" / f"python{python.release}"):
            folders[:] = sorted(set(folders) - _EXCLUDED_FOLDERS)
            for name in sorted(files):
                if not name.endswith(".a"):
                    add(Path(folder, name))
    return buffer.getvalue()


def _relocate_library(program: bytes, prefix: Path) -> bytes:
    """Return a program that looks for its library beside itself, not where it was installed."""
    library_path = os.fsencode(prefix / "lib")
    if len(library_path) < len(_ORIGIN):
        return program
    return program.replace(library_path + b"\0", _ORIGIN.ljust(len(library_path) + 1, b"\0"))
