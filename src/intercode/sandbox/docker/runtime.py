"""A Python that runs in any image: this one, with its library, its shared objects and its loader.

An image may have no Python, another C library, or none. So what process 1 of a container runs on is
mounted into it, read-only, and started through its own loader: nothing of the image's is used. It
is copied once, since the machine's own may be anywhere, and may be upgraded under a container.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from intercode.errors import SandboxUnavailableError
from intercode.files import locked
from intercode.sandbox.images import cache_root
from intercode.sandbox.images.base import digest_of

VERSION = "2"
LOADER, PYTHON = "ld.so", "bin/python3"
_LEFT_OUT = shutil.ignore_patterns(
    "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test",
    "tests", "tkinter", "turtledemo", "*.a", "*.opt-?.pyc",
)  # fmt: skip
_LOADED = re.compile(r"(?:=>\s*)?(/\S+) \(0x[0-9a-f]+\)$")


def runtime(owner: int) -> Path:
    """The folder with it, made if need be.

    Args:
        owner: Whose it is, where we are root: see `home.closed_to`.

    Raises:
        SandboxUnavailableError: This Python cannot be copied.
    """
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    facts = program.stat()
    size = f"{facts.st_size} {facts.st_mtime_ns}"
    digest = digest_of(VERSION, sys.version, str(program), size, str(owner))
    parent = cache_root() / "docker"
    parent.mkdir(parents=True, exist_ok=True)
    place = parent / f"python-{digest}"
    if place.is_dir():
        return place
    with locked(parent / "python.lock"):
        if not place.is_dir():
            temporary = parent / f".python-{digest}"
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                _copy(program, temporary, owner)
            except OSError as error:
                raise SandboxUnavailableError(
                    f"this Python ({program}) cannot be copied for containers: {error}"
                ) from error
            temporary.rename(place)
    return place


def _copy(program: Path, place: Path, owner: int) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    copied = place / "lib" / library.name
    shutil.copytree(library, copied, ignore=_LEFT_OUT)
    dynamic = Path(sysconfig.get_path("platstdlib"), "lib-dynload")
    if dynamic.is_dir() and not (copied / dynamic.name).is_dir():
        shutil.copytree(dynamic, copied / dynamic.name)
    (place / "bin").mkdir()
    shutil.copy2(program, place / PYTHON)
    (place / "so").mkdir()
    for path in _shared_objects([program, *(copied / dynamic.name).glob("*.so")]):
        loader = path.name.startswith("ld-")
        shutil.copy2(path, place / (LOADER if loader else f"so/{path.name}"))
    if not (place / LOADER).exists():
        raise OSError("it has no dynamic loader")
    if os.geteuid() == 0:
        os.chown(place, owner, owner)
        place.chmod(0o700)


def _shared_objects(files: list[Path]) -> set[Path]:
    """All that the loader would load for these."""
    done = subprocess.run(
        ["ldd", *map(str, files)], capture_output=True, text=True, check=False, timeout=60
    )
    found = (_LOADED.search(line.strip()) for line in done.stdout.splitlines())
    return {Path(match[1]) for match in found if match}
