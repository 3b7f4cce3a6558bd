"""Ctrl-C and kill -9, on a real process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from intercode.evaluate import evaluate
from intercode.records import EPISODES, read_episodes
from sources import TEST_PATH
from waiting import eventually

from .fakes import Factory, dataset

CHILD = """
import sys, threading
from evaluate.fakes import Factory, dataset
from intercode.evaluate import Progress, evaluate
AT_ONCE = 4
class Telling(Progress):
    def __init__(self):
        self.begun, self.lock, self.heard = set(), threading.Lock(), threading.Event()
    def action(self, task, action):
        with self.lock:
            self.begun.add(task.task_id)
            if len(self.begun) == AT_ONCE:
                open(f"{sys.argv[1]}/acting", "w").close()
    def report_interrupt(self, running_count):
        open(f"{sys.argv[1]}/stopping", "w").close()
        self.heard.set()
telling = Telling()
tasks = dataset(int(sys.argv[2]))
factory = Factory(tasks, delay=float(sys.argv[3]))
try:
    result = evaluate(
        tasks, "oracle", factory, workers=4, max_sandboxes=4, out=sys.argv[1], progress=telling
    )
except KeyboardInterrupt:
    print("stopped", all(env.closed for env in factory.made))
    sys.exit(130)
word = "interrupted" if result.interrupted else "complete"
print(word, result.ran, len(result.outcomes), *sorted(telling.begun))
"""


@contextmanager
def start(
    out: Path, count: int, delay: float, code: str = CHILD
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, str(out), str(count), str(delay)],
        env={**os.environ, "PYTHONPATH": TEST_PATH},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()  # where a test has failed: it would act for an hour


def wait_for(path: Path) -> None:
    assert eventually(path.exists)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def test_one_interrupt_finishes_what_is_in_flight(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(out, 4000, 0.05) as child:
        wait_for(out / "acting")
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    word, ran, outcomes, *begun = told.split()
    recorded = {episode.task_id: episode.status for episode in read_episodes(out / EPISODES)}
    assert word == "interrupted" and sorted(recorded) == begun
    assert 4 <= int(ran) == int(outcomes) == len(recorded) < 4000
    assert set(recorded.values()) == {"submitted"}
    assert json.loads((out / "run.json").read_text())["sessions"][0]["interrupted"]


def test_an_interrupt_during_the_last_episodes_is_told(tmp_path: Path) -> None:
    """Nothing is missing of this run; but who runs several is to stop all the same."""
    out = tmp_path / "run"
    until_heard = 'None if action == "reset" else telling.heard.wait() and None'
    code = CHILD.replace("AT_ONCE = 4", "AT_ONCE = 1").replace(
        "delay=float(sys.argv[3])", f"fail=lambda task, action: {until_heard}"
    )
    with start(out, 1, 0, code) as child:
        wait_for(out / "acting")
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=60)
    assert told == "interrupted 1 1 t0\n"
    assert not json.loads((out / "run.json").read_text())["sessions"][0]["interrupted"]


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_two_interrupts_stop_now(tmp_path: Path, signals: list[int]) -> None:
    out = tmp_path / "run"
    with start(out, 200, 3600) as child:
        for number, sign in zip(signals, ("acting", "stopping"), strict=False):
            wait_for(out / sign)  # two signals that are both pending are one
            child.send_signal(number)
        told, _ = child.communicate(timeout=60)
    assert (child.returncode, told) == (130, "stopped True\n")
    assert (out / EPISODES).read_bytes() == b""


def test_killed_at_random_and_resumed(tmp_path: Path) -> None:
    """No finished episode is lost, doubled or torn, however often the run is killed."""
    out, count = tmp_path / "run", 400
    chance = random.Random(0)
    seen: set[str] = set()
    for _ in range(5):
        before = size(out / EPISODES)
        with start(out, count, 0.01) as child:
            # Of a run that was faster than we are, nothing more is to come.
            assert eventually(
                lambda: size(out / EPISODES) > before or child.poll() is not None  # noqa: B023
            )
            time.sleep(chance.random() * 0.1)  # allow sleep: it is killed at a random moment
            child.kill()
        now = {episode.task_id for episode in read_episodes(out / EPISODES)}
        assert seen <= now
        seen = now
    tasks = dataset(count)
    result = evaluate(tasks, "oracle", Factory(tasks), out=out)
    assert result.complete and result.ran == count - len(seen)
    ids = [episode.task_id for episode in read_episodes(out / EPISODES)]
    assert sorted(ids) == sorted(task.task_id for task in tasks)


def test_two_interrupts_wait_for_no_agent(tmp_path: Path) -> None:
    """It holds no sandbox, and its model may take an hour."""
    thinking = """
import itertools, sys, time
from intercode.evaluate import worker
worker.PATIENCE = 3600
thinking = itertools.count(1)
class Thinker:
    def act(self, observation, history):
        if next(thinking) == AT_ONCE:
            open(f"{sys.argv[1]}/acting", "w").close()
        time.sleep(3600)
"""
    code = thinking + CHILD.replace('"oracle"', "lambda task: Thinker()")
    with start(tmp_path / "run", 200, 0, code) as child:
        wait_for(tmp_path / "run" / "acting")
        child.send_signal(signal.SIGTERM)  # counts twice
        told, _ = child.communicate(timeout=60)
    assert (child.returncode, told) == (130, "stopped True\n")
