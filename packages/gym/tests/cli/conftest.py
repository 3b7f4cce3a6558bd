"""Running the command line as a user does: a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warm import Warm

Run = Callable[..., "subprocess.CompletedProcess[str]"]

TASKS: list[dict[str, Any]] = [
    {"task_id": "hello", "query": "say hello", "gold": "echo hello", "tags": ["output"]},
    {"task_id": "touch", "query": "make a file", "gold": "touch made", "tags": ["files"]},
    {
        "task_id": "bash_001",
        "query": "Find all files larger than 100MB and delete them.",
        "gold": "find test_files -size +100M -delete",
        "setup": "mkdir test_files; truncate -s 150M test_files/big.txt",
        "verification": "test ! -f test_files/big.txt",
        "tags": ["files", "verified"],
    },
    {"task_id": "nasty", "query": "clear\u001b[2J it", "gold": "printf '\\033[2J\\377\\rx\\n'"},
]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts commands from a process that has imported InterCode."""
    with Warm() as server:
        yield server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of four tasks."""
    return write(tmp_path / "tasks.json", TASKS)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def command(*arguments: object, module: str = "intercode.cli") -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


@pytest.fixture
def cli(tmp_path: Path, warm: Warm) -> Run:
    """Runs ``intercode ARGUMENTS`` in a folder of the test's own."""

    def run(
        *arguments: object,
        code: int | None = 0,
        stdin: str = "",
        module: str = "intercode.cli",
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        done = warm.run(
            ["python", "-m", module, *map(str, arguments)],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            timeout=280,
            env=env,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    return run


def parsed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout.isascii()
    return json.loads(done.stdout)


def keys(value: dict[str, Any], expected: str) -> None:
    """Exactly these, given as words."""
    assert sorted(value) == sorted(expected.split())
