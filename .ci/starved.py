"""CI on a machine that is given less than half of the processors that it shows.

A virtual machine may share its processors with others, and then everything takes five or twenty
times as long. CI is ended after 90 minutes, whatever it has found by then. So where a machine is
starved, tests that have not begun by a deadline are skipped, each with the reason, and the last
lines say how many of how many. On any other machine there is no deadline.

As a command, which is best run while nothing else runs, it prints the seconds that CI may take
before it begins no more tests, or nothing on a machine that is not starved::

    python .ci/starved.py

As a plug-in of pytest (``-p starved``) it keeps to ``$CI_DEADLINE``, in seconds since the epoch.
The tests that the last commits touched come first, then all others, in an order of files that the
commit draws: so every landing tests others.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

SECONDS = 2700
"""Of the 5400 that CI may take: the last test to begin may need `LONGEST`."""
LONGEST = 2400
"""Seconds that one test may take."""
RECENT = 20
"""Commits whose tests come first."""
STARVED = 0.5
WATCHED = 4.0
GAP = 0.005
"""Seconds of a gap between two looks at the clock in which another machine was at work."""
REASON = "no time left: this machine is starved"


def share() -> float:
    """The part of its time that a process really ran which wanted to run all the time."""
    end = last = time.perf_counter()
    end += WATCHED
    lost = 0.0
    while last < end:
        now = time.perf_counter()
        lost += now - last if now - last > GAP else 0.0
        last = now
    return max(0.0, 1 - lost / WATCHED)


def shares() -> list[float]:
    """The same of each processor, all of them at work."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores) as pool:
        return [done.result() for done in [pool.submit(share) for _ in range(cores)]]


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], capture_output=True, check=True, text=True).stdout


class Starved:
    """Begins no test after the deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the files in the commit's order, and have no test ended that is only slow."""
        drawn = random.Random(git("rev-parse", "HEAD"))
        touched = set(git("log", f"-{RECENT}", "--format=", "--name-only").splitlines())
        files = sorted({item.location[0] for item in items})
        place = {file: (file not in touched, drawn.random()) for file in files}
        items.sort(key=lambda item: place[item.location[0]])
        for item in items:
            item.add_marker(pytest.mark.timeout(LONGEST), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what begins too late, but no second try: the first one's failure would be lost."""
        if time.time() > self._deadline and getattr(item, "execution_count", 1) == 1:
            pytest.skip(REASON)


def pytest_configure(config: pytest.Config) -> None:
    """Take part where there is a deadline."""
    if deadline := os.environ.get("CI_DEADLINE"):
        config.pluginmanager.register(Starved(float(deadline)))


def main() -> int:
    """Say how this machine is, and the seconds that are left if it is starved."""
    found = shares()
    said = ", ".join(f"{100 * one:.0f} %" for one in found)
    print(f"Each of {len(found)} processors is ours for: {said}", file=sys.stderr)
    if sum(found) / len(found) < STARVED:
        print(SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
