"""Puzzles on the command line: the oracle, and tasks that need the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .conftest import Run, write

TASKS: list[dict[str, Any]] = [
    {"task_id": "near", "query": "q", "gold": "flag{near}", "files": {"f": "flag{near}"}},
    {"task_id": "far", "query": "q", "gold": "flag{far}", "tags": ["network"]},
]
LEFT_OUT = "1 of 2 tasks needs the network (--network tries them)"


def test_tasks_that_need_the_network(tmp_path: Path, cli: Run) -> None:
    data = str(write(tmp_path / "puzzles.json", TASKS))
    run = ("run", "ctf", "--data", data, "--json", "--quiet", "--out")
    done = cli(*run, str(tmp_path / "offline"))
    assert LEFT_OUT in done.stderr
    assert json.loads(done.stdout)["statistics"]["successes"] == 1
    done = cli(*run, str(tmp_path / "online"), "--network")
    assert LEFT_OUT not in done.stderr
    assert json.loads(done.stdout)["statistics"]["successes"] == 2
    offline, online = ((tmp_path / name / "run.json").read_text() for name in ("offline", "online"))
    assert "network" not in offline
    assert '"network": true' in online  # another run than the first one


def test_a_task_that_was_left_out_cannot_be_chosen(tmp_path: Path, cli: Run) -> None:
    data = str(write(tmp_path / "puzzles.json", TASKS))
    done = cli("run", "ctf", "--data", data, "--task", "far", code=2)
    assert LEFT_OUT in done.stderr


def test_attempts(tmp_path: Path, cli: Run) -> None:
    data = str(write(tmp_path / "puzzles.json", TASKS[:1]))
    tries = str(write(tmp_path / "tries.json", {"near": ["submit x"] * 4 + ["submit flag{near}"]}))
    run = ("run", "ctf", "--data", data, "--agent", "replay", "--recording", tries)
    for options, successes in ((), 0), (("--attempts", "5"), 1), (("--attempts", "0"), 1):
        done = cli(
            *run,
            "--json",
            "--quiet",
            "--out",
            str(tmp_path / f"run{len(options)}{options[-1:]}"),
            *options,
        )
        assert json.loads(done.stdout)["statistics"]["successes"] == successes
    done = cli("run", "bash", "--attempts", "1", code=2)
    assert "environment 'bash', protocol 'default', takes no --attempts" in done.stderr


def test_the_seed_makes_the_bundled_puzzles(tmp_path: Path, cli: Run) -> None:
    run = ("run", "ctf", "--quiet", "--json", "--task", "rsa", "--task", "history", "--out", "r")
    digests = []
    for seed, ran in (("4", 2), ("4", 0)):  # the second time there is nothing left to do
        done = json.loads(cli(*run, "--seed", seed).stdout)
        assert (done["ran"], done["statistics"]["successes"]) == (ran, 2)
        digests.append(done["dataset"]["digest"])
    assert digests[0] == digests[1]
    refused = cli(*run, "--seed", "5", code=None)
    assert refused.returncode and "holds another run: dataset.digest was" in refused.stderr
    done = cli("play", "ctf", "--seed", "4", "--task", "rsa", "--json", stdin="submit\n")
    assert json.loads(done.stdout)[0]["task_id"] == "rsa"


def test_a_comparison_says_why_the_flags_differ(tmp_path: Path, cli: Run) -> None:
    run = ("run", "ctf", "--quiet", "--task", "history", "--out")
    for name, words in (("a", ()), ("b", ()), ("c", ("--secret", "x")), ("d", ("--secret", "x"))):
        cli(*run, name, *words)
    told = cli("report", "a", "b").stderr
    assert "dataset.digest" in told
    assert "each run draws its own flags, unless --secret is the same" in told
    assert "dataset.digest" not in cli("report", "c", "d").stderr
