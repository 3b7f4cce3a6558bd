"""Runs on a Ray cluster, whose nodes and whose driver are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from ray_cluster import KEY, Nodes, held, lines, recorded, wait_for_lines

from intercode.evaluate import evaluate
from intercode.models.scripted import Line
from intercode.spec import RunSpec
from intercode_integrations.testing.server import ScriptedServer
from sandbox import rootfs
from sources import ROOT

pytest_plugins = ["ray_cluster"]
KILLS = int(os.environ.get("INTERCODE_SOAK_NODES", "3"))
TOTAL = 500 if KILLS <= 3 else 200 * KILLS
TASKS = 20
FREE = ROOT / "benchmarks" / "free"
TASK_IDS = [f"t{n}" for n in range(TASKS)]
WAITING = """
import time
from pathlib import Path

class Waiting:
    def act(self, observation, history):
        while not Path({go!r}).exists():
            time.sleep(0.05)
        return "submit"

def make(task):
    return Waiting()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tasks = [
        {"task_id": name, "query": f"Print {name}.", "gold": f"echo {name} | tee file"}
        for name in TASK_IDS
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
    return RunSpec.from_layers({**asked, **more})


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
        command = ["resume", run, "--trust", "--quiet"]
    assert cluster.intercode(*command).wait() == 0
    assert recorded(run) == recorded(local)
    sessions = json.loads((run / "run.json").read_text())["sessions"]
    assert [one["settings"]["on"] for one in sessions] == ["ray"] * (KILLS + 1)
    assert lines(run) == TOTAL


def few(data: Path, run: Path, **more: object) -> list[object]:
    """A run of one epoch on the cluster."""
    options = {"agent": "oracle", "on": "ray", "workers": 4, "out": run, "data": data, **more}
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return ["run", "bash", *(word for flag in flags for word in flag)]


def test_nodes_that_differ(cluster: Nodes, data: Path, tmp_path: Path) -> None:
    """One permits no sandboxes, and is left out; one has a cache of its own, and is shipped to."""
    image = f"scratch+{rootfs.write(tmp_path / 'root.tar', f'{rootfs.PROGRAMS} bash tee')}"
    run, cache, go = tmp_path / "run", tmp_path / "cache", tmp_path / "go"
    agent = tmp_path / "waiting_agent.py"
    agent.write_text(WAITING.format(go=str(go)))
    joined = cluster.join(env_vars={"INTERCODE_CACHE": str(cache)})
    heard: list[str] = []
    try:
        with cluster.forbidding():
            command = few(data, run, image=image, agent=f"{agent}:make", workers=5)
            process = cluster.intercode(*command, stderr=subprocess.PIPE)
            assert process.stderr is not None
            for line in process.stderr:
                heard.append(line.decode())
                told = [" takes part" in one or "is left out: " in one for one in heard]
                if sum(told) == 5:  # until then, every episode waits
                    go.touch()
    finally:
        cluster.kill(joined)
    assert process.wait() == 0, heard
    assert sum("takes part" in line for line in heard) == 4, heard
    (refused,) = [line for line in heard if "is left out" in line]
    assert "namespace" in refused
    (record,) = cache.glob("images/*/image.json")
    made = json.loads(record.read_text())
    assert "imported" in made["built"]
    facts = json.loads((run / "run.json").read_text())
    assert facts["env"]["images"] == {image: made["digest"]}


def test_a_model_is_asked_from_the_nodes(cluster: Nodes, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ScriptedServer(lambda _: Line("```bash\nsubmit\n```"), key=KEY) as server:
        asked = {"agent": "try-again", "model": "openai/scripted", "base_url": server.url}
        more = {**asked, "max_tokens": 1500, "reply_tokens": 50, "max_connections": 2}
        environment = {**cluster.environment, "OPENAI_API_KEY": "sk-the-drivers-own-012345678"}
        process = subprocess.Popen(cluster.command(*few(data, run, **more)), env=environment)
        assert process.wait() == 1  # the budget is too small for all
        took = sum(exchange.usage.total for exchange in server.exchanges if exchange.usage)
        some = lines(run)
        assert 0 < took <= 1500 and 0 < some < TASKS
        command = cluster.command(
            "resume", run, "--trust", "--base-url", server.url, "--max-tokens", 10**6
        )
        assert subprocess.run(command, env=environment).returncode == 0
    ended = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert sorted(one["task_id"] for one in ended if not one["error"]) == sorted(TASK_IDS)
    assert KEY not in "".join(file.read_text() for file in run.iterdir())
    logs = Path(cluster.cluster.head_node.get_session_dir_path()).rglob("*")
    assert not [file for file in logs if file.is_file() and KEY.encode() in file.read_bytes()]


def test_an_interrupt_drains(cluster: Nodes, data: Path, local: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = cluster.intercode(*few(data, run, epochs=10), stderr=subprocess.PIPE)
    wait_for_lines(run, 20, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130 and b"in flight" in said, said.decode()
    some = recorded(run)
    assert 20 <= len(some) < 200
    assert some.items() <= recorded(local).items()


@pytest.mark.skipif("INTERCODE_SOAK_NODES" not in os.environ, reason="make soak")
def test_memory_stays_flat(cluster: Nodes, tmp_path: Path) -> None:
    """That of the driver and of the stations, over episodes that cost nothing."""
    run, total = tmp_path / "run", 50_000
    command = ["run", FREE, "--agent", "oracle", "--epochs", total // TASKS]
    process = cluster.intercode(*command, "--on", "ray", "--workers", 3, "--out", run, "--quiet")
    wait_for_lines(run, total // 4, process)
    early = held(process.pid)
    wait_for_lines(run, total - total // 20, process)
    late = held(process.pid)
    assert process.wait() == 0 and lines(run) == total
    growth = {name: late[name] - early[name] for name in early}
    print("MiB, and what came to them:", late, growth)
    assert set(late) == set(early) and len(growth) == 4
    assert max(growth.values()) < 30, growth
