"""Ctrl-C and kill -9 on real runs with real sandboxes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from intercode.evaluate.log import EPISODES, read_episodes
from waiting import eventually

from .conftest import Run, command, parsed, write

SAYING = """
from pathlib import Path

class Saying:
    def __init__(self, task):
        pass

    def act(self, observation, history):
        return "submit" if history else Path("action").read_text()
"""


def start(tmp_path: Path, data: Path, *options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("run", "bash", "--data", data, "--out", tmp_path / "run", "--workers", 2, *options),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def many(tmp_path: Path, count: int, gold: str) -> Path:
    tasks = [{"task_id": f"t{n}", "query": "q", "gold": gold} for n in range(count)]
    return write(tmp_path / "many.json", tasks)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def runs(argument: str) -> bool:
    """Whether there is a process with this argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in path.read_bytes().split(b"\0"):
                return True
    return False


def test_ctrl_c_once_and_going_on(cli: Run, tmp_path: Path) -> None:
    data = many(tmp_path, 30, "echo hi")
    (tmp_path / "agent.py").write_text(SAYING)
    (tmp_path / "action").write_text("sleep 1; echo hi")
    with start(tmp_path, data, "--agent", "agent.py:Saying") as child:
        while child.poll() is None and not size(tmp_path / "run" / EPISODES):
            time.sleep(0.01)
        # As a terminal does it: to the whole foreground process group.
        os.killpg(child.pid, signal.SIGINT)
        told, noise = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted: waiting for" in noise and "episodes are missing" in told
    again = f"go on with: intercode resume {tmp_path / 'run'}\n"
    assert told.endswith(again)
    recorded = list(read_episodes(tmp_path / "run" / EPISODES))
    assert 0 < len(recorded) < 30 and all(episode.success for episode in recorded)
    (tmp_path / "action").write_text("echo hi")  # the rest need not take long
    rest = parsed(cli("resume", "run", "--json"))
    assert rest["ran"] == 30 - len(recorded) and rest["statistics"]["successes"] == 30


def test_ctrl_c_twice(tmp_path: Path) -> None:
    seconds = f"{50 + os.getpid() / 1e8:.8f}"  # nobody else's
    task = {"query": "q", "gold": f"sleep {seconds}; echo hi", "timeout": 55}
    data = write(tmp_path / "many.json", [{"task_id": f"t{n}", **task} for n in range(4)])
    with start(tmp_path, data) as child:
        assert child.stderr is not None
        while child.poll() is None and not runs(seconds):
            time.sleep(0.05)
        began = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)
        while "interrupted: waiting for" not in (line := child.stderr.readline()) and line:
            pass
        os.killpg(child.pid, signal.SIGINT)
        noise = child.stderr.read()
    assert time.monotonic() - began < 30  # what is in flight takes 50
    assert child.returncode == 130 and "Traceback" not in noise
    assert f"go on with: intercode resume {tmp_path / 'run'}" in noise
    assert (tmp_path / "run" / EPISODES).read_bytes() == b""


def test_killed_and_gone_on_with(cli: Run, tmp_path: Path) -> None:
    data = many(tmp_path, 150, "echo hi")
    log = tmp_path / "run" / EPISODES
    chance = random.Random(1)
    seen: set[str] = set()
    killed: list[int] = []
    for _ in range(3):
        before = size(log)
        with start(tmp_path, data) as child:
            # Of a run that was faster than we are, nothing more is to come.
            while child.poll() is None and size(log) <= before:
                time.sleep(0.01)
            time.sleep(chance.random() * 0.2)
            child.kill()
        killed.append(child.pid)
        now = [episode.task_id for episode in read_episodes(log)]
        assert len(now) == len(set(now)) and seen <= set(now)
        seen = set(now)
    told = parsed(cli("run", "bash", "--data", data, "--out", "run", "--json"))
    assert told["ran"] == 150 - len(seen) and told["statistics"]["successes"] == 150

    def left() -> list[str]:
        # What others have left meanwhile is theirs.
        found = parsed(cli("clean", "--json"))["removed"]
        return [path for path in found for pid in killed if f"-{pid}-" in path]

    # What a process is still on its way out of cannot go yet: not the first time.
    assert eventually(lambda: not left())
