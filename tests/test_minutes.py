"""CI fails, and says why, where a part of the suite costs more than its budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
XML = '<testsuite><testcase classname="tests.envs.test_it" name="test_it" time="1.5"/></testsuite>'


def minutes(reports: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/minutes.py", str(reports), "60", *steps]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def report(folder: Path, **parts: float) -> None:
    """Of a machine that is half as fast as a quiet one."""
    written = {"spent": {name: 2 * seconds for name, seconds in parts.items()}, "quiet": parts}
    (folder / "cpu-gw0-1.json").write_text(json.dumps(written))
    (folder / "tests.xml").write_text(XML)


def test_a_table_with_a_line_for_each_part(tmp_path: Path) -> None:
    report(tmp_path, envs=120, models=1.2)
    done = minutes(tmp_path, "lint=12000")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1][:4] == ["envs", "1", "2", "1.00"]
    assert lines[2][:4] == ["lint", "0", "0", "0.50"]  # of 120 seconds, on a slow machine
    assert lines[4][:4] == ["all", "1", "60", "1.51"]
    assert "2.00 times as fast" in done.stdout


@pytest.mark.parametrize(
    ("part", "said"),
    [("models", "models took 500.00 minutes, more than"), ("poems", "poems has no budget")],
)
def test_a_part_that_costs_too_much_is_named(tmp_path: Path, part: str, said: str) -> None:
    report(tmp_path, **{part: 60_000})
    done = minutes(tmp_path)
    assert done.returncode == 1
    assert said in done.stdout


def test_what_runs_tests_writes_what_they_cost(tmp_path: Path) -> None:
    test = tmp_path / "tests" / "envs" / "test_it.py"
    test.parent.mkdir(parents=True)
    test.write_text("def test_it(): sum(range(10**6))\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "minutes", "tests"]
    env = {"PYTHONPATH": str(ROOT / ".ci"), "REPORTS": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    written = json.loads(next(tmp_path.glob("cpu-main-*.json")).read_text())
    assert set(written["spent"]) == set(written["quiet"]) == {"collection", "envs"}
    assert written["spent"]["envs"] > 0
