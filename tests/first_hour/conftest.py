"""A new user's machine: this checkout's wheels in a fresh virtual environment, outside of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ordinary import ordinary_user
from waiting import PATIENCE

REPOSITORY = Path(__file__).parents[2]
_OURS = re.compile(r"INTERCODE_|PYTHON|CI$|OPENAI_|ANTHROPIC_|VIRTUAL_ENV$")
"""Variables that a new user does not have."""


@dataclass(frozen=True)
class Someone:
    """A new user: commands run in an empty folder of theirs, with the wheels' environment."""

    venv: Path
    home: Path
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, *command: str, code: int = 0, stdin: str | bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (``intercode …``, ``python …``), and check its exit code.

        Args:
            command: The program, looked up in the virtual environment first, and its arguments.
            code: The exit code that it must have.
            stdin: Its standard input.
            env: Further variables.
        """
        done = subprocess.run(
            [*self.prefix, "sh", "-c", 'cd "$0" && exec "$@"', str(self.home), *command],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=PATIENCE,
            env={**self.env, **env},
            check=False,
        )
        result = subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(), done.stderr.decode()
        )
        assert result.returncode == code, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stdout + result.stderr, result.stderr
        return result

    def file(self, name: str, text: str) -> Path:
        """Write a file in the user's folder, owned by them."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        owner = self.home.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        return path


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="first-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def wheels(place: Path) -> dict[str, Path]:
    """The wheels of this checkout's packages, by the packages' names."""
    packages = sorted((REPOSITORY / "packages").iterdir())
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(place), *map(str, packages))
    return {p.name: next(place.glob(f"intercode_{p.name}-*.whl")) for p in packages}


@pytest.fixture(scope="session")
def venv(place: Path, wheels: dict[str, Path]) -> Path:
    """A virtual environment with the wheels and what they depend on. A test changes it only
    where it puts it back."""
    return install(place / "venv", *map(str, wheels.values()))


@pytest.fixture
def root(venv: Path, tmp_path: Path) -> Someone:
    """Whoever runs the tests, with nothing of the checkout in sight."""
    return Someone(venv, tmp_path, env=variables(venv, tmp_path))


@pytest.fixture
def user(venv: Path) -> Iterator[Someone]:
    """An ordinary user."""
    with ordinary_user() as person:
        yield Someone(venv, person.home, person.prefix, variables(venv, person.home))


@pytest.fixture(params=["root", "user"])
def someone(request: pytest.FixtureRequest) -> Someone:
    """Root, and an ordinary user."""
    found: Someone = request.getfixturevalue(request.param)
    return found


def install(venv: Path, *what: str) -> Path:
    """Make a virtual environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=PATIENCE)
    pip(str(venv / "bin/python"), "install", *what)
    return venv


def publish(checkout: Path, repository: Path) -> None:
    """Commit the files of a checkout, as they are now, to a new repository."""
    git = ("git", "--git-dir", str(repository), "--work-tree", str(checkout))
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    for command in (
        ("git", "init", "--quiet", "--bare", str(repository)),
        (*git, "add", "--all"),
        (*git, *author, "commit", "--quiet", "--message", "All files"),
    ):
        subprocess.run(command, cwd=checkout, check=True, timeout=PATIENCE)


def pip(python: str, *arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--timeout", "60", "--retries", "10")
    done = subprocess.run(
        [python, "-m", "pip", arguments[0], *quiet, *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def variables(venv: Path, home: Path) -> dict[str, str]:
    """Return the variables of a user whose programs are those of a folder and of the system."""
    kept = {name: text for name, text in os.environ.items() if not _OURS.match(name)}
    path = f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    # As a shell of an ordinary user has it: no sbin.
    return {**kept, "HOME": str(home), "PATH": path, "XDG_CACHE_HOME": str(home / ".cache")}
