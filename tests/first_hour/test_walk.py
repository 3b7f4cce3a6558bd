"""The first hour, from the wheel: a new user types what the README and the messages say."""

from __future__ import annotations

import json

import pytest

from first_hour.conftest import Someone

VERIFIED = [
    {"query": "create the file /tmp/done", "verification": "test -e /tmp/done"},
    {"query": "list /etc", "verification": "test -e /tmp/list"},
]
"""The first example's form: tasks without gold."""


def test_a_run_and_what_it_shows(someone: Someone) -> None:
    assert someone.run("intercode", "--version").stdout.startswith("intercode 2.")
    assert "Sandboxes can be used" in someone.run("intercode", "doctor").stdout
    said = someone.run("intercode", "run", "bash", "--limit", "3", "--out", "runs/a")
    assert "100.0 %" in said.stdout and "No agent was named" in said.stdout
    for command in ("show", "report", "rescore"):
        assert "1.000" in someone.run("intercode", command, "runs/a").stdout
    someone.run("intercode", "report", "runs/a", "--html", "page.html")
    assert "<html" in (someone.home / "page.html").read_text()
    someone.run("intercode", "clean")


def test_tasks_without_gold_or_a_model(someone: Someone) -> None:
    someone.file("data/bash/sample.json", json.dumps(VERIFIED))
    run = ("python", "-m", "intercode.run", "--env", "bash", "--data", "data/bash/sample.json")
    said = someone.run(*run, code=2)
    assert "success" not in said.stdout + said.stderr
    assert "--agent try-again --model" in said.stderr and "intercode play bash" in said.stderr
    played = someone.run(
        *("intercode", "play", "bash", "--data", "data/bash/sample.json", "--limit", "1"),
        stdin="touch /tmp/done\nsubmit\n",
    )
    assert "1.000" in played.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rnu bash", "'run'"),
        ("run bahs", "'bash'"),
        ("run bash --agent orcale", "'oracle'"),
        ("run bash --agnet oracle", "'--agent'"),
        ("run bash --memory 10", "10G"),
        ("run bash --data tasks.jsonl", "'timeout'"),
        ("run mine", "'max_turns'"),
    ],
)
def test_what_was_meant(root: Someone, typed: str, meant: str) -> None:
    root.file("tasks.jsonl", '{"query": "x", "gold": "echo 1", "timout": 1}\n')
    root.file("mine/intercode.toml", 'env = "bash"\nmax_turn = 3\n')
    root.file("mine/tasks.jsonl", '{"query": "x", "gold": "echo 1"}\n')
    said = root.run("intercode", *typed.split(), code=2)
    assert "did you mean" in said.stderr and meant in said.stderr and not said.stdout
    assert len(said.stderr.splitlines()) <= 2


@pytest.mark.parametrize("env", ["bash", "sql"])
def test_a_benchmark_of_ones_own(root: Someone, env: str) -> None:
    root.run("intercode", "new", "mine", "--env", env)
    root.run("intercode", "validate", "mine")
    assert "100.0 %" in root.run("intercode", "run", "mine", "--quiet", "--out", "out").stdout


SCRIPT = """\
import multiprocessing
import gymnasium
import intercode

env = gymnasium.make("intercode-bash-v0", timeout=30, memory="512M", max_episode_steps=1)
env.reset(seed=0)
*_, truncated, info = env.step("true")
print("limited", truncated, info["success"])
env.close()

env = intercode.make("bash", limits={"timeout": 30})
env.reset(seed=0)

def child(pipe):
    try:
        env.step("echo child")
    except intercode.EnvironmentStateError:
        pipe.send("refused")

ours, theirs = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
process.start()
print("child", ours.recv(), repr(env.step("echo parent")[0]))
process.join()
env.close()

envs = intercode.make_vec("bash", num_envs=2, autoreset_mode="SameStep")
_, infos = envs.reset(seed=0)
met = list(infos["task_id"])
while len(met) < 57:
    *_, infos = envs.step(("submit", "submit"))
    met += list(infos["task_id"])
print("epoch", len(set(met[:57])))
try:
    envs.step("ls")
except ValueError as error:
    print("refused:", error)
envs.close()
"""


def test_the_python_of_a_trainer(someone: Someone) -> None:
    someone.file("train.py", SCRIPT)
    said = someone.run("python", "train.py").stdout.splitlines()
    assert said[:3] == ["limited True False", "child refused 'parent\\n'", "epoch 57"]
    assert said[3].startswith("refused: a single text")
