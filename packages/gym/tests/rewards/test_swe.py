"""The parts of the SWE reward that need no sandbox: diffs, plans, reports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings, strategies as st

from foreign_sandbox import ForeignSandbox
from intercode.rewards import swe_runner
from intercode.rewards.swe import transfer_work
from intercode.rewards.swe_plan import make_plan, patch_paths
from intercode.rewards.swe_run import EXPECTED, TestReportError, make_failing_tests, read_report
from intercode.task import Task
from intercode_sandbox import Change, SandboxBackend, get_provider

NAMES = ["tests/test_a.py::test_x", "src/check_b.py::Case::test_y[a::b c]"]


def plan(gold: str = "", **facts: Any) -> Any:
    metadata = {"FAIL_TO_PASS": NAMES, **facts}
    return make_plan(Task("t", "q", (gold,) if gold else (), metadata=metadata))


def diff(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize(
    ("patch", "paths"),
    [
        (diff("x.py") + diff("d/y z.py"), {"x.py", "d/y z.py"}),
        ("--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+a\n", {"new"}),
        ("diff --git a/o b/n\nrename from o\nrename to n\n", {"o", "n"}),
        ("diff --git a/bin b/bin\nBinary files differ\n", {"bin"}),
        ('diff --git "a/\\303\\251\\t" "b/\\303\\251\\t"\n', {"é\t"}),
        ("--- a/x\t2020-01-01\n+++ b/x\t2020-01-01\n@@ -1 +1 @@\n-a\n+b\n", {"x"}),
        # Lines of a hunk that look like headers.
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/no\n+++ b/no\n \n", {"x"}),
        ("no diff at all", set()),
    ],
)
def test_what_a_diff_touches(patch: str, paths: set[str]) -> None:
    assert patch_paths(patch) == paths


@pytest.mark.parametrize("path", ["../x", "d/../../x", "/etc/passwd"])
def test_a_diff_that_leads_out(path: str) -> None:
    with pytest.raises(ValueError, match="not in the repository"):
        patch_paths(f"--- a/{path}\n+++ b/{path}\n")


@given(st.text())
def test_any_text_is_a_diff_or_none(text: str) -> None:
    try:
        patch_paths(text)
    except ValueError as error:
        assert "not in the repository" in str(error)


PATHS = st.from_regex(r"[a-z]{1,3}(/[a-z é\"]{1,4}[a-z])?", fullmatch=True)
LINES = st.text("ab-+ @\n", min_size=1)


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(PATHS, LINES, min_size=1, max_size=3))
def test_what_git_writes_is_understood(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]
) -> None:
    place = tmp_path_factory.mktemp("diff")
    old, new = place / "a", place / "b"
    files = {name: text for name, text in files.items() if not any(
        other.startswith(f"{name}/") for other in files)}  # fmt: skip
    for folder, end in ((old, "x\n"), (new, "y\n")):
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + end)
    made = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", "a", "b"],
        cwd=place, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert patch_paths(made) == set(files)


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("src/calc.py", True),
        ("docs/test.md", True),
        ("contest.py", True),
        ("test.py", True),
        ("tests/helper.py", False),
        ("src/test_a.py", False),
        ("src/a_test.py", False),
        ("src/conftest.py", False),
        ("pytest.ini", False),
        ("setup.cfg", False),
        ("src/check_b.py", False),
        ("src/check_b/__init__.py", False),
        ("src/check_b.cpython-311-x86_64-linux-gnu.so", False),
        ("other/check_b.py", True),
        ("src/__pycache__/calc.cpython-311.pyc", False),
        (".git/config", False),
        ("sub/.git/config", False),
        ("x.egg-info/entry_points.txt", False),
        ("sitecustomize.py", False),
        ("data/case.json", False),
        # As Python's importlib.metadata reads them.
        ("x.DIST-INFO/entry_points.txt", False),
        # In place of a folder with tests.
        ("tests.py", False),
        ("src.cpython-311-x86_64-linux-gnu.so", False),
        ("src/tests.py", True),
        ("src", True),
    ],
)
def test_what_counts(path: str, taken: bool) -> None:
    assert plan(test_files=["data/*.json"]).takes(path) is taken


def test_a_mode_is_not_changed_through_a_link() -> None:
    """A link's own mode is 777: among files of that mode, it is left alone."""

    class Changed(ForeignSandbox):
        def changes(self) -> list[Change]:
            changed = ("file", "/root/r/a"), ("symlink", "/root/r/b")
            return [Change(p, "modified", t, 0o777, content_changed=False) for t, p in changed]

    make = "mkdir r; cd r; touch a c; ln -s c b; chmod 600 a c"
    with closing(get_provider().start()) as agents, closing(get_provider().start()) as fresh:
        assert fresh.exec(["bash", "-c", make]).ok
        transfer_work(cast(SandboxBackend, Changed(agents)), fresh, plan(directory="/root/r"))
        assert fresh.exec(["stat", "-c", "%a", "r/a", "r/c"]).stdout == b"777\n600\n"


def test_what_gold_changes_counts_unless_the_tests_change_it_too() -> None:
    with_gold = plan(diff("setup.cfg") + diff("tests/util.py"), test_patch=diff("tests/util.py"))
    assert with_gold.takes("setup.cfg")
    assert not with_gold.takes("tests/util.py")
    assert not with_gold.takes("tox.ini")
    # A test may be in the source itself.
    assert plan(diff("src/check_b.py")).takes("src/check_b.py")


def test_names_as_the_authors_have_them() -> None:
    assert plan(PASS_TO_PASS='["a.py::x", "a.py::x"]').tests == (*NAMES, "a.py::x")
    unittest = plan(runner="unittest", FAIL_TO_PASS=["pkg.checks.Case.test_x"])
    assert not unittest.takes("pkg/checks.py")
    assert unittest.takes("pkg/other.py")


def report(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


def case(name: str, inner: str = "", *more: str) -> str:
    nodes = f'<property name="nodeid" value="{name}"/>'
    nodes += "".join(f'<property name="{one}" value=""/>' for one in more)
    inner = f"<properties>{nodes}</properties>{inner}"
    return f'<testcase classname="c" name="n">{inner}</testcase>'


def test_outcomes_in_a_report() -> None:
    found = read_report(
        report(
            case("good", "<system-out>x</system-out>"),
            case("xfail", '<skipped type="pytest.xfail"/>', EXPECTED),
            case("late", '<skipped type="pytest.xfail"/>'),
            case("bad", "<failure>x</failure>"),
            case("broken", "<error/>"),
            case("skipped", '<skipped type="pytest.skip"/>'),
            case("twice"),
            case("twice"),
            case("again", "<error/>"),
            case("again"),
            '<testcase name="unnamed"/>',
            case("a::b[1 &lt; 2]"),
        )
    )
    good = {name for name, passed in found.items() if passed}
    assert good == {"good", "xfail", "a::b[1 < 2]"}
    assert len(found) == 9


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<a>",
        b"\0",
        b"<a/><b/>",
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        report(case("x")) + b"trailing",
        b"<a>" * 200 + b"</a>" * 200,
        '<?xml version="1.0" encoding="latin-1"?><a>é</a>'.encode("latin-1"),
    ],
)
def test_what_is_no_report(document: bytes) -> None:
    with pytest.raises(TestReportError, match="cannot be read"):
        read_report(document)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.text()))
def test_any_report_of_unittest_s_can_be_read(said: dict[str, str]) -> None:
    names = {name: text for name, text in said.items() if name.isprintable()}
    assert read_report(swe_runner.to_xml(names)) == {name: not names[name] for name in names}


CASES = """\
import unittest

class Case(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail("\\x00\\ud800")
    def test_error(self): raise SystemExit
    def test_mute(self): raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})
    def test_skipped(self): self.skipTest("x")
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
    def test_parts(self):
        for number in 1, 2:
            with self.subTest(number=number):
                self.assertEqual(number, 1)

class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError
    def test_x(self): pass
"""


def test_the_runner_is_for_python_from_3_8() -> None:
    ast.parse(Path(swe_runner.__file__).read_text(), feature_version=(3, 8))


def test_outcomes_of_unittest(tmp_path: Path) -> None:
    """The runner as it is run in a sandbox."""
    (tmp_path / "cases.py").write_text(CASES)
    wanted = [
        "good",
        "bad",
        "error",
        "mute",
        "skipped",
        "expected",
        "unexpected",
        "parts",
        "missing",
    ]
    names = [f"cases.Case.test_{name}" for name in wanted] + ["cases.Broken.test_x", "no.Such.test"]
    names += ["ends.Case.test_x", "wrong.Case.test_x"]
    (tmp_path / "ends.py").write_text("raise SystemExit(0)")
    (tmp_path / "wrong.py").write_text("def")
    message = {"runner": "unittest", "tests": [[], names, []], "seconds": 20, "secret": "S"}
    done = subprocess.run(
        [sys.executable, swe_runner.__file__], cwd=tmp_path, capture_output=True,
        input=json.dumps(message).encode(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"S.")
    ET.fromstring(done.stdout[2:])
    found = read_report(done.stdout[2:])
    assert {name for name, passed in found.items() if passed} == {
        "cases.Case.test_good",
        "cases.Case.test_expected",
    }
    assert found.keys() == set(names)
    assert b"cases.Case.test_skipped: 'skipped: x'" in done.stderr


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_what_betrays_tampering(runner: str) -> None:
    ours = make_failing_tests(runner, "t/test_x.py" if runner == "pytest" else "test_x")
    failed = dict.fromkeys((*ours.first_names, *ours.last_names), False)
    assert not ours.detect_tampering({**failed, "another": True}, is_complete=True)
    for name in failed:
        assert ours.detect_tampering({**failed, name: True}, is_complete=True)
        missing = {other: False for other in failed if other != name}
        assert ours.detect_tampering(missing, is_complete=True) is (name not in ours.optional_names)
    assert not ours.detect_tampering(dict.fromkeys(ours.first_names, False), is_complete=False)
    assert ours.detect_tampering(dict.fromkeys(ours.first_names, False), is_complete=True)
    assert ours.detect_tampering({}, is_complete=False)
