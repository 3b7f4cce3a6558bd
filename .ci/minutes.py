"""What each part of CI costs, and whether it keeps to its budget.

A part is a folder of ``tests/``, or a step of ``.ci/run``. Its minutes are the CPU time of all its
processes, over two cores, at the speed of a quiet machine: divided by how much more CPU time a
yardstick (`bash -c true`) takes just before and after than it takes there. So a machine that is
busy with others, or slow, shows nearly the same figure, where a clock would not.

As a plug-in of pytest (``-p minutes``) each process that runs tests writes what they have cost
into ``$REPORTS``. As a command the table is printed, with the tests and
their seconds on the clock; exit code 1 if a part has no budget, or has exceeded it by half::

    python .ci/minutes.py REPORTS SECONDS [STEP=TICKS ...]

``SECONDS`` is how long all has taken on the clock.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

CORES = 2
ALLOWED = 1.5
"""How far a part may exceed its budget: figures of one commit differ by a fifth or so."""
WHOLE = 26.5
"""Minutes that all budgets may have together, but for those apart."""
APART = {"integrations", "versions"}
"""Steps that mostly install packages of others."""
YARDSTICK = ("/bin/bash", "-c", "true")
QUIET = 1.36e-3
"""Seconds of CPU time that the yardstick takes on a quiet machine of 2026."""
SAMPLES = 20
BUDGET = Path(__file__).with_name("budget")
TICK = os.sysconf("SC_CLK_TCK")

Seconds = defaultdict[str, float]


class Minutes:
    """Adds up the CPU time of this process, of its children and of all below them, by part."""

    def __init__(self, reports: Path) -> None:
        self._reports = reports
        self._spent = Seconds(float)
        self._quiet = Seconds(float)
        """The same, as it would have been on a quiet machine."""
        self._part = "collection"
        self._until = 0.0
        self._yardstick = yardstick()

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        """Note whose the time is from here on."""
        if (part := part_of(location[0])) != self._part:
            self._note(part)

    def pytest_sessionfinish(self) -> None:
        """Write what was spent."""
        self._note("end")
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        (self._reports / f"cpu-{name}-{os.getpid()}.json").write_text(
            json.dumps({"spent": self._spent, "quiet": self._quiet})
        )

    def _note(self, part: str) -> None:
        now = cpu_seconds()
        # What a process had used that nobody waited for is in no sum once it has ended.
        spent = max(0.0, now - self._until)
        before, self._yardstick = self._yardstick, yardstick()
        self._spent[self._part] += spent
        self._quiet[self._part] += spent * QUIET * 2 / (before + self._yardstick)
        self._part, self._until = part, max(now, self._until, cpu_seconds())


def pytest_configure(config: pytest.Config) -> None:
    """Count, in each process that runs tests: not in one that only hands them out to others."""
    hands_out = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if (reports := os.environ.get("REPORTS")) and not hands_out:
        config.pluginmanager.register(Minutes(Path(reports)))


def part_of(file: str) -> str:
    """The folder of a test's file below ``tests``; ``tests`` for a file of its own."""
    folders = Path(file).parts[:-1]
    return folders[1] if len(folders) > 1 else "tests"


def yardstick() -> float:
    """CPU time of one yardstick, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(SAMPLES):
        os.waitpid(os.posix_spawn(YARDSTICK[0], YARDSTICK, os.environ), 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / SAMPLES


def cpu_seconds() -> float:
    """CPU time of this process and all below it, of those that are waited for as well."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return (
        own.ru_utime + own.ru_stime + waited.ru_utime + waited.ru_stime
        + sum(ticks for _, ticks in below(os.getpid())) / TICK
    )  # fmt: skip


def below(root: int) -> Iterator[tuple[int, int]]:
    """The living processes below one: pid, and ticks of it and of the children that it awaited."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:  # it has just ended
            continue
        fields = text.rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append((int(entry.name), ticks))
    to_do = [root]
    while to_do:
        for pid, ticks in children.get(to_do.pop(), ()):
            yield pid, ticks
            to_do.append(pid)


def counted(reports: Path) -> tuple[Seconds, Seconds, Counter[str], float]:
    """CPU seconds of a quiet machine, seconds on the clock, tests, by part; and the slowness."""
    quiet, clock = Seconds(float), Seconds(float)
    tests: Counter[str] = Counter()
    spent = 0.0
    for file in reports.glob("cpu-*.json"):
        report = json.loads(file.read_text())
        spent += sum(report["spent"].values())
        for part, seconds in report["quiet"].items():
            quiet[part] += seconds
    for file in reports.glob("*.xml"):
        for case in ET.parse(file).getroot().iter("testcase"):
            part = part_of(case.get("classname", "").replace(".", "/"))
            clock[part] += float(case.attrib["time"])
            tests[part] += 1
    return quiet, clock, tests, spent / sum(quiet.values()) if quiet else 1.0


def budgets() -> dict[str, float]:
    """Minutes by part."""
    lines = (line.partition("#")[0].split() for line in BUDGET.read_text().splitlines())
    return {name: float(minutes) for name, minutes in (line for line in lines if line)}


def main(reports: str, seconds: str, *steps: str) -> int:
    """Print the table; 1 if a part has no budget, or has exceeded it by half."""
    quiet, clock, tests, slowness = counted(Path(reports))
    for step in steps:
        name, _, ticks = step.partition("=")
        quiet[name] += int(ticks) / TICK / slowness
    planned = budgets()
    bad: list[str] = []
    whole = sum(minutes for name, minutes in planned.items() if name not in APART)
    if whole > WHOLE:
        bad.append(f"the budgets in {BUDGET.name} sum up to {whole:g} minutes, of {WHOLE:g}")
    line = "{:14}{:>7}{:>10}{:>10}{:>9}"
    print(line.format("PART", "TESTS", "CLOCK s", "MINUTES", "BUDGET"))
    for name, cost in sorted(quiet.items(), key=lambda item: -item[1]):
        minutes, budget = cost / 60 / CORES, planned.get(name)
        shown = "none" if budget is None else f"{budget:.2f}"
        print(line.format(name, tests[name], f"{clock[name]:.0f}", f"{minutes:.2f}", shown))
        if budget is None:
            bad.append(f"{name} has no budget: state its minutes in .ci/{BUDGET.name}")
        elif minutes > budget * ALLOWED:
            bad.append(
                f"{name} took {minutes:.2f} minutes, more than "
                f"{ALLOWED:g} times its budget of {budget:.2f} in .ci/{BUDGET.name}"
            )
    total = sum(quiet.values()) / 60 / CORES
    print(line.format("all", tests.total(), seconds, f"{total:.2f}", f"{whole:.2f}"))
    print(f"a minute is one of two cores that are {slowness:.2f} times as fast as these were")
    print("\n".join(bad), end="\n" if bad else "")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
