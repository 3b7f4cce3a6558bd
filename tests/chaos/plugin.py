"""Tell `make chaos` which test is under way, and what became of it: a plugin of pytest.

Each process that runs tests has a diary in the folder, named by its pid: a line for each place that
it comes to, with the time. A place is a test, or a fixture of wider scope: what a fixture starts is
its own, whichever test happens to be the first to use it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPORTS = "reports"
OVER = "the time for chaos is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-folder", type=Path, help="where to tell what is under way")
    parser.addoption("--chaos-until", type=float, help="monotonic time to start no test after")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Diary(config))


class Diary:
    """What one process is at; the controller's has the reports instead."""

    def __init__(self, config: pytest.Config) -> None:
        self.folder: Path = config.getoption("--chaos-folder")
        self.until: float | None = config.getoption("--chaos-until")
        self.reports = not hasattr(config, "workerinput")
        self.test = self.place = ""

    def _enter(self, place: str) -> str:
        left, self.place = self.place, place
        line = json.dumps([time.monotonic_ns(), self.test, place])
        with open(self.folder / str(os.getpid()), "a") as file:
            file.write(line + "\n")
        return left

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        self._enter(item.nodeid)
        try:
            return (yield)
        finally:
            self._enter("")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            pytest.skip(OVER)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        left = self._enter(
            f"{request.node.nodeid}[{fixturedef.scope} fixture {request.fixturename}]"
        )
        try:
            return (yield)
        finally:
            self._enter(left)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.reports and OVER not in str(report.longrepr):
            message = str(report.longrepr) if report.failed else ""
            line = json.dumps([report.nodeid, report.when, report.outcome, message])
            with open(self.folder / REPORTS, "a") as file:
                file.write(line + "\n")
