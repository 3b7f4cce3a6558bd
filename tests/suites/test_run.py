"""The command that runs suites, in a project of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from suites.table import ROOT

TABLE = """
[good]
about = "passes"
command = "test ! -e broken"
inputs = ["/broken", "/input"]
minutes = 0.1

[tested]
about = "tests of pytest"
tests = ["tests/test_other.py"]
minutes = 0.1

[core]
about = "the others"
tests = ["tests/test_*.py"]
minutes = 0.1
"""
TESTS = """
import pathlib, pytest
def test_it(): pass
@pytest.mark.parametrize("number", range(3))
def test_race(number):
    seen = pathlib.Path(f"{__file__}.{number}")
    if number < int(pathlib.Path("races").read_text()) and not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
def test_skipped():
    if pathlib.Path("skipped").exists():
        pytest.skip("needs a thing")
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "tests/suites", tmp_path / "tests/suites")
    (tmp_path / "tests/suites.toml").write_text(TABLE)
    (tmp_path / "tests/conftest.py").write_text('pytest_plugins = ["suites.plugin"]\n')
    (tmp_path / "tests/test_other.py").write_text(TESTS)
    (tmp_path / "tests/test_core.py").write_text("def test_core(): pass\n")
    (tmp_path / "races").write_text("0")
    (tmp_path / ".gitignore").write_text("__pycache__\n.pytest_cache\n*.py.[0-9]\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def run(project: Path) -> Run:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "suites", *words],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project / "tests")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def record(project: Path) -> set[str]:
    path = project / "tests/passed.json"
    return set(json.loads(path.read_text())) if path.exists() else set()


def test_what_passes_is_recorded_and_known_until_an_input_changes(project: Path, run: Run) -> None:
    said = run().stdout
    lines = sorted(line.split()[:3] for line in said.splitlines()[1:3])
    assert lines == [["good", "passed", "-"], ["tested", "passed", "5"]]
    assert record(project) == {"good", "tested"}
    said = run("changed").stdout
    assert "known  good" in said and "known  tested" in said and "ran" not in said
    (project / "input").touch()
    said = run("--plan").stdout
    assert "to run good: its files have changed" in said and "known  tested" in said
    said = run("changed").stdout
    assert "ran    good: its files have changed" in said and "known  tested" in said


def test_a_check_runs_what_is_unknown_and_one_that_is_drawn(project: Path, run: Run) -> None:
    said = run("--check").stdout
    assert "ran    good: it never passed" in said and not record(project), "only a run records"
    run("good")
    said = run("--check").stdout
    assert "ran    good: it is known" in said and "ran    tested: it never passed" in said
    (project / "broken").touch()
    (project / "tests/test_other.py").write_text("def test_it(): assert False, 'a reason'\n")
    said = run("--check", code=1).stdout
    assert "FAILED: good, tested" in said and "a reason" in said


def test_what_fails_is_not_recorded(project: Path, run: Run) -> None:
    (project / "broken").touch()
    assert "FAILED: good" in run("good", code=1).stdout
    assert record(project) == set()


def test_a_suite_that_would_end_too_late_is_named_and_not_begun(project: Path, run: Run) -> None:
    said = run("--check", "--elapsed", "74.95", code=1).stdout
    assert "LEFT   good" in said and "LEFT   tested" in said and "ran " not in said


def test_a_slow_machine_is_slow_for_what_comes(project: Path, run: Run) -> None:
    outcome = project / "outcome"
    outcome.write_text(
        json.dumps({"code": 0, "counts": {"passed": 1}, "minutes": 1.0, "skips": {}})
    )
    said = run("--check", "--core", str(outcome), "--elapsed", "74.5", code=1).stdout
    assert "LEFT   good" in said, "ten times as slow as planned"


@pytest.mark.parametrize(("races", "code"), [(2, 0), (3, 1)])
def test_a_race_is_shown_and_too_many_fail(project: Path, run: Run, races: int, code: int) -> None:
    (project / "races").write_text(str(races))
    said = run("--check", code=code).stdout
    assert f"{races} repeated" in said and "the first time" in said
    assert ("tests were repeated" in said) == (code == 1)


def test_a_skip_for_want_of_something_fails(project: Path, run: Run) -> None:
    (project / "skipped").touch()
    said = run("tested", code=1).stdout
    assert "needs a thing" in said and "FAILED: tested" in said and not record(project)


def test_a_run_of_make_test_that_failed_fails_the_check(project: Path, run: Run) -> None:
    outcome = project / "outcome"
    outcome.touch()
    assert "FAILED: core" in run("--check", "--core", str(outcome), code=1).stdout


def test_an_unknown_suite(run: Run) -> None:
    assert "no such suite: poems; known: good, tested, core" in run("poems", code=2).stdout


def test_core_is_what_no_other_suite_has(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--suite=core", "--ignore", "tests/suites"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 5 deselected" in done.stdout
