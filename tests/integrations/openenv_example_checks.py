"""`openenv_server.py` against OpenEnv's own client and validator."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openenv.core import GenericEnvClient

import intercode
from waiting import PATIENCE, eventually

SERVER = Path(__file__).parents[2] / "examples/integrations/openenv_server.py"
TASKS = intercode.load_dataset("bash")


def asked(url: str, **data: object) -> Any:
    """What a route answers."""
    body = json.dumps(data).encode() if data else None
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)


def healthy(url: str) -> bool:
    try:
        return bool(asked(f"{url}/health"))
    except OSError:
        return False


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(SERVER), "bash", str(port)]) as server:
        address = f"http://127.0.0.1:{port}"
        assert eventually(lambda: server.poll() is not None or healthy(address))
        yield address
        server.terminate()


def test_an_episode(url: str) -> None:
    task = TASKS[1]
    with GenericEnvClient(base_url=url).sync() as client:
        first = client.reset(index=1, episode_id="mine")
        assert first.observation["text"] == task.query and not first.done
        strange = client.step({"action": "printf '\\377'"}).observation["text"]
        assert intercode.exact(strange) == "\udcff"
        client.step({"action": task.gold[0]})
        last = client.step({"action": "submit"})
        assert (last.reward, last.done, last.observation["truncated"]) == (1.0, True, False)
        state = client.state()
        assert (state["episode_id"], state["step_count"]) == ("mine", 3)
        assert state["task_id"] == task.task_id
        assert client.reset(task_id=TASKS[0].task_id).observation["text"] == TASKS[0].query


def test_sessions_are_counted(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as one, GenericEnvClient(base_url=url).sync() as two:
        assert one.reset().observation["text"] and two.reset().observation["text"]
        with (
            pytest.raises(Exception, match=r"(?i)capacity|reached|1013|closed"),
            GenericEnvClient(base_url=url).sync() as third,
        ):
            third.reset()


def test_tasks(url: str) -> None:
    assert asked(f"{url}/ic/num_tasks", split="all") == {"num_tasks": len(TASKS)}
    ids = [task.task_id for task in TASKS[1:3]]
    found = asked(f"{url}/ic/task_range", split="all", start=1, stop=3)["tasks"]
    assert [task["id"] for task in found] == ids
    assert asked(f"{url}/ic/task", split="all", index=1)["task"]["id"] == ids[0]


def test_it_is_valid(url: str) -> None:
    done = subprocess.run(
        ["openenv", "validate", "--url", url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Verdict: PASS" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("PASS  ") == 6 and "FAIL" not in done.stdout
