"""What the suites add to pytest: ``--suite=NAME`` runs one; ``--outcome=FILE`` gets its outcome.

It also has each test fail if it is skipped for want of something that could be installed, unless
the skip's reason says why that cannot be.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from suites.table import ROOT, read, suite_of

LAWFUL = re.compile(r"no recorded runs in|needs cgroup v|got empty parameter set|not for [\w ]+: ")
"""Reasons of skips that no installation could avoid."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("suites")
    group.addoption("--suite", action="append", default=[], help="run the tests of this suite")
    group.addoption("--outcome", type=Path, help="write there, as JSON, what came of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the suites that are named."""
    names = set(config.getoption("--suite"))
    suites = read()
    if unknown := names - suites.keys():
        raise pytest.UsageError(f"no such suite: {', '.join(sorted(unknown))}")
    if names:
        chosen = {item: suite_of_item(item) in names for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
        items[:] = [item for item in items if chosen[item]]


def suite_of_item(item: pytest.Item) -> str | None:
    """Return the name of the suite to which a test belongs."""
    file = str(item.path.relative_to(ROOT))
    params = item.callspec.id if hasattr(item, "callspec") else ""
    return suite_of(list(read().values()), file, params)


class Outcomes:
    """Counts what came of the tests, and keeps how those failed that passed when repeated.

    Attributes:
        counts: Outcome → number of tests.
        repeated: Test → its first failure.
        skips: Reason of a skip that is not lawful → tests.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.monotonic()
        self.counts: Counter[str] = Counter()
        self.repeated: dict[str, str] = {}
        self.skips: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test."""
        outcome: str = report.outcome  # pytest-rerunfailures adds one
        if outcome == "rerun":
            self.repeated[report.nodeid] = report.longreprtext
        elif outcome == "skipped":
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "unknown"
            self.counts[outcome] += 1
            if not LAWFUL.search(reason):
                self.skips.setdefault(reason, []).append(report.nodeid)
        elif report.when == "call" or outcome == "failed":
            self.counts[outcome] += 1
            if outcome == "failed":
                self.repeated.pop(report.nodeid, None)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the outcome."""
        found: dict[str, Any] = {"code": int(exitstatus), "counts": self.counts}
        found |= {"repeated": self.repeated, "skips": self.skips}
        found |= {"minutes": (time.monotonic() - self._began) / 60}
        self._path.write_text(json.dumps(found))


def pytest_configure(config: pytest.Config) -> None:
    """Count in the process that hands the tests out, or runs them alone."""
    path = config.getoption("--outcome")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))
