"""`clean --all`: what it frees, what it asks, and what it leaves to living processes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import PATIENCE

from .conftest import Run, command, parsed

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
HOLD = """
import sys
from intercode_sandbox.host_files import cache_root, hold_folder
hold_folder(cache_root() / "databases")
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A cache of one's own, which one run has filled."""
    return {**NO_ENGINE, "INTERCODE_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def filled(cli: Run, env: dict[str, str]) -> Iterator[Run]:
    cli("run", "sql", "--limit", 1, "--quiet", "--out", "runs/a", env=env)
    yield cli


def sizes(told: dict[str, object]) -> dict[str, int]:
    return {part["what"]: part["size"] for part in told["parts"]}  # type: ignore[attr-defined]


def test_all_is_freed_and_made_again(filled: Run, env: dict[str, str], tmp_path: Path) -> None:
    refused = filled("clean", "--all", env=env, code=2).stderr
    assert "--yes" in refused
    would = parsed(filled("clean", "--all", "--dry-run", "--json", env=env))
    assert would["dry_run"] and would["size"] == sum(sizes(would).values())
    # An image of folders alone takes no room on a file system in memory.
    assert "images" in sizes(would) and sizes(would)["converted databases"] > 0
    assert list((tmp_path / "cache/databases").iterdir())
    did = parsed(filled("clean", "--all", "--yes", "--json", env=env))
    assert {**did, "dry_run": True} == would
    assert not list((tmp_path / "cache/databases").iterdir())
    assert (tmp_path / "runs/a/run.json").is_file()
    assert "would free 0 B" in filled("clean", "--all", "--dry-run", env=env).stdout
    again = filled("run", "sql", "--limit", 1, "--quiet", "--out", "runs/b", env=env)
    assert "100.0 %" in again.stdout


def test_what_a_living_process_uses_is_kept(
    filled: Run, env: dict[str, str], tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", HOLD]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env={**os.environ, **env}, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout and holder.stdout.readline() == b"holds\n"
        shown = filled("clean", "--all", "--yes", env=env).stdout
        assert "in use: kept" in shown and list((tmp_path / "cache/databases").iterdir())
        holder.communicate()
    filled("clean", "--all", "--yes", env=env)
    assert not list((tmp_path / "cache/databases").iterdir())


def test_on_a_terminal_it_asks(filled: Run, env: dict[str, str], tmp_path: Path) -> None:
    for answer, left in ((b"\n", True), (b"y\n", False)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        done = subprocess.run(
            command("clean", "--all"),
            env={**os.environ, **env},
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        os.close(ours)
        os.close(theirs)
        assert "Remove them? [y/N]" in done.stdout
        assert ("nothing was removed" in done.stdout) == left
        assert bool(list((tmp_path / "cache/databases").iterdir())) == left
