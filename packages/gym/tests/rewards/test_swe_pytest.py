"""What pytest reports of tests with names of all kinds, as the sandbox's own pytest runs them."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from intercode.envs.swe import SweEnv
from intercode.rewards import swe_runner
from intercode.rewards.swe_run import make_failing_tests
from intercode.task import Dataset, Task

CASES = """\
import pytest, unittest

@pytest.mark.parametrize("x", ["a b", "c::d", "[e]", "é", "<&>", "", "f/g.py"])
def test_names(x): pass

class TestOuter:
    class TestInner:
        def test_deep(self): pass

class Case(unittest.TestCase):
    def test_case(self): pass
    def test_bad(self): self.fail()
    @unittest.skip("x")
    def test_skipped(self): pass

@pytest.fixture
def late():
    yield
    raise OSError

def test_teardown(late): pass
def test_teardown_twice(late): assert 0
@pytest.mark.xfail
def test_xfail(): assert 0
def test_marked_late(request):
    request.node.add_marker(pytest.mark.xfail)
    assert 0
class Expected(unittest.TestCase):
    @unittest.expectedFailure
    def test_expected(self): self.fail()
def test_xfail_late(): pytest.xfail()
def test_skip_late(): pytest.skip()
@pytest.mark.xfail
def test_xpass(): pass
@pytest.mark.xfail(strict=True)
def test_xpass_strict(): pass
"""
BROKEN = "import no_such_module\ndef test_x(): pass\n"
GOOD = [
    "names[a b]", "names[c::d]", "names[[e]]", "names[\\xe9]", "names[<&>]", "names[]",
    "names[f/g.py]", "xfail", "marked_late", "xpass",
]  # fmt: skip
BAD = ["teardown", "teardown_twice", "xpass_strict", "xfail_late", "skip_late", "missing"]


def test_outcomes(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "t").mkdir(parents=True)
    (folder / "t" / "test_it.py").write_text(CASES)
    (folder / "t" / "test_broken.py").write_text(BROKEN)
    # Settings that would stop it early, or leave something out.
    (folder / "t" / "pytest.ini").write_text("[pytest]\naddopts = -x -q\npython_files = no_*.py\n")
    with tarfile.open(tmp_path / "plain.tar", "w") as archive:
        archive.add(folder, "plain")
    good = [f"t/test_it.py::test_{name}" for name in GOOD]
    good += ["t/test_it.py::TestOuter::TestInner::test_deep", "t/test_it.py::Case::test_case"]
    good += ["t/test_it.py::Expected::test_expected"]
    bad = [f"t/test_it.py::test_{name}" for name in BAD]
    bad += ["t/test_it.py::Case::test_bad", "t/test_it.py::Case::test_skipped"]
    bad += ["t/test_broken.py::test_x", "t/test_gone.py::test_x"]
    metadata = {
        "repository": str(tmp_path / "plain.tar"),
        "FAIL_TO_PASS": bad,
        "PASS_TO_PASS": json.dumps(good),
    }
    env = SweEnv(Dataset([Task("t", "q", timeout=20.0, metadata=metadata)]))
    env.reset()
    env.step("submit")
    assert env.episode.score is not None
    detail = env.episode.score.detail
    env.close()
    assert detail["failed"] == bad
    assert env.episode.score.parts == {"fail_to_pass": 0.0, "pass_to_pass": 1.0}


def test_what_must_fail_is_not_shown_as_the_projects_failures(tmp_path: Path) -> None:
    """Also by a newer pytest than the image's, which shows them in other words."""
    ours = make_failing_tests("pytest", "test_ours.py")
    (tmp_path / "test_ours.py").write_text(ours.source)
    (tmp_path / "test_it.py").write_text("def test_it(): assert 1 == 3\n")
    plan = {
        "runner": "pytest",
        "tests": [ours.first_names, ["test_it.py::test_it"], ours.last_names],
        "secret": "secret",
        "seconds": 60,
    }
    done = subprocess.run(
        [sys.executable, swe_runner.__file__],
        cwd=tmp_path, capture_output=True, input=json.dumps(plan).encode(), check=True,
    )  # fmt: skip
    shown = done.stderr.decode()
    assert "FAILED test_it.py::test_it - assert 1 == 3" in shown, "to the last line"
    assert " 1 failed" in shown
    for words in ("OSError", "1 == 2", "case.py", "test_First", "First::"):
        assert words not in shown
    assert done.stdout.count(b"<failure") == 1 + len(ours.first_names) + len(ours.last_names), (
        "reported"
    )
