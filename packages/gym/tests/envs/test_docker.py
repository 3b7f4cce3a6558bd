"""The same tasks on Docker: episodes are those of the native sandbox, word by word."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from intercode import datasets
from intercode.cli.main import main
from intercode.databases import get_engine
from intercode.envs.sql import SqlEnv
from intercode.interpreters.python_start import PRELOAD
from intercode.project import create
from intercode.task import Task
from intercode_sandbox import Provider, get_provider
from intercode_sandbox.docker.provider import DockerProvider
from private_engine import PrivateEngine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not for ordinary users: they start no engine"
)
EVERY = {"bash": 14, "python": 13, "ctf": 5, "sql": 4}
"""Of so many tasks one is played; all of them are on the native sandbox (test_builtin*.py)."""
if "INTERCODE_SOAK_EPISODES" in os.environ:
    EVERY = dict.fromkeys(EVERY, 1)
# What follows from the order in which two programs happen to write, or from when one is killed.
NOT_SAME_TWICE = {"archive-06", "checker"}


@pytest.fixture(scope="module")
def provider(engine: PrivateEngine) -> Iterator[DockerProvider]:
    with closing(DockerProvider(preload=PRELOAD)) as found:
        yield found


def episodes(env: str, tasks: list[Task], provider: str | Provider) -> list[Any]:
    """What each action showed, and what it scored: gold, and a mistake."""
    found: list[Any] = []
    with closing(create(env, data=datasets.load(env), sandbox=provider)) as made:
        for task in tasks:
            for gold, action in enumerate([*task.metadata.get("wrong", ())[:1], task.gold[0]]):
                flag = f" {task.gold[0]}" if env == "ctf" and gold else ""
                looks = task.metadata.get("solution", ()) if env == "ctf" else (action,)
                made.reset(options={"task_id": task.task_id})
                seen = [made.step(look)[0] for look in looks]
                found.append((task.task_id, seen, made.step(f"submit{flag}")[1]))
    return found


@pytest.mark.parametrize("env", ["bash", "python", "ctf"])
def test_episodes_are_the_same(env: str, provider: DockerProvider) -> None:
    tasks = [task for task in datasets.load(env) if task.task_id not in NOT_SAME_TWICE]
    tasks = tasks[:: EVERY[env]]
    assert len(tasks) >= 4
    there, here = episodes(env, tasks, provider), episodes(env, tasks, "native")
    assert there == here
    assert sum(score == 1.0 for *_, score in there) == len(tasks)


def test_databases_are_the_same(engine: PrivateEngine) -> None:
    seen = []
    for sandbox in ("docker", "native"):
        with (
            closing(get_engine("sqlite", sandbox=sandbox)) as library,
            closing(SqlEnv(engine=library)) as env,
        ):
            rows = []
            for task in env.dataset[:: EVERY["sql"]]:
                env.reset(options={"task_id": task.task_id})
                rows.append([env.step(task.gold[0])[0], env.step("submit")[1]])
            seen.append(rows)
    assert seen[0] == seen[1]
    assert len(seen[0]) >= 10
    assert [score for _, score in seen[0]] == [1.0] * len(seen[1])


def test_what_an_agent_finds_around_it(provider: DockerProvider) -> None:
    look = (
        "pwd; id; umask; env | sort; hostname; cat /etc/hosts /etc/passwd; ls -1 / | grep -v sys; "
        "ulimit -c -d -f -n; grep -E 'Cap|NoNew|Seccomp:' /proc/self/status; "
        "ip -o link 2>&1 | cut -d: -f2; cat /proc/net/dev | cut -d: -f1; tty; echo $PPID; nproc"
    )
    seen = []
    for one in (provider, get_provider("native")):
        with closing(one.start("host")) as sandbox:
            seen.append(sandbox.exec(["bash", "-c", look], merge_stderr=True).stdout.decode())
    assert seen[0] == seen[1]


def test_on_the_command_line(
    engine: PrivateEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    argv = ["run", "bash", "--sandbox", "docker", "--agent", "oracle", "--limit", "1", "--out", out]
    assert main(argv) == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "docker" in json.dumps(record)
    out = str(tmp_path / "sql")
    assert main(["run", "sql", "--sandbox", "docker", "--limit", "1", "--out", out]) == 0
    assert json.loads((tmp_path / "sql" / "run.json").read_text())["env"]["sandbox"] == "docker"
    for name in ("duckdb", "mysql"):
        assert main(["run", "sql", "--sandbox", "docker", "--engine", name]) == 2
        assert "--sandbox docker is for sqlite" in capsys.readouterr().err
