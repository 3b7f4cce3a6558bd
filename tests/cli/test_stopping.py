"""Ctrl-C and kill -9 on real runs with real sandboxes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from intercode.evaluate.log import EPISODES, read_episodes

from .conftest import Run, command, parsed, write


def start(tmp_path: Path, data: Path, out: Path) -> subprocess.Popen[str]:
    options = ["--data", data, "--out", out, "--workers", 2]
    return subprocess.Popen(
        command("run", "bash", *options),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def many(tmp_path: Path, count: int, gold: str) -> Path:
    tasks = [{"task_id": f"t{n}", "query": "q", "gold": gold} for n in range(count)]
    return write(tmp_path / "many.json", tasks)


def wait_for(path: Path, bytes_: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < bytes_:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_once_and_going_on(cli: Run, tmp_path: Path) -> None:
    data = many(tmp_path, 12, "sleep 0.3; echo hi")
    with start(tmp_path, data, tmp_path / "run") as child:
        wait_for(tmp_path / "run" / EPISODES, 1)
        # As a terminal does it: to the whole foreground process group.
        os.killpg(child.pid, signal.SIGINT)
        told, noise = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted: waiting for" in noise and "episodes are missing" in told
    again = f"go on with: intercode resume {tmp_path / 'run'}\n"
    assert told.endswith(again)
    recorded = list(read_episodes(tmp_path / "run" / EPISODES))
    assert 0 < len(recorded) < 12 and all(episode.success for episode in recorded)
    rest = parsed(cli("resume", "run", "--json"))
    assert rest["ran"] == 12 - len(recorded) and rest["statistics"]["successes"] == 12


def test_ctrl_c_twice(tmp_path: Path) -> None:
    task = {"query": "q", "gold": "sleep 50; echo hi", "timeout": 55}
    data = write(tmp_path / "many.json", [{"task_id": f"t{n}", **task} for n in range(4)])
    with start(tmp_path, data, tmp_path / "run") as child:
        wait_for(tmp_path / "run" / "run.json", 1)
        time.sleep(1)
        began = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(child.pid, signal.SIGINT)
        _, noise = child.communicate(timeout=60)
    assert time.monotonic() - began < 30  # what is in flight takes 50
    assert child.returncode == 130 and "Traceback" not in noise
    assert f"go on with: intercode resume {tmp_path / 'run'}" in noise
    assert (tmp_path / "run" / EPISODES).read_bytes() == b""


def test_killed_and_gone_on_with(cli: Run, tmp_path: Path) -> None:
    data = many(tmp_path, 150, "echo hi")
    log = tmp_path / "run" / EPISODES
    chance = random.Random(1)
    seen: set[str] = set()
    for _ in range(3):
        before = log.stat().st_size if log.exists() else 0
        with start(tmp_path, data, tmp_path / "run") as child:
            wait_for(log, before + 1)
            time.sleep(chance.random() * 0.2)
            child.kill()
        now = [episode.task_id for episode in read_episodes(log)]
        assert len(now) == len(set(now)) and seen <= set(now)
        seen = set(now)
    told = parsed(cli("run", "bash", "--data", data, "--out", "run", "--json"))
    assert told["ran"] == 150 - len(seen) and told["statistics"]["successes"] == 150
    cli("clean")
    assert parsed(cli("clean", "--json"))["removed"] == []
