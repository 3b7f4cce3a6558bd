"""`intercode serve` against OpenEnv's own client, in both its forms, and its validator."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from openenv.core import GenericEnvClient
from recorded import played

import intercode
from waiting import PATIENCE

TASKS = intercode.load_dataset("bash")


def serving(*words: str) -> Iterator[str]:
    """The address of a server."""
    command = [sys.executable, "-m", "intercode.cli.main", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split(" at ")[1].strip()
        server.terminate()
        assert server.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from serving("bash", "sql", "--max-sessions", "2")


def asked(url: str, **data: object) -> Any:
    """What a route answers."""
    body = json.dumps(data).encode() if data else None
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)


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


async def test_awaited(url: str) -> None:
    async with GenericEnvClient(base_url=f"{url}/sql") as client:
        await client.reset(index=0)
        seen = await client.step({"action": "SELECT 6 * 7 AS n"})
        assert "42" in seen.observation["text"] and seen.reward is None
        other = await client.new_session()
        assert (await other.reset(index=1)).observation["info"]["task_id"]
        last = await client.step({"action": "submit"})
        assert last.done and last.reward is not None


@pytest.mark.parametrize("name", ["bash", "sql"])
def test_all_tasks_earn_what_they_earn_in_process(url: str, name: str) -> None:
    with GenericEnvClient(base_url=f"{url}/{name}").sync() as client:
        for wanted in played(name):
            client.reset(task_id=wanted.task_id)
            taken = [client.step({"action": action}) for action in wanted.actions]
            seen = tuple(one.observation["text"] for one in taken)
            last = client.step({"action": "submit"})
            assert (seen, last.reward) == (wanted.observations, wanted.reward), wanted.task_id


def test_mistakes_and_failures_are_told(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as client:
        with pytest.raises(RuntimeError, match=r"call reset\(\) first.*EXECUTION_ERROR"):
            client.step({"action": "ls"})
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.reset(image="debian")
        assert client.reset(index=0).observation["text"]


def test_sessions_are_counted(url: str) -> None:
    with GenericEnvClient(base_url=url).sync() as one, GenericEnvClient(base_url=url).sync() as two:
        assert one.reset().observation["text"] and two.reset().observation["text"]
        with (
            pytest.raises(RuntimeError, match="CAPACITY_REACHED"),
            GenericEnvClient(base_url=url).sync() as third,
        ):
            third.reset()
    with GenericEnvClient(base_url=url).sync() as again:
        assert again.reset().observation["text"]


def test_tasks(url: str) -> None:
    assert asked(f"{url}/list_environments") == ["bash", "sql"]
    assert asked(f"{url}/bash/num_tasks", split="all") == {"num_tasks": len(TASKS)}
    ids = [task.task_id for task in TASKS[1:3]]
    found = asked(f"{url}/bash/task_range", split="all", start=1, stop=3)["tasks"]
    assert [task["id"] for task in found] == ids
    assert asked(f"{url}/bash/task", split="all", index=1)["task"]["id"] == ids[0]
    assert len(asked(f"{url}/bash/tasks", split="all")["tasks"]) == len(TASKS)


def test_it_is_valid(url: str) -> None:
    done = subprocess.run(
        ["openenv", "validate", "--url", url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "Verdict: PASS" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("PASS  ") == 6 and "FAIL" not in done.stdout


def test_a_token() -> None:
    for url in serving("bash", "--token", "of-the-tests"):
        headers = {"Authorization": "Bearer of-the-tests"}
        with GenericEnvClient(base_url=url, headers=headers).sync() as client:
            assert client.reset().observation["text"]
        with (
            pytest.raises(ConnectionError, match="401"),
            GenericEnvClient(base_url=url).sync() as client,
        ):
            client.reset()
