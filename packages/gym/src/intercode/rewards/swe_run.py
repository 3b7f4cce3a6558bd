"""Runs of a task's named tests in a sandbox, with minimal trust in the tests' reports.

`run` executes the plan's tests and returns a `SweTestOutcome`. Tests that must fail
(`FailingTestModule`) run together with them and reveal manipulated test frameworks. `read_report`
parses the untrusted report.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.parsers import expat

from intercode.episode import decode
from intercode.errors import InterCodeError, TaskError
from intercode.rewards import swe_runner
from intercode.rewards.swe_plan import SweGradingPlan
from intercode.task import Task
from intercode_sandbox.base import SandboxBackend, SupportsPrivateExec
from intercode_sandbox.script_arguments import script

_GRACE = 5.0
"""Seconds after the tests' own time limit, after which InterCode ends the process."""
_OUTPUT = 4000
"""The most characters of the output that are kept."""


@dataclass(frozen=True, slots=True)
class SweTestOutcome:
    """The outcome of the tests."""

    passed_tests: frozenset[str]
    reason: str = ""
    """The reason why no test has passed, if no trustworthy report exists."""
    output: str = ""
    """The end of the tests' output, for people; the output is not parsed."""
    missing_tests: frozenset[str] = frozenset()
    """Tests without an entry in the report: no such test exists, or the time limit was reached."""


def run(
    sandbox: SandboxBackend,
    plan: SweGradingPlan,
    files: Mapping[PurePosixPath, bytes] | None = None,
) -> SweTestOutcome:
    """Run the plan's tests in a sandbox that holds the work to test and the tests.

    If a file cannot be written, because the work fills the disk or is in the file's path, no test
    passes.

    Args:
        sandbox: The sandbox.
        plan: The plan of the task.
        files: Files to write first, by path.
    """
    try:
        for path, content in (files or {}).items():
            sandbox.write_file(path, content)
        return _run_tests(sandbox, plan)
    except OSError as error:
        if isinstance(error, InterCodeError):
            raise
        return SweTestOutcome(frozenset(), f"the tests cannot be run over this work: {error}")


def _run_tests(sandbox: SandboxBackend, plan: SweGradingPlan) -> SweTestOutcome:
    seconds = sandbox.limits.seconds(plan.timeout)
    if plan.runner == "command":
        return _run_commands(sandbox, plan, seconds)
    secret = secrets.token_hex(16)
    marker = f"test_{secrets.token_hex(8)}"
    failing_tests = _install_failing_tests(sandbox, plan, marker)
    message = {
        "runner": plan.runner,
        "tests": [failing_tests.first_names, plan.tests, failing_tests.last_names],
        "secret": secret,
        "seconds": seconds,
    }
    result = sandbox.exec(
        [plan.python, _install_runner(sandbox)],
        stdin=json.dumps(message).encode(),
        # A fixed seed gives the same work the same score.
        env={"PYTHONHASHSEED": "0"},
        cwd=plan.directory,
        timeout=seconds + _GRACE,
        output_limit=_LIMIT,
    )
    sandbox.kill()
    output = _clean_output(marker, decode(result.stderr))
    start = secret.encode()
    if result.timed_out:
        return SweTestOutcome(frozenset(), f"the tests were not done within {seconds:g} s", output)
    if not result.ok or result.truncated or not result.stdout.startswith(start):
        return SweTestOutcome(
            frozenset(), f"the tests ended without a report ({result.exit_code})", output
        )
    is_complete = result.stdout[len(start) :][:1] == swe_runner.COMPLETE_MARK
    try:
        outcomes = read_report(result.stdout[len(start) + 1 :])
    except TestReportError as error:
        return SweTestOutcome(frozenset(), str(error), output)
    if failing_tests.detect_tampering(outcomes, is_complete):
        return SweTestOutcome(
            frozenset(), "tests that cannot pass have passed, or were not run", output
        )
    has_passed = frozenset(name for name, has_passed in outcomes.items() if has_passed)
    return SweTestOutcome(has_passed, "", output, frozenset(plan.tests) - outcomes.keys())


def check_runner(sandbox: SandboxBackend, task: Task, plan: SweGradingPlan) -> None:
    """Validate that the image can run the plan's tests, in a sandbox without an agent's work.

    Raises:
        TaskError: The image lacks the runner (pytest or unittest), or its Python.
    """
    if plan.runner == "command":
        return
    code = f"import unittest, xml.etree, {plan.runner}"
    result = sandbox.exec([plan.python, "-c", code], cwd="/", timeout=60.0)
    if not result.ok:
        raise TaskError(
            f"task {task.task_id!r}: its image cannot run {plan.runner} with {plan.python!r}: "
            f"{decode(result.stderr).strip()[-300:] or f'exit code {result.exit_code}'}; install "
            "it in the image, or name another by 'metadata.python'"
        )


def _install_failing_tests(
    sandbox: SandboxBackend, plan: SweGradingPlan, name: str
) -> FailingTestModule:
    """Write a module of tests that fail into the repository; return their names.

    For pytest, the module lies in the folder of the task's first test, so the same settings apply
    to it. For unittest, the module lies in the working directory.
    """
    file = PurePosixPath(f"{name}.py")
    if plan.runner == "pytest":
        file = PurePosixPath(plan.tests[0].partition("::")[0]).with_name(file.name)
    failing_tests = make_failing_tests(plan.runner, str(file) if plan.runner == "pytest" else name)
    sandbox.write_file(PurePosixPath(plan.directory, file), failing_tests.source.encode())
    return failing_tests


_COUNT_LINE = re.compile(
    r"collected \d+ items?\b.*|[.FEsxX]+(?: *\[ *\d+%\])?|-+ generated xml file: .* -+"
)
_PROGRESS = re.compile(r"(?<! ) +\[ *\d{1,3}%\]$", re.MULTILINE)


def _clean_output(marker: str, output: str) -> str:
    """Return the end of the output, without lines and counts that reveal the failing tests."""
    lines = output.split("\n")
    lines = [line for line in lines if marker not in line and not _COUNT_LINE.fullmatch(line)]
    return _PROGRESS.sub("", "\n".join(lines))[-_OUTPUT:]


def _install_runner(sandbox: SandboxBackend) -> str:
    path = f"/tmp/{secrets.token_hex(8)}/run.py"
    sandbox.write_file(path, Path(swe_runner.__file__).read_bytes())
    return path


def _run_commands(sandbox: SandboxBackend, plan: SweGradingPlan, seconds: float) -> SweTestOutcome:
    """Run tests that are commands. Only the exit code from the kernel decides about each test."""
    execute = (
        sandbox.exec_private
        if isinstance(sandbox, SupportsPrivateExec) and sandbox.limits.private
        else sandbox.exec
    )
    passed_commands, output = set(), ""
    for command in plan.tests:
        argv, stdin = script(command)
        result = execute(argv, stdin=stdin, cwd=plan.directory, timeout=seconds, merge_stderr=True)
        sandbox.kill()
        if result.ok:
            passed_commands.add(command)
        else:
            output += f"$ {command}\n{decode(result.stdout[-_OUTPUT:])}"
    return SweTestOutcome(frozenset(passed_commands), "", output[-_OUTPUT:])


# -- tests that must fail --------------------------------------------------------------------------

# These tests cannot pass. They run together with the task's tests: tested code that makes them pass
# manipulates tests. They fail in all common ways, because tested code may replace any of these
# ways. They run before and after the task's tests: the replacement may occur on import or on a
# call.

_FAILING_STATEMENTS = {
    "statement": "assert 1 == 2",
    "exception": "raise ValueError",
    "fail": "self.fail()",
    "equal": "self.assertEqual(1, 2)",
    "not_equal": "self.assertNotEqual(1, 1)",
    "true": "self.assertTrue(0)",
    "false": "self.assertFalse(1)",
    "same": "self.assertIs([], [])",
    "none": "self.assertIsNone(1)",
    "not_none": "self.assertIsNotNone(None)",
    "member": "self.assertIn(1, [])",
    "no_member": "self.assertNotIn(1, [1])",
    "type": "self.assertIsInstance(1, str)",
    "raises": "self.assertRaises(OSError, int)",
    "raises_within": "with self.assertRaises(OSError): pass",
    "message": "self.assertRaisesRegex(ValueError, 'no', int, 'x')",
    "less": "self.assertLess(2, 1)",
    "greater": "self.assertGreater(1, 2)",
    "almost": "self.assertAlmostEqual(1, 2)",
    "pattern": "self.assertRegex('a', 'b')",
    "items": "self.assertCountEqual([1], [])",
    "lists": "self.assertListEqual([1], [])",
    "mappings": "self.assertDictEqual({1: 2}, {})",
    "lines": "self.assertMultiLineEqual('a', 'b')",
}
_PYTEST_STATEMENTS = {
    "statement": "assert 1 == 2",
    "raises": "with pytest.raises(OSError): pass",
    "fail": "pytest.fail()",
}


@dataclass(frozen=True, slots=True)
class FailingTestModule:
    """A module of tests that cannot pass, and the names of these tests."""

    source: str
    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    optional_names: frozenset[str]
    """Tests that pytest may not collect: functions, if the project's tests have other names."""

    def detect_tampering(self, outcomes: Mapping[str, bool], is_complete: bool) -> bool:
        """Return whether the outcomes prove that tests were manipulated.

        Args:
            outcomes: Test name → whether the test has passed.
            is_complete: Whether all tests were run to the end.
        """
        names = {*self.first_names, *self.last_names}
        due = names if is_complete else set(self.first_names)
        return any(outcomes.get(name) for name in names) or not (
            due - self.optional_names <= outcomes.keys()
        )


def make_failing_tests(runner: str, module: str) -> FailingTestModule:
    """Return the module of failing tests for a runner, with the tests' names.

    Args:
        runner: ``pytest`` or ``unittest``.
        module: The runner's name for the module: ``folder/x.py`` or ``x``.
    """
    lines = ["import unittest", "class Fails:"]
    lines += [
        f"    def test_{name}(self):\n        {code}" for name, code in _FAILING_STATEMENTS.items()
    ]
    names: dict[str, list[str]] = {}
    functions = []
    for class_name in ("First", "Last"):
        lines.append(f"class {class_name}(Fails, unittest.TestCase): pass")
        separator = "::" if runner == "pytest" else "."
        names[class_name] = [
            separator.join([module, class_name, f"test_{name}"]) for name in _FAILING_STATEMENTS
        ]
        if runner == "pytest":
            lines.append("import pytest")
            for name, code in _PYTEST_STATEMENTS.items():
                lines.append(f"def test_{class_name}_{name}():\n    {code}")
                functions.append(f"{module}::test_{class_name}_{name}")
                names[class_name].append(functions[-1])
    source = "\n".join(lines) + "\n"
    return FailingTestModule(
        source, tuple(names["First"]), tuple(names["Last"]), frozenset(functions)
    )


# -- reports ---------------------------------------------------------------------------------------

# A report is JUnit XML that a tested program may have manipulated. The parser rejects a document
# type, so the report has no entities. A declared encoding, which Python might not have, is ignored.
# Only names, outcomes, and the nesting depth of elements are retained.

NODE = "nodeid"
"""The property of a test case in the report that holds the test's name."""

EXPECTED = "expected"
"""The property of a test case in the report whose test is marked as failing (``xfail``)."""

_LIMIT = 16 * 1024 * 1024
"""The most bytes of a report."""
_MAX_DEPTH = 100
"""The limit on the nesting depth of elements: the parser keeps all open elements in memory."""
_FAILURE_TAGS = {"failure", "error", "skipped"}
_XFAIL = "pytest.xfail"


class TestReportError(InterCodeError, ValueError):
    """An error: bytes are not a valid report."""


def read_report(document: bytes) -> dict[str, bool]:
    """Return the tests of a report: name → whether the test has passed.

    A test passes if it has exactly one entry, with no failure, error or skip. An expected failure
    (``xfail``) counts as a pass only if the report shows that the test was marked (`EXPECTED`).
    Tested code could call ``pytest.xfail`` without a mark.

    Raises:
        TestReportError: The document is not well-formed, has a document type, or is nested too
            deeply.
    """
    reader = _TestReportReader()
    parser = expat.ParserCreate("UTF-8")
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, ValueError) as error:
        raise TestReportError(f"the tests' report cannot be read: {error}") from None
    return reader.outcomes


class _TestReportReader:
    def __init__(self) -> None:
        self.outcomes: dict[str, bool] = {}
        self._depth = 0
        self._reset()

    def _reset(self) -> None:
        self._name: str | None = None
        self._has_passed, self._expects_failure, self._has_expected_failure = True, False, False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("its elements are nested too deeply")
        if tag == "testcase":
            self._reset()
        elif tag == "property" and attributes.get("name") == NODE:
            self._name = attributes.get("value")
        elif tag == "property" and attributes.get("name") == EXPECTED:
            self._expects_failure = True
        elif tag in _FAILURE_TAGS and attributes.get("type") == _XFAIL:
            self._has_expected_failure = True
        elif tag in _FAILURE_TAGS:
            self._has_passed = False

    def end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "testcase" and self._name is not None:
            has_passed = self._has_passed and (
                self._expects_failure or not self._has_expected_failure
            )
            self.outcomes[self._name] = has_passed and self._name not in self.outcomes
            self._name = None

    def doctype(self, *_: object) -> None:
        raise ValueError("it has a document type")
