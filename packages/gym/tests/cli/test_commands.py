"""`play`, `clean`, `replay`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ordinary import ordinary_user

from .conftest import Run, parsed

IN_A_NAMESPACE = ("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
KILLED_AND_CLEANED = """
import json, subprocess, sys, time
killed = (
    "import os; from intercode_sandbox import get_provider; sandbox = get_provider().start(); "
    "kept = sandbox.snapshot(); os.kill(os.getpid(), 9)"
)
subprocess.run([sys.executable, "-c", killed])

def clean(*options):
    command = [sys.executable, "-m", "intercode.cli", "clean", *options]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

told = [json.loads(clean("--json", *options)) for options in (["--dry-run"], [])]
# What a process is still on its way out of cannot go yet: not the first time.
while json.loads(clean("--json"))["removed"]:
    time.sleep(0.05)
assert clean() == "nothing was left\\n"
print(json.dumps(told))
"""


def test_play(cli: Run, data: Path) -> None:
    typed = ":help\necho \\\nhello\n\nsubmit\nskip\n:quit\n"
    told = cli("play", "bash", "--data", data, stdin=typed).stdout
    assert "say hello" in told and "Ctrl-D" in told
    assert "submitted: reward 1.000" in told
    assert "skipped: reward 0.000" in told
    assert told.rstrip().endswith("left")


def test_play_json(cli: Run, data: Path) -> None:
    typed = "echo hello\nsubmit\n"
    done = cli("play", "bash", "--data", data, "--json", stdin=typed)
    [episode] = parsed(done)
    assert (episode["agent"], episode["score"]["value"]) == ("human", 1.0)
    assert "say hello" in done.stderr


def test_play_shows_the_last_observation_of_a_full_episode(cli: Run, data: Path) -> None:
    done = cli("play", "bash", "--data", data, "--max-turns", 1, "--limit", 1, stdin="echo last\n")
    assert "last\ntruncated: reward" in done.stdout.replace("$ ", "")


def test_clean() -> None:
    """In a process namespace and with a cache of its own: what others have left is not ours."""
    with ordinary_user() as user:
        done = subprocess.run(
            [*user.prefix, *IN_A_NAMESPACE, sys.executable, "-c", KILLED_AND_CLEANED],
            env=user.env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        would, did = json.loads(done.stdout)
        assert would["dry_run"] and not did["dry_run"]
        assert would["removed"] == did["removed"]
        assert any("/snapshots/" in path for path in did["removed"])
        assert not list((user.home / "cache/snapshots").iterdir())


def recorded(*turns: tuple[str, str, float]) -> dict[str, object]:
    return {
        "environment": "bash",
        "dataset": "tasks.json",
        "task_id": 0,
        "query": "say hello",
        "turn_history": {
            "actions": [turn[0] for turn in turns],
            "observations": [turn[1] for turn in turns],
            "rewards": [turn[2] for turn in turns],
            "valid_action": [True for _ in turns],
        },
        "summary": {"max_reward": max(turn[2] for turn in turns), "max_reward_idx": 0},
    }
