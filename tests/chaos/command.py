"""Run tests under chaos, in rounds, and tell which failed and how to have it again."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import random
import secrets
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sources import ROOT

from .deciding import Chaos, Settings
from .freezing import Freezer, FreezingError
from .hearing import Ear, HearingError
from .plugin import REPORTS

TESTS = ROOT / "tests"
NOT_TESTED = ("chaos", "docs", "soak")
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); import pytest; sys.exit(pytest.main())"
"""As `python -m pytest`; the plugin is found without a variable that tests would inherit."""
PATIENCE = 60
PR_SET_PDEATHSIG = 1
SHOWN = 12
OUTPUT = "pytest.txt"

OPTIONS: list[tuple[str, Callable[[str], object], object, str]] = [
    ("MINUTES", float, None, "start no test after so long; 20, or with REPEAT as long as it takes"),
    ("SEED", int, None, "of the first round, the next has one more; drawn if not given"),
    ("CHANCE", float, 0.1, "how probable a freeze is at a fork, an exec, a look at random threads"),
    ("LONGEST", float, 1.5, "seconds that a freeze lasts at most"),
    ("LOOKS", float, 5, "how often a second a thread of each worker's processes is looked at"),
    ("WORKERS", int, 4, "how many tests run at once"),
    ("REPEAT", int, 0, "run so often with the same seed, instead of rounds"),
    ("TESTS", str, "", "files, folders and ids of tests, as a shell would split them"),
    ("LOGS", Path, Path("runs/chaos"), "where a folder with the logs of this run is made"),
]
"""Each may also be given as a variable of the environment: so make hands them over."""


class Round:
    """One run of pytest under chaos, and what came of it."""

    def __init__(self, settings: Settings, logs: Path, until: float | None) -> None:
        self.settings = settings
        self.until = until
        self.freezes: list[dict[str, object]] = []
        self.results: dict[str, str] = {}
        """What each test that ended has failed with; empty if it passed."""
        self._output = open(logs / OUTPUT, "a")
        self._log = open(logs / "freezes.jsonl", "a")

    def _note(self, freeze: dict[str, object]) -> None:
        self.freezes.append(freeze)
        self._log.write(json.dumps({"seed": self.settings.seed, **freeze}) + "\n")
        self._log.flush()

    def _start(self, folder: Path, tests: list[str], workers: int) -> subprocess.Popen[bytes]:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        libc = ctypes.CDLL(None)

        def prepare() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT)
            os.setpriority(os.PRIO_PROCESS, 0, niceness)  # the tool's urgency has reset it

        # Ids of tests are to be true here, wherever the tests are.
        options = ["-q", "--rootdir", ".", "-p", "chaos.plugin", "--chaos-folder", str(folder)]
        if workers:
            options += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        if self.until is not None:
            options += ["--chaos-until", str(self.until)]
        return subprocess.Popen(
            [sys.executable, "-c", START, str(TESTS), *options, *tests],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the tool, which thaws first
            preexec_fn=prepare,
        )

    def run(self, freezer: Freezer, tests: list[str], workers: int) -> int:
        """Run these tests: what pytest returned."""
        with contextlib.ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
            folder = Path(name)
            ear = stack.enter_context(contextlib.closing(Ear()))
            pytest = self._start(folder, tests, workers)
            stack.callback(self._end, pytest, folder)
            chaos = Chaos(self.settings, freezer, pytest.pid, folder, self._note)
            stack.callback(chaos.close)
            look = time.monotonic()
            while pytest.poll() is None:
                next_thaw = freezer.thaw()
                if time.monotonic() >= look:
                    chaos.look()
                    look = time.monotonic() + 1 / max(self.settings.looks, 1e-9)
                wake = min(look, next_thaw or look, time.monotonic() + 0.2)
                select.select([ear], [], [], max(0.0, wake - time.monotonic()))
                for event in ear.events():
                    chaos.heed(event)
            if ear.lost:
                print(f"the kernel dropped events {ear.lost} times: some processes went unheard")
            return pytest.returncode

    def _end(self, pytest: subprocess.Popen[bytes], folder: Path) -> None:
        """End pytest if it still runs, and read its reports."""
        if pytest.poll() is None:
            pytest.send_signal(signal.SIGINT)
            try:
                pytest.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(pytest.pid, signal.SIGKILL)
                pytest.wait()
        if (folder / REPORTS).exists():
            for line in (folder / REPORTS).read_text().splitlines():
                test, when, outcome, message = json.loads(line)
                if outcome == "failed":
                    self.results[test] = message
                elif (when, outcome) == ("call", "passed"):
                    self.results.setdefault(test, "")
        self._output.close()
        self._log.close()

    def failures(self) -> Iterator[str]:
        """Return for each test that failed what happened and how to have it again."""
        for test, message in self.results.items():
            if not message:
                continue
            during = [freeze for freeze in self.freezes if freeze["test"] == test]
            yield f"\nFAILED {test}"
            yield from (f"    {line}" for line in message.splitlines()[-3:])
            yield f"  {len(during)} freezes during it" + (":" if during else "")
            for freeze in during[-SHOWN:]:
                yield f"    {freeze['seconds']:5.3f} s at {freeze['kind']}: {freeze['process']}"
            seed, chance, longest, looks = self.settings
            words = shlex.quote(shlex.quote(test)).replace("$", "$$")
            yield "  again: " + (
                f"make chaos SEED={seed} CHANCE={chance} LONGEST={longest} LOOKS={looks} "
                f"TESTS={words} REPEAT=20"
            )


def files(tests: str) -> list[str]:
    """Return the files and ids of tests that a setting stands for.

    Raises:
        FileNotFoundError: There is no such file or folder.
    """
    given = shlex.split(tests) or sorted(
        str(path)
        for folder in ("tests", *Path().glob("packages/*/tests"))
        for path in Path(folder).iterdir()
        if path.name not in NOT_TESTED
    )
    found = []
    for name in given:
        path = Path(name.partition("::")[0])
        if path.is_dir():
            found += sorted(map(str, path.rglob("test_*.py")))
        elif not path.exists():
            raise FileNotFoundError(f"no file or folder {path}")
        elif "::" in name or path.match("test_*.py"):
            found.append(name)
    if not found:
        raise FileNotFoundError(f"no tests in {tests}")
    return found


def stop(*_: object) -> None:
    """End as with Ctrl-C, once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the command: 0 if all tests passed, 1 if some failed, 2 if it could not run."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    for name, kind, default, text in OPTIONS:
        given = os.environ.get(name) or default
        parser.add_argument(f"--{name.lower()}", type=kind, default=given, help=text)
    args = parser.parse_args(arguments)
    if not (0 <= args.chance <= 1 and args.longest > 0 and args.looks >= 0 and args.workers >= 0):
        parser.error("CHANCE is from 0 to 1, LONGEST above 0, LOOKS and WORKERS not below 0")
    if os.geteuid() != 0:
        print("make chaos needs root: only root is told of forks, and may freeze", file=sys.stderr)
        return 2
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    logs = args.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}-{os.getpid()}"
    try:
        tests = files(args.tests)
        Ear().close()
        freezer = Freezer()
    except (FileNotFoundError, FreezingError, HearingError) as error:
        print(f"make chaos: {error}", file=sys.stderr)
        return 2
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, stop)
    with contextlib.suppress(OSError):  # or it comes late
        urgent = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, urgent, os.sched_param(1))
    logs.mkdir(parents=True)
    print(f"seed {seed}, {len(tests)} files or tests, logs in {logs}", flush=True)
    minutes = args.minutes or (None if args.repeat else 20)
    until = minutes and time.monotonic() + 60 * minutes
    rounds: list[Round] = []
    status = 0
    try:
        for number in range(args.repeat) if args.repeat else itertools.count():
            if until and time.monotonic() > until:
                break
            now = seed if args.repeat else seed + number
            settings = Settings(now, args.chance, args.longest, args.looks)
            shuffled = random.Random(now).sample(tests, len(tests))
            rounds.append(Round(settings, logs, until))
            if rounds[-1].run(freezer, shuffled, args.workers) not in (0, 1):
                tail = (logs / OUTPUT).read_text().splitlines()[-20:]
                raise ChildProcessError("pytest could not run:\n" + "\n".join(tail))
            for line in rounds[-1].failures():
                print(line, flush=True)
    except (ChildProcessError, KeyboardInterrupt) as error:
        print(str(error) or "interrupted", file=sys.stderr)
        status = 2
    finally:
        freezer.close()
    failed = sum(bool(message) for each in rounds for message in each.results.values())
    print(
        f"\nseed {seed}: {sum(len(each.results) for each in rounds)} tests run in {len(rounds)} "
        f"rounds, {sum(len(each.freezes) for each in rounds)} freezes, {failed} failures"
    )
    return status or int(failed > 0)
