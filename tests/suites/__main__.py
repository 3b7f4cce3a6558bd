"""Run suites: ``python -m suites [NAME…]``, with ``tests`` on Python's path.

Without a name, all run but that of ``make test``; ``changed`` are those that are not known to pass
(`suites.known`). What passes is recorded. This is ``make test-all``.

With ``--plan`` none runs: it is printed what would, and why.

With ``--check`` those run that are not known, and one that is, which the commit draws, so that a
wrong record is found; nothing is recorded. This is the last part of ``.ci/run``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from suites.known import Inputs, Passed, load, machine, save, why_unknown
from suites.table import CORE, ROOT, Suite, matches, read

LATEST = 75.0
"""Minutes after its begin at which CI must have ended: no suite is begun that would pass them."""
REPEATED = 2
"""Tests that may fail once and pass when they are repeated: one race of ten thousand tests must not
hold up a landing on a machine that others use, and must not go unseen."""
SECONDS = 2400
"""Seconds after which a test that has not ended fails, however slow the machine is."""
JOBS = str(min(4, len(os.sched_getaffinity(0)) + 1))
LINE = "{:22} {:>7} {:>6} {:>8} {:>8}  {}"


@dataclass(frozen=True)
class Result:
    """The outcome of a suite.

    Attributes:
        suite: Its name.
        passed: Whether it passed.
        counts: Outcome → number of tests.
        minutes: Minutes on the clock.
        cpu_minutes: Minutes of a processor, of all its processes that were awaited.
        repeated: Test → how it failed before it was repeated.
        skips: Reason → tests that were skipped and should not have been.
        output: What it printed.
    """

    suite: str
    passed: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    minutes: float = 0.0
    cpu_minutes: float = 0.0
    repeated: Mapping[str, str] = field(default_factory=dict)
    skips: Mapping[str, list[str]] = field(default_factory=dict)
    output: str = ""

    def line(self) -> str:
        """Return the suite's line in the table."""
        tests = str(self.counts.get("passed", "")) or "-"
        times = [f"{minutes:.2f}" for minutes in (self.minutes, self.cpu_minutes)]
        word = "passed" if self.passed else "FAILED"
        others = [f"{n} {name}" for name, n in self.counts.items() if name != "passed"]
        others += [f"{len(self.repeated)} repeated"] if self.repeated else []
        line = LINE.format(self.suite, word, tests, *times, ", ".join(others)).rstrip()
        return line if self.passed else f"{line}\n{self.output}"


def install(suite: Suite) -> None:
    """Install the packages of the system that a suite needs, or say which are missing."""
    if suite.packages:
        subprocess.run([ROOT / "scripts/need-system", "--packages", *suite.packages], check=False)


def run(suite: Suite, files: Iterable[str]) -> Result:
    """Run a suite.

    Args:
        suite: The suite.
        files: All files of the project.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcome, log = Path(folder, "outcome"), Path(folder, "log")
        command: list[str] = ["bash", "-euc", suite.command]
        if not suite.command:
            chosen = sorted(file for file in files if _is_run(file, suite))
            # What the tests of a file share is made once, unless that would leave cores idle.
            shared = "loadfile" if len(chosen) > 1 else "load"
            command = [sys.executable, "-m", "pytest", "-q", "-n", JOBS, "--dist", shared]
            command += ["--no-loadscope-reorder", f"--suite={suite.name}", f"--outcome={outcome}"]
            command += ["--reruns", "1", "--timeout", str(SECONDS)]
            command += chosen
        began = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
            _, status, used = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
        said = json.loads(outcome.read_text()) if outcome.exists() else {}
        minutes = {
            "minutes": (time.monotonic() - began) / 60,
            "cpu_minutes": (used.ru_utime + used.ru_stime) / 60,
        }
        said = {name: value for name, value in said.items() if name != "code"} | minutes
        output = log.read_text(errors="replace")
    return Result(suite.name, code == 0 and not said.get("skips"), output=output, **said)


def _is_run(file: str, suite: Suite) -> bool:
    name = file.rpartition("/")[2]
    return name.startswith("test_") and name.endswith(".py") and matches(file, suite.tests)


def _processes() -> int:
    """Return the number of processes and threads that this machine has begun so far."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes"))


class Plan:
    """Which suites are run, and which are known.

    Attributes:
        reasons: Suite that is run → the reason.
        known: Suite that is not run → its last pass.
    """

    def __init__(self, suites: Mapping[str, Suite], inputs: Inputs, record: Mapping[str, Passed]):
        why = {n: why_unknown(s, record.get(n), inputs) for n, s in suites.items() if n != CORE}
        self.reasons = {name: reason for name, reason in why.items() if reason}
        self.known = {name: record[name] for name, reason in why.items() if not reason}

    def draw(self, commit: str) -> None:
        """Have one of the known suites run: the one that a commit draws."""
        if self.known:
            drawn = random.Random(commit).choice(sorted(self.known))
            self.reasons[drawn] = f"it is known ({self.known.pop(drawn).day}), and drawn"


class Lanes:
    """Runs suites, those of pytest and commands side by side: commands wait much, on one core.

    Attributes:
        results: What came of the suites so far.
        left: Suites that were not begun, as they would have ended too late.
    """

    def __init__(self, inputs: Inputs, results: list[Result], *, begun: float, is_check: bool):
        self.results, self.left = results, list[str]()
        self._inputs, self._begun, self._is_check = inputs, begun, is_check
        self._lock = threading.Lock()

    def run(self, names: Sequence[str]) -> None:
        """Run the suites of these names; print a line for each."""
        suites = [read()[name] for name in names]
        lanes = [[s for s in suites if not s.command], [s for s in suites if s.command]]
        with ThreadPoolExecutor(len(lanes)) as pool:
            for done in [pool.submit(self._run_lane, lane) for lane in lanes]:
                done.result()

    def _run_lane(self, suites: Iterable[Suite]) -> None:
        for suite in suites:
            with self._lock:
                end = (time.monotonic() - self._begun) / 60 + _pace(self.results) * suite.minutes
                if self._is_check and end > LATEST:
                    self.left.append(suite.name)
                    continue
                install(suite)
                digest = self._inputs.digest(suite)
            result = run(suite, self._inputs.files)
            with self._lock:
                self.results.append(result)
                print(result.line(), flush=True)
                if result.passed and not self._is_check and suite.name != CORE:
                    _keep(result, digest)


def main() -> int:
    """Run suites; return 0 if all have passed that were to."""
    arguments = _arguments()
    begun = time.monotonic() - 60 * arguments.elapsed
    suites, inputs = read(), Inputs()
    if unknown := set(arguments.names) - suites.keys() - {"changed"}:
        print(f"no such suite: {', '.join(sorted(unknown))}; known: {', '.join(suites)}")
        return 2
    plan = Plan(suites, inputs, load())
    if arguments.plan:
        print("\n".join(f"to run {name}: {reason}" for name, reason in plan.reasons.items()))
        return _report(plan, Lanes(inputs, [], begun=begun, is_check=False))
    to_do = arguments.names or [name for name in suites if name != CORE]
    if arguments.check:
        plan.draw(_commit())
        to_do = ["changed"]
    if "changed" in to_do:
        to_do = [name for name in suites if name in plan.reasons]
    results = [_core(arguments.core)] if arguments.core else []
    print(LINE.format("SUITE", "", "TESTS", "MINUTES", "CPU", ""))
    print("".join(f"{result.line()}\n" for result in results), end="", flush=True)
    lanes, processes = Lanes(inputs, results, begun=begun, is_check=arguments.check), _processes()
    lanes.run(to_do)
    print(f"{_processes() - processes} processes and threads have begun on this machine")
    return _report(plan, lanes, is_check=arguments.check)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("suites", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--plan", action="store_true", help="print what is not known, and why")
    parser.add_argument("--check", action="store_true", help="run what is not known, for CI")
    parser.add_argument("--elapsed", type=float, default=0.0, help="minutes that CI has taken")
    parser.add_argument("--core", type=Path, help="what came of make test: its --outcome")
    return parser.parse_args()


def _core(outcome: Path) -> Result:
    said: dict[str, Any] = json.loads(outcome.read_text() or '{"code": 3}')  # pytest broke down
    return Result(CORE, said.pop("code") == 0 and not said.get("skips"), **said)


def _pace(results: Iterable[Result]) -> float:
    """Return how many times as long as they should the suites have taken, at least 1.

    A machine that others use, too, will be as slow for the next ones.
    """
    done = [(result.minutes, read()[result.suite].minutes) for result in results]
    return max(1.0, sum(m for m, _ in done) / sum(m for _, m in done)) if done else 1.0


def _keep(result: Result, digest: str) -> None:
    """Record a pass, unless the suite's inputs changed while it ran."""
    suite, inputs = read()[result.suite], Inputs()
    if inputs.digest(suite) != digest:
        print(f"{result.suite}: not recorded, since its files were changed while it ran")
        return
    today, tests = date.today().isoformat(), result.counts.get("passed", 0)
    passed = Passed(digest, machine(suite), today, round(result.minutes, 2), tests)
    save({**load(), result.suite: passed})


def _report(plan: Plan, lanes: Lanes, *, is_check: bool = False) -> int:
    """Print what ran and why, what is known and since when; return the exit code."""
    results = lanes.results
    for result in results:
        for test, failure in result.repeated.items():
            print(f"\nrepeated: {test}\n{failure}")
        for reason, tests in result.skips.items():
            print(f"\nskipped for want of something: {reason}: {', '.join(tests[:5])}")
    print()
    for result in results:
        if result.suite in plan.reasons:
            print(f"ran    {result.suite}: {plan.reasons[result.suite]}")
    for name, passed in plan.known.items():
        if name not in {result.suite for result in results}:
            print(f"known  {name}: passed on {passed.day}, {passed.minutes} minutes")
    for name in lanes.left:
        print(f"LEFT   {name}: it would have ended after {LATEST:g} minutes")
    failed = [result.suite for result in results if not result.passed]
    repeated = sum(len(result.repeated) for result in results)
    if is_check and repeated > REPEATED:
        failed.append(f"{repeated} tests were repeated, where {REPEATED} may be")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed or lanes.left))


def _commit() -> str:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    return head.stdout.decode().strip()


if __name__ == "__main__":
    sys.exit(main())
