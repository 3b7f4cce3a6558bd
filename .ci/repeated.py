"""A test that fails once and passes when it is repeated is named with its failure.

One race of ten thousand tests on a machine that others use must not hold up a landing, and must not
go unseen either. More than `ALLOWED` of them fail the run. As a plug-in of pytest, with
``--reruns 1`` of pytest-rerunfailures::

    pytest -p repeated --reruns 1

On a starved machine (`starved`) any number is allowed: some of our own limits are reached there.
"""

from __future__ import annotations

import os

import pytest

ALLOWED = 2


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that would have passed."""
    if too_many(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how each of them failed the first time."""
    if not (repeated := first_failures(config)):
        return
    terminalreporter.section("passed only when repeated, or not at all")
    for report in repeated:
        terminalreporter.write_line(f"\n{report.nodeid} ({report.when})\n{report.longreprtext}")
    if too_many(config):
        terminalreporter.write_line(f"\nFAILED: {len(repeated)} were repeated, {ALLOWED} may be")


def first_failures(config: pytest.Config) -> list[pytest.TestReport]:
    """Return the reports of tests that were repeated: none in a worker of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("rerun", [])) if reporter else []


def too_many(config: pytest.Config) -> bool:
    """Whether more were repeated than may be."""
    return len(first_failures(config)) > ALLOWED and not os.environ.get("CI_DEADLINE")
