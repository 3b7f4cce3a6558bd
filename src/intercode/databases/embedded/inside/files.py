"""The files of an embedded database, as its worker sees them: the pristine one, and a copy."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK = 1 << 26


FOLDER = Path("/database")
"""In the sandbox; nobody else's files are in it."""


def prepare() -> None:
    """Make the folder, and work there: the engine's own temporary files go to it, too."""
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)


def clear() -> None:
    """Delete what a session left."""
    for path in list(FOLDER.iterdir()):
        path.unlink()


def copy(pristine: int, path: Path) -> None:
    """Copy the pristine file; at `path` it is whole or not there at all.

    Raises:
        OSError: There is no room.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        offset, size = 0, os.fstat(pristine).st_size
        while offset < size:
            offset += os.sendfile(out, pristine, offset, min(_CHUNK, size - offset))
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(out)
    temporary.rename(path)
