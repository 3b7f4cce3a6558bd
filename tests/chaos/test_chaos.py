"""The tool's own tests: on small files of tests, with real freezes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import PATIENCE, eventually

from .deciding import PYTEST, Settings, decide
from .freezing import PREFIX, Freezer, FreezingError
from .hearing import Ear, HearingError

RACE = """
import select
from pathlib import Path
from subprocess import PIPE, Popen

def test_an_answer_in_time():
    cat = Popen(["cat"], stdin=PIPE, stdout=PIPE, bufsize=0)  # it ends with this process
    log = next(Path("logs").glob("*/freezes.jsonl"))
    while {frozen} and not log.read_text():
        pass
    cat.stdin.write(b"miaow\\n")
    assert select.select([cat.stdout], [], [], {limit})[0]
"""
"""Right by luck: an answer comes before its limit, if nobody holds up the one that gives it."""

CATS = """
from subprocess import PIPE, Popen

CATS = []  # they end with this process

def start_cats():
    for _ in range(6):
        cat = Popen(["cat"], stdin=PIPE, stdout=PIPE, bufsize=0)
        CATS.append(cat)
        cat.stdin.write(b"miaow\\n")
        assert cat.stdout.readline() == b"miaow\\n"

def test_before():
    start_cats()

def test_cats():
    start_cats()
"""

HELD = """
import subprocess

def test_held():
    subprocess.Popen(["cat"], stdin=subprocess.PIPE).wait()  # it ends with this process
"""


@pytest.fixture(autouse=True)
def possible() -> None:
    if os.geteuid() != 0:
        pytest.skip("not for an ordinary user: the kernel tells only root of forks")
    try:
        Freezer().close()
        Ear().close()
    except (FreezingError, HearingError) as error:
        pytest.skip(f"needs cgroup v1's freezer and the process connector: {error}")


def tool(folder: Path, text: str, **settings: object) -> subprocess.Popen[str]:
    """Start the tool on a file of tests, without xdist and random looks."""
    (folder / "test_it.py").write_text(text)
    given = {"tests": "test_it.py", "workers": 0, "looks": 0, "logs": "logs", **settings}
    return subprocess.Popen(
        [sys.executable, Path(__file__).parent, *(f"--{k}={v}" for k, v in given.items())],
        cwd=folder,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },  # none is needed, and it is quick
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, text: str, **settings: object) -> tuple[int, str]:
    with tool(folder, text, **settings) as started:
        output = started.communicate()[0]
    assert not group_of(started.pid).exists()
    return started.returncode, output


def freezes(folder: Path) -> list[dict[str, object]]:
    """What the last run of the tool logged."""
    logs = sorted(folder.glob("logs/*/freezes.jsonl"), key=os.path.getmtime)
    return [json.loads(line) for line in logs[-1].read_text().splitlines()] if logs else []


def group_of(pid: int) -> Path:
    """The frozen group of a tool with this pid."""
    freezer = Freezer()
    freezer.close()
    return Path(freezer.folder).with_name(f"{PREFIX}{pid}")


def seed_that_freezes_cat(settings: Settings) -> int:
    """A seed that holds up `cat` for long, once it runs, and not the fork that becomes it."""
    place = "test_it.py::test_an_answer_in_time"
    for seed in itertools.count():
        these = settings._replace(seed=seed)
        late = decide(these, place, "exec", "cat", 0).seconds > settings.longest / 2
        if late and not decide(these, place, "fork", PYTEST, 0).seconds:
            return seed
    raise AssertionError


def test_a_race_is_lost_under_a_seed_and_won_without(tmp_path: Path) -> None:
    seed = seed_that_freezes_cat(Settings(0, 0.03, 60, 0))
    options = {"seed": seed, "longest": 60, "repeat": 1}
    race = RACE.format(frozen=False, limit=PATIENCE)
    status, output = run(tmp_path, race, chance=0, **options)
    assert status == 0 and "1 tests run in 1 rounds, 0 freezes, 0 failures" in output, output
    for log in (tmp_path / "logs").iterdir():
        log.rename(tmp_path / log.name)
    # Whatever its limit, it is short of half a minute: no need to wait for long.
    race = RACE.format(frozen=True, limit=0.1)
    status, output = run(tmp_path, race, chance=0.03, **options)
    assert status == 1 and "1 freezes, 1 failures" in output, output
    assert " s at exec: cat" in output
    command = f"make chaos SEED={seed} CHANCE=0.03 LONGEST=60.0 LOOKS=0.0"
    assert f"{command} TESTS=test_it.py::test_an_answer_in_time REPEAT=20" in output


def test_a_seed_decides_the_same_whatever_ran_before(tmp_path: Path) -> None:
    options = {"chance": 0.5, "longest": 0.1, "repeat": 1}

    def decided(seed: int, tests: str = "test_it.py") -> list[tuple[str, float]]:
        status, output = run(tmp_path, CATS, seed=seed, tests=tests, **options)
        assert status == 0, output
        return [(str(each["key"]), float(str(each["seconds"]))) for each in freezes(tmp_path)]

    both = decided(7)
    assert any("test_before" in key for key, _ in both)
    alone = [each for each in both if "test_cats" in each[0]]
    assert alone and decided(7, "test_it.py::test_cats") == alone
    assert decided(8) != both


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_stays_frozen_when_the_tool_is_ended(tmp_path: Path, end: signal.Signals) -> None:
    started = tool(tmp_path, HELD, seed=1, chance=1, longest=1000)
    with started:
        assert eventually(lambda: freezes(tmp_path))
        (frozen,) = freezes(tmp_path)
        process, group = Path(f"/proc/{frozen['pid']}"), group_of(started.pid)
        assert group.exists() and f"/{group.name}\n" in (process / "cgroup").read_text()
        started.send_signal(end)
        assert eventually(lambda: not group.exists())
        assert eventually(lambda: not process.exists())  # its test was told to end, and ends it
        started.communicate(timeout=PATIENCE)
    assert started.returncode == (-end if end == signal.SIGKILL else 2)


@pytest.fixture
def bystanders() -> Iterator[list[int]]:
    """Processes that have nothing to do with the tests, and fork as they do."""
    pids: list[int] = []
    over = threading.Event()

    def fork() -> None:
        while not over.is_set():
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
                pids.append(cat.pid)
                assert PREFIX not in Path(f"/proc/{cat.pid}/cgroup").read_text()
                cat.communicate()

    thread = threading.Thread(target=fork)
    thread.start()
    yield pids
    over.set()
    thread.join()


def test_others_are_left_alone(tmp_path: Path, bystanders: list[int]) -> None:
    run(tmp_path, CATS, seed=1, chance=1, longest=0.05, repeat=1)
    frozen = {each["pid"] for each in freezes(tmp_path)}
    assert frozen and bystanders and not frozen & set(bystanders)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tests": "absent"}, "no file or folder absent"),
        ({"chance": 2}, "CHANCE is from 0 to 1"),
        ({"tests": "test_it.py::test_absent"}, "pytest could not run"),
    ],
)
def test_what_cannot_run_is_said(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    status, output = run(tmp_path, HELD, **settings)
    assert status == 2 and message in output
