"""Commands as an ordinary user, where the tests run as root."""

from __future__ import annotations

import os
import re
import subprocess
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


def run_tests(*folders: Path) -> int:
    """Run the tests marked ``ordinary`` as an ordinary user; return how many have passed."""
    with ordinary_user() as user:
        home = user.home
        options = ("-q", "-m", "ordinary", "-p", "no:cacheprovider", "--basetemp", f"{home}/pytest")
        done = subprocess.run(
            [*user.prefix, sys.executable, "-m", "pytest", *options, *map(str, folders)],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "INTERCODE_CACHE": f"{home}/cache",
                "HYPOTHESIS_STORAGE_DIRECTORY": f"{home}/hypothesis",
                "PYTHONDONTWRITEBYTECODE": "1",
                # Where it is set, the same examples of the property-based tests every time.
                **{name: os.environ[name] for name in ("CI",) if name in os.environ},
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    return int(passed[1])
