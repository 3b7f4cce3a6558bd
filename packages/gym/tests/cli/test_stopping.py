"""Ctrl-C and kill -9 on real runs with real sandboxes."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intercode.records import EPISODES, MANIFEST, read_episodes
from sources import SOURCES
from waiting import PATIENCE, eventually, new_marker, sleepers

from .conftest import Run, command, parsed, write

SAYING = """
import time
from pathlib import Path

class Saying:  # in the first task; in the others when it may
    def __init__(self, task):
        self.first = task.task_id == "t0"

    def act(self, observation, history):
        while not (self.first or Path("go").exists()):
            Path("held").touch()
            time.sleep(0.01)
        return "submit" if history else "echo hi"
"""


@contextmanager
def start(tmp_path: Path, data: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own; what it tells is in the file `noise`."""
    arguments = ("--data", data, "--out", tmp_path / "run", "--workers", 2, *options)
    with (
        (tmp_path / "noise").open("w") as noise,
        subprocess.Popen(
            command("run", "bash", *arguments),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
            start_new_session=True,
        ) as child,
    ):
        try:
            yield child
        finally:
            child.kill()  # where a test has failed: it would act for an hour


@contextmanager
def console(
    tmp_path: Path, *arguments: object, stdout: int = subprocess.PIPE, path: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """The console script, as pip writes it, in a process of its own."""
    script = "import sys; from intercode_console import main; sys.exit(main())"
    source = os.pathsep.join(map(str, SOURCES))
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, source)))},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def stopped(child: subprocess.Popen[str]) -> str:
    """Send Ctrl-C, and return what is told of it."""
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    return told


WAITING = "from pathlib import Path; import time\nPath('here').touch(); time.sleep(3600)\n"
"""A module whose import has no end."""


def test_ctrl_c_during_the_imports_is_silent(tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text(WAITING)
    with console(tmp_path, "run", "bash", path=str(tmp_path)) as child:
        assert eventually((tmp_path / "here").exists)
        assert stopped(child).strip() == ""


def test_ctrl_c_before_the_first_write_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(WAITING)
    arguments = ("run", "bash", "--agent", "agent.py:make", "--out", "run")
    with console(tmp_path, *arguments) as child:
        assert eventually((tmp_path / "here").exists)
        told = stopped(child)
    assert told == "stopped before any episode began\n\n"
    assert not (tmp_path / "run" / MANIFEST).exists()


def test_ctrl_c_during_the_summary(tmp_path: Path) -> None:
    data = many(tmp_path, 1, "echo hi")
    reading, writing = os.pipe()
    # The pipe is full: the summary can begin, and cannot end.
    os.write(writing, b"." * fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096))
    arguments = ("run", "bash", "--quiet", "--data", data, "--out", "run")
    manifest = tmp_path / "run" / MANIFEST
    with (
        open(reading, encoding="utf-8") as pipe,
        console(tmp_path, *arguments, stdout=writing) as child,
    ):
        os.close(writing)
        # Its main thread is in a call for descriptor 1.
        call = Path(f"/proc/{child.pid}/syscall")
        assert eventually(lambda: manifest.exists() and call.read_text().split()[1:2] == ["0x1"])
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None and child.stderr.readline() == "\n"
        pipe.read()
        assert child.wait(PATIENCE) == 130 and child.stderr.read() == ""


def many(tmp_path: Path, count: int, gold: str) -> Path:
    tasks = [{"task_id": f"t{n}", "query": "q", "gold": gold} for n in range(count)]
    return write(tmp_path / "many.json", tasks)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def interrupt(child: subprocess.Popen[str], tmp_path: Path) -> None:
    """As a terminal does it, the whole foreground process group; until it is heard."""
    os.killpg(child.pid, signal.SIGINT)
    assert eventually(lambda: "interrupted: waiting for" in (tmp_path / "noise").read_text())


def test_ctrl_c_once_and_going_on(cli: Run, tmp_path: Path) -> None:
    data = many(tmp_path, 30, "echo hi")
    (tmp_path / "agent.py").write_text(SAYING)
    with start(tmp_path, data, "--agent", "agent.py:Saying") as child:
        # One episode is done, and at least one is held: the run cannot end before it hears.
        assert eventually(lambda: size(tmp_path / "run" / EPISODES))
        assert eventually((tmp_path / "held").exists)
        interrupt(child, tmp_path)
        (tmp_path / "go").touch()
        told, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    assert "episodes are missing" in told
    again = f"resume with: intercode resume {tmp_path / 'run'} --agent {tmp_path}/agent.py:Saying"
    again = f"{again} --data {data}\n"
    assert told.endswith(again)
    recorded = list(read_episodes(tmp_path / "run" / EPISODES))
    assert 0 < len(recorded) < 30 and all(episode.success for episode in recorded)
    rest = parsed(cli("resume", "run", "--json", "--trust"))
    assert rest["ran"] == 30 - len(recorded) and rest["statistics"]["successes"] == 30


def test_ctrl_c_twice(tmp_path: Path) -> None:
    marker = new_marker()
    task = {"query": "q", "gold": f"sleep {marker}; echo hi", "timeout": 5000}
    data = write(tmp_path / "many.json", [{"task_id": f"t{n}", **task} for n in range(4)])
    with start(tmp_path, data) as child:
        assert eventually(lambda: sleepers(marker))
        interrupt(child, tmp_path)
        os.killpg(child.pid, signal.SIGINT)
        child.communicate(timeout=PATIENCE)  # what is in flight takes an hour
    noise = (tmp_path / "noise").read_text()
    assert child.returncode == 130 and "Traceback" not in noise
    assert f"resume with: intercode resume {tmp_path / 'run'}" in noise
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
            assert eventually(lambda: size(log) > before or child.poll() is not None)  # noqa: B023
            time.sleep(chance.random() * 0.2)  # allow sleep: it is killed at a random moment
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
