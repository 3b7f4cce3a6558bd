"""Runs on a Ray cluster, whose nodes and whose driver are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import Nodes, lines, nodes, recorded, wait_for_lines

from intercode.evaluate import evaluate
from intercode.spec import RunSpec

KILLS = int(os.environ.get("INTERCODE_SOAK_NODES", "3"))
TOTAL = 500 if KILLS <= 3 else 200 * KILLS
TASKS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(3) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = [
        {"task_id": f"t{n}", "query": f"Print {n}.", "gold": f"echo {n} | tee file"}
        for n in range(TASKS)
    ]
    file = tmp_path_factory.mktemp("data") / "tasks.json"
    file.write_text(json.dumps(tasks))
    return file


@pytest.fixture(scope="module")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run in this process."""
    out = tmp_path_factory.mktemp("runs") / "local"
    evaluate(spec(data, out, workers=2))
    return out


def spec(data: Path, out: Path, **more: object) -> RunSpec:
    asked = {"env": "bash", "data": data, "agent": "oracle", "epochs": TOTAL // TASKS, "out": out}
    return RunSpec.of({**asked, **more})


def test_nodes_are_killed(cluster: Nodes, data: Path, local: Path, tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(20)
    moments = sorted(chance.sample(range(1, TOTAL - 50), KILLS))
    process = cluster.intercode(
        *("run", "bash", "--data", data, "--agent", "oracle", "--epochs", TOTAL // TASKS),
        *("--on", "ray", "--workers", 3, "--out", run),
        stderr=subprocess.PIPE,
    )
    for number, moment in enumerate(moments):
        wait_for_lines(run, moment, process)
        cluster.replace(number % 3)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    assert b"its episodes begin again" in said, said.decode()
    assert recorded(run) == recorded(local)


def test_the_driver_is_killed(cluster: Nodes, data: Path, local: Path, tmp_path: Path) -> None:
    run, chance = tmp_path / "run", random.Random(21)
    command = [*("run", "bash", "--data", data, "--agent", "oracle", "--epochs", TOTAL // TASKS)]
    command += ["--on", "ray", "--workers", 3, "--out", run, "--quiet"]
    for moment in sorted(chance.sample(range(1, TOTAL - 50), KILLS)):
        process = cluster.intercode(*command)
        wait_for_lines(run, moment, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        command = ["resume", run, "--quiet"]
    assert cluster.intercode(*command).wait() == 0
    assert recorded(run) == recorded(local)
    sessions = json.loads((run / "run.json").read_text())["sessions"]
    assert [one["settings"]["on"] for one in sessions] == ["ray"] * (KILLS + 1)
    assert lines(run) == TOTAL
