"""CI on a machine that is starved of its processors: what has no time left is said, by number."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = "NOT RUN: 2 of 2 tests"


@pytest.mark.parametrize(
    ("seconds_left", "outcome", "said"), [(-1, "2 skipped", SKIPPED), (3600, "2 passed", "")]
)
def test_no_test_begins_after_the_deadline(
    tmp_path: Path, seconds_left: int, outcome: str, said: str
) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    report = tmp_path / "tests.xml"
    deadline = {"CI_DEADLINE": str(time.time() + seconds_left), "PYTHONPATH": str(ROOT / ".ci")}
    command = ["-m", "pytest", "-p", "starved", f"--junitxml={report}", "-c", "/dev/null"]
    done = run(*command, str(tmp_path), **deadline)
    assert done.returncode == 0 and outcome in done.stdout, done.stdout + done.stderr
    judged = run(".ci/skips.py", str(report))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert said in judged.stdout and bool(said) == bool(judged.stdout)


def test_a_failure_is_not_lost_by_the_deadline(tmp_path: Path) -> None:
    """The first try fails before it, and the second one begins after it."""
    late = "import time\ndef test_it():\n    time.time = lambda: 1e12\n    assert False\n"
    (tmp_path / "test_it.py").write_text(late)
    deadline = {"CI_DEADLINE": str(time.time() + 9999), "PYTHONPATH": str(ROOT / ".ci")}
    command = ["-m", "pytest", "-p", "starved", "--reruns", "1", "-c", "/dev/null"]
    done = run(*command, str(tmp_path), **deadline)
    assert done.returncode == 1 and "1 failed, 1 rerun" in done.stdout, done.stdout + done.stderr


FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number, request):
    done = pathlib.Path(__file__).with_name(f"done-{{number}}")
    if not done.exists():
        done.touch()
        assert not "the first time"
"""


@pytest.mark.parametrize(
    ("count", "deadline", "code", "said"),
    [(2, "", 0, "passed only when repeated"), (3, "", 1, "3 were repeated"), (3, "9e9", 0, "")],
)
def test_few_tests_may_need_a_second_try(
    tmp_path: Path, count: int, deadline: str, code: int, said: str
) -> None:
    (tmp_path / "test_it.py").write_text(FLAKY.format(count=count))
    command = ["-m", "pytest", "-p", "repeated", "--reruns", "1", "-c", "/dev/null", "-n", "2"]
    variables = {"CI_DEADLINE": deadline, "PYTHONPATH": str(ROOT / ".ci")}
    done = run(*command, str(tmp_path), **variables)
    assert done.returncode == code and f"{count} rerun" in done.stdout, done.stdout + done.stderr
    assert said in done.stdout and "the first time" in done.stdout


def test_how_much_of_this_machine_is_ours() -> None:
    done = run(".ci/starved.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("%") == len(os.sched_getaffinity(0))
    assert done.stdout.strip() in ("", "2700")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
