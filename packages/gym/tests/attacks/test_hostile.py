"""A run of hostile agents ends by itself, with a summary and a score of each, and leaves nothing.

In each environment, natively as root and as an ordinary user, and in containers. Each of the three
meets a third of the attacks, or all of them where `INTERCODE_HOSTILE_ALL` is set.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from envs import swe_tasks
from intercode.records import EPISODES, read_episodes
from ordinary import UID, OrdinaryUser, ordinary_user
from private_engine import PrivateEngine
from soak.killed import adopting, cgroups_of, children
from waiting import eventually

from . import hostile

WHO = ["root", "ordinary", "docker"] if os.geteuid() == 0 else ["ordinary"]
SMALL = (
    *("--memory", "128M", "--disk", "32M", "--processes", "64", "--timeout", "3"),
    *("--workers", "3", "--max-turns", "20"),
)


@contextmanager
def person(who: str) -> Iterator[OrdinaryUser]:
    """Somebody with a home, a cache and a folder of temporary files of their own."""
    if who == "ordinary":
        with ordinary_user() as user:
            yield user
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        env = {**os.environ, "HOME": name, "INTERCODE_CACHE": f"{name}/cache"}
        yield OrdinaryUser(Path(name), (), env)


def attacks(env: str, who: str) -> list[dict[str, object]]:
    """The tasks of the attacks that somebody's run meets."""
    rows = hostile.tasks(env)
    return rows if "INTERCODE_HOSTILE_ALL" in os.environ else rows[WHO.index(who) :: len(WHO)]


def write_tasks(env: str, rows: list[dict[str, object]], folder: Path) -> Path:
    """Write a task for each attack, and what the tasks name."""
    fields: dict[str, Any] = {}
    if env == "sql":
        with closing(sqlite3.connect(folder / "shop.sqlite")) as database:
            database.execute("CREATE TABLE fruit (name TEXT, n INTEGER)")
            database.executemany("INSERT INTO fruit VALUES (?, ?)", [("apple", 1), ("fig", 2)])
            database.commit()
    if env == "swe":
        swe_tasks.make_repository(folder / "calc")
        fields = swe_tasks.task("any", "unittest", repository="calc").to_dict()
    file = folder / "tasks.json"
    file.write_text(json.dumps([{**fields, **row} for row in rows]))
    return file


def containers(engine: PrivateEngine) -> list[object]:
    with closing(docker.APIClient(base_url=engine.url)) as api:
        found: list[object] = api.containers(all=True)
        return found


def mounts_below(folder: Path) -> list[str]:
    return [
        line
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if str(folder) in line
    ]


@pytest.mark.timeout(1800)  # a minute where the machine is not busy
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("env", [*hostile.ATTACKS, "sql --engine duckdb"])
def test_a_run_of_hostile_agents(request: pytest.FixtureRequest, env: str, who: str) -> None:
    env, *options = env.split()
    if options and who == "docker":
        pytest.skip("not for docker: no container has this engine")
    engine = request.getfixturevalue("engine") if who == "docker" else None
    with person(who) as user:
        places = {name: user.home / name for name in ("data", "tmp", "out")}
        for folder in places.values():
            folder.mkdir()
        rows = attacks(env, who)
        data = write_tasks(env, rows, places["data"])
        for path in (*user.home.rglob("*"),) if who == "ordinary" and user.prefix else ():
            os.chown(path, UID, UID)
        command = (
            *(*user.prefix, sys.executable, "-m", "intercode.cli", "run", env, *options),
            *("--agent", f"{hostile.__file__}:Hostile", "--data", data, *SMALL),
            *("--sandbox", "docker" if engine else "native", "--out", places["out"] / "run"),
        )
        with adopting():
            before = children()
            with subprocess.Popen(
                [*map(str, command)],
                env={**user.env, "TMPDIR": str(places["tmp"])},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as run:
                said = run.communicate()[0]
            assert eventually(lambda: not children() - before)
        count = len(rows)
        assert run.returncode in (0, 1) and "Traceback" not in said, said
        assert f"{count}/{count} " in said, said
        episodes = list(read_episodes(places["out"] / "run" / EPISODES))
        assert not [(e.task_id, e.error) for e in episodes if e.status == "error"]
        assert not [(e.task_id, e.reward) for e in episodes if e.reward == 1.0]
        assert not cgroups_of(run.pid)
        assert not [*places["tmp"].iterdir()]
        assert not mounts_below(user.home)
        assert engine is None or eventually(lambda: not containers(engine))
        for kind in "snapshots", "endings":
            assert not [*(user.home / "cache" / kind).glob("*")]
        if os.geteuid() == 0:
            shutil.rmtree(places["data"])
