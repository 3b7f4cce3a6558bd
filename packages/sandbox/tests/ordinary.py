"""Commands as an ordinary user, where the tests run as root."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

UID = 54_321
_AS_USER = Path(__file__).with_name("sandbox") / "as_user.py"


@dataclass(frozen=True)
class OrdinaryUser:
    home: Path
    prefix: tuple[str, ...]
    """Before a command; it starts in the repository."""
    env: dict[str, str]


@contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Whoever runs the tests, if that is an ordinary user; with a home and a cache of their own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        prefix: tuple[str, ...] = ()
        if os.geteuid() == 0:
            os.chown(name, UID, UID)
            prefix = (sys.executable, str(_AS_USER), str(UID))
        env = {**os.environ, "HOME": name, "INTERCODE_CACHE": f"{name}/cache"}
        yield OrdinaryUser(Path(name), prefix, env)
