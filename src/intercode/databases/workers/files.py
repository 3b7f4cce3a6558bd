"""The files of an embedded database, as its worker sees them: the pristine one, and a copy."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK = 1 << 26


def clear() -> None:
    """Delete what a session before left."""
    for path in list(Path("/").iterdir()):
        if path.is_symlink() or not path.is_dir():
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
