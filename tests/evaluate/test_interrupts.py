"""Ctrl-C and kill -9, on a real process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intercode.evaluate import evaluate
from intercode.evaluate.log import EPISODES, read_episodes

from .fakes import Factory, dataset

CHILD = """
import sys
from evaluate.fakes import Factory, dataset
from intercode.evaluate import Progress, evaluate
class Acting(Progress):
    def action(self, task, action):
        open(f"{sys.argv[1]}/acting", "w").close()
tasks = dataset(int(sys.argv[2]))
factory = Factory(tasks, delay=float(sys.argv[3]))
try:
    result = evaluate(tasks, "oracle", factory, workers=4, out=sys.argv[1], progress=Acting())
except KeyboardInterrupt:
    print("stopped", all(env.closed for env in factory.made))
    sys.exit(130)
print("interrupted" if result.interrupted else "complete", result.ran, len(result.outcomes))
"""


def start(out: Path, count: int, delay: float, code: str = CHILD) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(out), str(count), str(delay)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, bytes_: int = 1) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() or path.stat().st_size < bytes_:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_interrupt_finishes_what_is_in_flight(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with start(out, 200, 0.05) as child:
        wait_for(out / EPISODES)
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    word, ran, outcomes = told.split()
    recorded = [episode.status for episode in read_episodes(out / EPISODES)]
    assert word == "interrupted"
    assert 4 <= int(ran) == int(outcomes) == len(recorded) < 200
    assert set(recorded) == {"submitted"}
    assert json.loads((out / "run.json").read_text())["sessions"][0]["interrupted"]


def test_an_interrupt_during_the_last_episodes_is_told(tmp_path: Path) -> None:
    """Nothing is missing of this run; but who runs several is to stop all the same."""
    out = tmp_path / "run"
    with start(out, 1, 2) as child:
        wait_for(out / "acting", 0)
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=30)
    assert told == "interrupted 1 1\n"
    assert not json.loads((out / "run.json").read_text())["sessions"][0]["interrupted"]


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_two_interrupts_stop_now(tmp_path: Path, signals: list[int]) -> None:
    out = tmp_path / "run"
    with start(out, 200, 3600) as child:
        wait_for(out / "acting", 0)
        for number in signals:
            child.send_signal(number)
            time.sleep(0.3)
        told, _ = child.communicate(timeout=30)
    assert (child.returncode, told) == (130, "stopped True\n")
    assert (out / EPISODES).read_bytes() == b""


def test_killed_at_random_and_resumed(tmp_path: Path) -> None:
    """No finished episode is lost, doubled or torn, however often the run is killed."""
    out, count = tmp_path / "run", 400
    chance = random.Random(0)
    seen: set[str] = set()
    for _ in range(5):
        with start(out, count, 0.01) as child:
            wait_for(out / EPISODES, (out / EPISODES).stat().st_size + 1 if seen else 1)
            time.sleep(chance.random() * 0.1)
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
import sys, time
from intercode.evaluate import pool
pool.PATIENCE = 3600
class Thinker:
    def act(self, observation, history):
        open(f"{sys.argv[1]}/acting", "w").close()
        time.sleep(3600)
"""
    code = thinking + CHILD.replace('"oracle"', "lambda task: Thinker()")
    with start(tmp_path / "run", 200, 0, code) as child:
        wait_for(tmp_path / "run" / "acting", 0)
        child.send_signal(signal.SIGTERM)  # counts twice
        told, _ = child.communicate(timeout=30)
    assert (child.returncode, told) == (130, "stopped True\n")
