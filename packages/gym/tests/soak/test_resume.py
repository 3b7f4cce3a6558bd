"""kill -9 and `intercode resume`, again and again: the run ends as if nothing had happened.

With other moments, and at the size of `make soak`::

    INTERCODE_SOAK_SEED=8 INTERCODE_SOAK_KILLS=50 pytest packages/gym/tests/soak/test_resume.py -s
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from intercode.records import EPISODES, MANIFEST, read_manifest
from open_resources import held, held_once
from waiting import PATIENCE, eventually

from .killed import cgroups_of, intercode, kill

KILLS = int(os.environ.get("INTERCODE_SOAK_KILLS", "4"))
SEED = int(os.environ.get("INTERCODE_SOAK_SEED", "7"))
TASKS, EPOCHS = 50, KILLS // 2
TOTAL = TASKS * EPOCHS
STARTING = 0.6
"""Seconds that a session takes until its first episode has ended, about."""
AGENT = """
import random, time
from pathlib import Path

def held():
    try:
        return int(Path(__file__).with_name("held").read_text())
    except FileNotFoundError:
        return None

class Agent:
    def __init__(self, task, seed):
        while seed == held():
            time.sleep(0.01)
        chance = random.Random(seed)
        self.actions = [f"echo {n}" for n in chance.sample(range(100), chance.randrange(3))]
        self.actions += [task.gold[0]] if chance.random() < 0.7 else ["false"]

    def act(self, observation, history):
        return [*self.actions, "submit"][len(history)]

class Agents:
    needs_gold = True

    def __call__(self, task):
        raise NotImplementedError

    def make_agent(self, env, task):
        return Agent(task, env.episode.seed)

make = Agents()
"""


@pytest.mark.timeout(1800)  # a minute or two where the machine is not busy
def test_as_if_nothing_had_happened(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    tasks = [{"task_id": f"t{n}", "query": "Say it.", "gold": f"echo {n}"} for n in range(TASKS)]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    begin = [
        *("run", "bash", "--data", tmp_path / "tasks.json", "--agent", tmp_path / "agent.py:make"),
        *("--epochs", EPOCHS, "--workers", 2, "--quiet", "--out"),
    ]
    whole, out = tmp_path / "whole", tmp_path / "run"
    finished(begin, whole)
    # One of the last episodes does not end: no session ends by itself, however late its kill comes.
    (tmp_path / "held").write_text(str(list(recorded(whole).values())[-1]["seed"]))
    before = held()
    chance = random.Random(SEED)
    seen: dict[tuple[int, str], Any] = {}
    killed: list[int] = []
    for left in range(KILLS, 0, -1):
        resume = ["resume", out, "--trust", "--quiet"]
        session = resume if (out / MANIFEST).exists() else [*begin, out]
        process = subprocess.Popen(intercode(*session), stdout=subprocess.DEVNULL)
        wait_for_the_moment(process, out / EPISODES, len(seen), left, chance)
        kill(process)
        now = recorded(out)
        assert now.items() >= seen.items(), "a finished episode was lost, or run again"
        killed.append(process.pid)
        print(f"{left} kills left: {len(now)} episodes, {len(now) - len(seen)} of them new")
        seen = now
    assert 0 < len(seen) < TOTAL
    (tmp_path / "held").unlink()
    finished(["resume", out, "--trust", "--quiet"])
    assert recorded(out) == recorded(whole)
    once, often = read_manifest(whole), read_manifest(out)
    assert sum(session.get("episodes", 0) for session in often.pop("sessions")) > 0
    del once["sessions"]
    assert often == once
    finished(["clean"])
    assert not [found for pid in killed for found in cgroups_of(pid)]

    def as_before(found: dict[str, int]) -> bool:
        return {**found, "temporary files": 0} == {**before, "temporary files": 0}

    left = held_once(as_before)
    assert as_before(left), (before, left)


def wait_for_the_moment(
    process: subprocess.Popen[bytes], log: Path, known: int, left: int, chance: random.Random
) -> None:
    """At random: while it starts, or after some episodes, so many that the last kill finds some."""
    began = time.monotonic()
    seconds, episodes = chance.uniform(0, STARTING), 1
    if chance.random() < 0.6:
        seconds, episodes = PATIENCE, chance.randint(1, max(1, 2 * (TOTAL - known) // (left + 1)))
    episodes = min(known + episodes, TOTAL - 30)
    eventually(
        lambda: (
            time.monotonic() > began + seconds
            or lines(log) >= episodes
            or process.poll() is not None
        )
    )
    time.sleep(chance.uniform(0, 0.01))  # allow sleep: it is killed at a random moment
    assert process.poll() is None, "it ended by itself"


def finished(command: list[object], *more: object) -> None:
    """Run it to its end."""
    subprocess.run(intercode(*command, *more), check=True, stdout=subprocess.DEVNULL)


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def recorded(run: Path) -> dict[tuple[int, str], Any]:
    """Each finished episode, without its times; each is there once."""
    found: dict[tuple[int, str], Any] = {}
    log = run / EPISODES
    for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else ():
        episode = json.loads(line)
        assert episode.pop("started") > 0 and episode.pop("seconds") > 0
        for turn in episode["turns"]:
            assert turn.pop("seconds") >= 0
        key = (episode["epoch"], episode["task_id"])
        assert key not in found, "it was run twice"
        found[key] = episode
    return found
