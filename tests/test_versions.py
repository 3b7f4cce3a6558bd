"""The versions of Python that the package declares are those that are checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from suites.table import read
from waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PROJECTS = [tomllib.loads(f.read_text("utf-8")) for f in ROOT.glob("packages/*/pyproject.toml")]
DECLARED = re.findall(
    r"Programming Language :: Python :: (3\.\d+)", " ".join(PROJECTS[0]["project"]["classifiers"])
)


def test_every_place_names_the_same_versions() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    oldest = DECLARED[0]
    for package in PROJECTS:
        assert package["project"]["requires-python"] == f">={oldest}"
        declared = [f"Programming Language :: Python :: {version}" for version in DECLARED]
        assert [c for c in package["project"]["classifiers"] if " :: 3." in c] == declared
    assert tools["mypy"]["python_version"] == oldest
    assert tools["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f"\nVERSIONS ?= {' '.join(DECLARED)}\n" in makefile
    finder = (ROOT / "scripts/find-python").read_text("utf-8")
    assert f"({oldest.replace('.', ', ')})" in finder
    assert sorted(set(re.findall(r"python(3\.\d+)", finder))) == DECLARED
    command = read()["versions"].command
    assert command.partition("VERSIONS=")[2] in DECLARED


def test_a_version_without_a_python_is_an_error_unless_it_is_left_out() -> None:
    done = check_versions("3.98", "3.99")
    assert done.returncode == 1
    for version in ("3.98", "3.99"):
        assert f"\n{version}  NOT RUN: no Python here" in done.stdout
    done = check_versions("3.98", "3.99", LEAVE_OUT="3.99 3.98")
    assert done.returncode == 0
    assert done.stdout.split("\n")[1:3] == ["3.98  NOT RUN: left out", "3.99  NOT RUN: left out"]


def test_a_python_of_another_version_is_not_taken(tmp_path: Path) -> None:
    """A shim of pyenv has a version's name, and may run none."""
    for name in ("python3.98", "python3"):
        (tmp_path / name).symlink_to(sys.executable)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONS": f"{tmp_path}/python3 /none"}
    done = check_versions("3.98", **paths)
    assert done.returncode == 1 and "3.98  NOT RUN" in done.stdout


def check_versions(*versions: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts/test-versions"), *versions],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
