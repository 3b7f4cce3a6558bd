"""The server that starts commands for tests: a command is like one that Python has started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cli.conftest import warm as warm
from waiting import PATIENCE, eventually
from warm import Warm

TELL = """
import atexit, json, os, sys
atexit.register(print, "at exit", file=sys.stderr)
print(json.dumps([os.getcwd(), sys.argv, sys.path[0], __name__, os.environ.get("FISH"), input()]))
print("intercode.cli.run" in sys.modules, os.getppid())
sys.exit(7)
"""


def test_a_command_has_what_its_client_has(warm: Warm, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "tell.py").write_text(TELL)
    done = warm.run(
        ["python", "../tell.py", "-x", "a b"],
        cwd=folder,
        env={"FISH": "pike"},
        input="typed\n",
        capture_output=True,
    )
    first, second = done.stdout.splitlines()
    arguments = ["../tell.py", "-x", "a b"]
    assert json.loads(first) == [str(folder), arguments, str(tmp_path), "__main__", "pike", "typed"]
    assert second.startswith("True "), "it was started by the server"
    assert done.returncode == 7 and done.stderr == "at exit\n"
    real = warm.run(["python", "-c", "import sys; print(sys.modules.keys())"], capture_output=True)
    assert "intercode" not in real.stdout


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", 137, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
    ],
)
def test_how_a_command_ends(warm: Warm, tmp_path: Path, script: str, code: int, told: str) -> None:
    (tmp_path / "end.py").write_text(script)
    done = warm.run(["bash", "-c", "python end.py | cat; exit $PIPESTATUS"], cwd=tmp_path,
                    capture_output=True)  # fmt: skip
    assert done.returncode == code and told in done.stderr


def test_a_command_ends_with_its_client(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(
        "import os, signal\n"
        "open('made', 'w').write(str(os.getpid()))\n"
        "os.rename('made', 'pid')\n"
        "signal.pause()\n"
    )
    script = "python wait.py & until test -e pid; do sleep 0.1; done; kill $!"
    done = warm.run(["bash", "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    pid = (tmp_path / "pid").read_text()
    assert eventually(lambda: not Path("/proc", pid).exists())
