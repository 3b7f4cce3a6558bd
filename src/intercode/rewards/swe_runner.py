"""Runs named tests and reports on them in JUnit XML. Runs in the sandbox, under Python from 3.8.

It is started by `swe_run` as a script of its own: nothing of InterCode can be imported here. The
plan comes on standard input. The report goes to what was standard output, after a secret that only
this process was told, and only when all tests have ended: a program under test that ends the
process, prints, or leaves processes behind has reported nothing. Everything that is needed is
imported before the repository can be: a module of its own named ``pytest`` is not taken for ours.

Tests come in groups, which run one after the other.
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

WHOLE, CUT = b".", b"!"
"""After the secret: whether all tests were run, or the time was up."""

STOPPED: list[bool] = []


class Marker:
    """pytest's plugin: leaves the named tests only, and has the report say which is which.

    It also says which tests are marked as failing: others that say so when they run have failed.
    """

    def __init__(self, groups: list[list[str]]) -> None:
        self.rank = {name: number for number, names in enumerate(groups) for name in names}
        self.expected: set[str] = set()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Called by pytest when it has found all tests."""
        rank = self.rank
        kept = [item for item in items if item.nodeid in rank]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in rank])
        kept.sort(key=lambda item: rank[item.nodeid])  # within a group in pytest's own order
        for item in kept:
            item.user_properties.append(("nodeid", item.nodeid))
            if fails_as_it_says(item.cls, item.name):
                self.expected.add(item.nodeid)
        items[:] = kept

    def pytest_runtest_teardown(self, item: Any) -> None:
        """Called by pytest when a test has run: some have themselves marked by a fixture."""
        if item.get_closest_marker("xfail") or item.nodeid in self.expected:
            item.user_properties.append(("expected", "xfail"))


def run_pytest(plan: dict[str, Any]) -> bytes | None:
    """The report of pytest, written to a file that has no name."""
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
    code = pytest.main(arguments, plugins=[Marker(groups)])
    signal.setitimer(signal.ITIMER_REAL, 0)
    if int(code) not in (0, 1, 2):
        return None
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        return file.read()


class Outcomes(unittest.TestResult):
    """What became of each test, by its id: empty if all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}
        self.expected: set[str] = set()
        """The ids of tests that were marked as failing when they were loaded."""

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        """It passed, and no part of it has failed."""
        self.said.setdefault(test.id(), "")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        """It failed."""
        self.said[test.id()] = described(err[1])

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802
        """A part of it has ended."""
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        """It did not run."""
        self.said[test.id()] = f"skipped: {reason}"

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        """It failed, and says that it does: which counts if it said so before it ran."""
        if test.id() in self.expected:
            self.addSuccess(test)
        else:
            self.said[test.id()] = "failed, as it said only when it ran"

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        """It passed, though it says that it fails."""
        self.said[test.id()] = "passed, though it was expected to fail"


def run_unittest(plan: dict[str, Any]) -> bytes:
    """The report of unittest."""
    outcomes = Outcomes()
    wanted: dict[str, list[str]] = {}
    suite = unittest.TestSuite()
    sys.path.insert(0, str(Path.cwd()))
    alarm(plan["seconds"])
    try:
        for name in (name for names in plan["tests"] for name in sorted(names)):
            tests = load(name, outcomes)
            wanted[name] = [test.id() for test in tests] or [name]
            outcomes.expected.update(
                test.id()
                for test in tests
                if fails_as_it_says(type(test), getattr(test, "_testMethodName", ""))
            )
            suite.addTests(tests)
        suite.run(outcomes)
    except KeyboardInterrupt:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    verdicts = {name: verdict(outcomes, wanted[name]) for name in wanted}
    for name, said in verdicts.items():
        if said:
            print(f"{name}: {ascii(said)[:1000]}", file=sys.stderr)
    return to_xml(verdicts)


def load(name: str, outcomes: Outcomes) -> list[Any]:
    """The tests of that name; none if its module cannot be imported, which is their outcome."""
    try:
        return list(flat(unittest.defaultTestLoader.loadTestsFromName(name)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the module may raise anything
        outcomes.said[name] = described(error)
        return []


def fails_as_it_says(cls: Any, name: str) -> bool:
    """Whether a test of unittest's has the decorator ``expectedFailure``, or its class has."""
    marked = (cls, getattr(cls, name, None))
    return any(getattr(one, "__unittest_expecting_failure__", False) for one in marked)


def described(error: BaseException) -> str:
    """What an exception says; its own methods may fail at that."""
    return "".join(traceback.format_exception_only(type(error), error)).strip() or "error"


def flat(suite: unittest.TestSuite) -> Iterator[Any]:
    """The tests of a suite of suites."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def verdict(outcomes: Outcomes, ids: list[str]) -> str:
    """What went wrong with any of these tests; empty if nothing did."""
    said = (outcomes.said.get(id_, "not run") for id_ in ids)
    return next((text for text in said if text), "")


def to_xml(verdicts: dict[str, str]) -> bytes:
    """JUnit XML of what went wrong with each test."""
    top = ET.Element("testsuite")
    for name, said in verdicts.items():
        case = ET.SubElement(top, "testcase", name=name)
        properties = ET.SubElement(case, "properties")
        ET.SubElement(properties, "property", name="nodeid", value=name)
        if said:
            ET.SubElement(case, "failure", message=ascii(said)[:4000])
    return ET.tostring(top)  # in ASCII


def alarm(seconds: float) -> None:
    """Interrupt what runs then: what has ended by then is reported."""

    def interrupt(number: int, frame: Any) -> None:
        STOPPED.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Run, report, end at once: nothing that was left for the end of the process is run."""
    plan = json.load(sys.stdin)
    report = os.dup(1)
    os.dup2(2, 1)
    del sys.path[0]  # this file's own folder
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
        file.write(plan["secret"].encode() + (CUT if STOPPED else WHOLE) + document)
    os._exit(0)


if __name__ == "__main__":
    main()
