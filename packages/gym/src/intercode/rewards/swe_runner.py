"""A program that runs named tests in the sandbox, and reports on them in JUnit XML.

The program needs Python 3.8 or later. `swe_run` starts the program as a script, which cannot import
InterCode. The plan comes on standard input, with a secret of this run. The report goes to the
original standard output, after the secret, when all tests have ended or the time limit is reached.
If tested code ends the process, prints, or leaves processes behind, no report with the secret
results from that. All needed modules are imported before the repository becomes importable, so the
repository's own module named ``pytest`` cannot replace the real one.

Tests come in groups, which run sequentially.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

NO_RUNNER = 96
"""The exit code if the tests' framework cannot be imported."""

COMPLETE_MARK, CUT_MARK = b".", b"!"
"""The byte after the secret: `COMPLETE_MARK` if all tests ran, `CUT_MARK` after the time limit."""

TIMEOUTS: list[bool] = []
"""An entry for each expiry of the time limit; empty if the tests ended in time."""


class NamedTestsPlugin:
    """A plugin of pytest that selects the named tests, and adds their names to the report.

    The plugin also reports which tests have a mark of expected failure. A test without a mark that
    calls ``pytest.xfail`` counts as failed.
    """

    def __init__(self, groups: list[list[str]]) -> None:
        self.rank = {name: group_rank for group_rank, names in enumerate(groups) for name in names}
        self.expected_ids: set[str] = set()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Select the named tests, after pytest has collected all tests."""
        rank = self.rank
        named_items = [item for item in items if item.nodeid in rank]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in rank])
        # Within a group, pytest's own order remains: the sort is stable.
        named_items.sort(key=lambda item: rank[item.nodeid])
        for item in named_items:
            item.user_properties.append(("nodeid", item.nodeid))
            if is_expected_failure(item.cls, item.name):
                self.expected_ids.add(item.nodeid)
        items[:] = named_items

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Hide InterCode's failing tests in the output: a reader would take them for the project's.

        Group 1 has the task's tests; the groups before and after have failing tests.
        """
        return None if self.rank.get(report.nodeid, 1) == 1 else ("", "", "")

    def pytest_runtest_teardown(self, item: Any) -> None:
        """Record after a test whether it is marked as failing: fixtures mark some tests late."""
        if item.get_closest_marker("xfail") or item.nodeid in self.expected_ids:
            item.user_properties.append(("expected", "xfail"))


def run_pytest(plan: dict[str, Any]) -> bytes | None:
    """Run pytest; return its report, or None if pytest itself failed.

    Pytest writes the report to a file in memory that has no path.
    """
    import importlib.util

    import pytest

    groups = plan["tests"]
    files = {name.partition("::")[0]: None for names in groups for name in names}
    memory = os.memfd_create("report")
    arguments = [
        *(file for file in files if Path(file).exists()),
        f"--rootdir={Path.cwd()}",
        f"--junitxml=/proc/self/fd/{memory}",
        "--continue-on-collection-errors",
        "--maxfail=0",
        "--color=no",
        "--tb=line",
        "-o",
        "junit_logging=no",
    ]
    if importlib.util.find_spec("xdist"):
        arguments += ["-n", "0"]
    sys.path.insert(0, str(Path.cwd()))
    alarm(plan["seconds"])
    code = pytest.main(arguments, plugins=[NamedTestsPlugin(groups)])
    signal.setitimer(signal.ITIMER_REAL, 0)
    if int(code) not in (0, 1, 2):
        return None
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        return file.read()


class UnittestOutcomes(unittest.TestResult):
    """A unittest result that records tests by id; an empty text is a pass, any other a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.failure_texts: dict[str, str] = {}
        self.expected_ids: set[str] = set()
        """The ids of tests that were marked as failing when they were loaded."""

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        """Record a pass, unless a subtest of the test has failed."""
        self.failure_texts.setdefault(test.id(), "")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        """Record the failure of a test, with the text of the exception."""
        self.failure_texts[test.id()] = describe_exception(err[1])

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        """Record the failure of a subtest as a failure of its test."""
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        """Record a skipped test as not passed."""
        self.failure_texts[test.id()] = f"skipped: {reason}"

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """Record an expected failure: a pass if the test was marked before it ran."""
        if test.id() in self.expected_ids:
            self.addSuccess(test)
        else:
            self.failure_texts[test.id()] = "failed, as it said only when it ran"

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        """Record the pass of a test that is marked as failing as a failure."""
        self.failure_texts[test.id()] = "passed, though it was expected to fail"


def run_unittest(plan: dict[str, Any]) -> bytes:
    """Run unittest; return the report in JUnit XML."""
    outcomes = UnittestOutcomes()
    ids_by_name: dict[str, list[str]] = {}
    suite = unittest.TestSuite()
    sys.path.insert(0, str(Path.cwd()))
    alarm(plan["seconds"])
    try:
        for name in (name for names in plan["tests"] for name in sorted(names)):
            tests = load(name, outcomes)
            ids_by_name[name] = [test.id() for test in tests] or [name]
            outcomes.expected_ids.update(
                test.id()
                for test in tests
                if is_expected_failure(type(test), getattr(test, "_testMethodName", ""))
            )
            suite.addTests(tests)
        suite.run(outcomes)
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    verdicts = {name: verdict(outcomes, ids_by_name[name]) for name in ids_by_name}
    for name, failure_text in verdicts.items():
        if failure_text:
            print(f"{name}: {ascii(failure_text)[:1000]}", file=sys.stderr)
    return to_xml(verdicts)


def load(name: str, outcomes: UnittestOutcomes) -> list[Any]:
    """Return the tests that a name of the plan stands for.

    If the test's module cannot be loaded, the list is empty, and a failure is recorded.
    """
    try:
        return list(flatten_suite(unittest.defaultTestLoader.loadTestsFromName(name)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the module may raise anything
        outcomes.failure_texts[name] = describe_exception(error)
        return []


def is_expected_failure(cls: Any, name: str) -> bool:
    """Return whether a unittest test, or its class, is decorated ``expectedFailure``."""
    candidates = (cls, getattr(cls, name, None))
    return any(
        getattr(candidate, "__unittest_expecting_failure__", False) for candidate in candidates
    )


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception, even if the exception's own methods fail."""
    return "".join(traceback.format_exception_only(type(error), error)).strip() or "error"


def flatten_suite(suite: unittest.TestSuite) -> Iterator[Any]:
    """Yield the tests of a suite, and of all suites in it."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten_suite(test)
        else:
            yield test


def verdict(outcomes: UnittestOutcomes, ids: list[str]) -> str:
    """Return the text of the first failure among tests with these ids; empty if all have passed."""
    failure_texts = (outcomes.failure_texts.get(id_, "not run") for id_ in ids)
    return next((text for text in failure_texts if text), "")


def to_xml(verdicts: dict[str, str]) -> bytes:
    """Return a report in JUnit XML.

    Args:
        verdicts: Test name → text of the failure; empty: passed.
    """
    suite = ET.Element("testsuite")
    for name, failure_text in verdicts.items():
        case = ET.SubElement(suite, "testcase", name=name)
        properties = ET.SubElement(case, "properties")
        ET.SubElement(properties, "property", name="nodeid", value=name)
        if failure_text:
            ET.SubElement(case, "failure", message=ascii(failure_text)[:4000])
    return ET.tostring(suite)  # ASCII


def alarm(seconds: float) -> None:
    """Interrupt the tests after `seconds`; the report includes the tests that ended before."""

    def interrupt(signal_number: int, frame: Any) -> None:
        TIMEOUTS.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Run the tests, write the report, and exit at once, without Python's exit handlers."""
    plan = json.load(sys.stdin)
    report = os.dup(1)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # os._exit flushes nothing
    del sys.path[0]  # the folder of this file
    runner = {"pytest": run_pytest, "unittest": run_unittest}[plan["runner"]]
    if plan["runner"] == "pytest":
        try:
            import pytest  # noqa: F401
        except ImportError as error:
            print(error)
            sys.stdout.flush()
            os._exit(NO_RUNNER)
    document = runner(plan)
    if document is None:
        os._exit(1)
    with os.fdopen(report, "wb") as file:
        file.write(plan["secret"].encode() + (CUT_MARK if TIMEOUTS else COMPLETE_MARK) + document)
    os._exit(0)


if __name__ == "__main__":
    main()
