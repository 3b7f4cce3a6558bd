"""Our provider under NeMo Gym's own `Sandbox`, and `nemo_gym_server.py` behind its own server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.sandbox.api import AsyncSandbox, Sandbox
from nemo_gym.sandbox.providers.base import SandboxCreateError, SandboxSpec, SandboxStatus
from nemo_gym.sandbox.providers.registry import list_providers
from nemo_gym.server_utils import ServerClient
from nemo_gym_server import InterCode
from recorded import Played, played

import intercode
from intercode_sandbox import get_provider

RESPONSE = {
    "id": "r",
    "created_at": 0,
    "model": "scripted",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
VERIFY = {"responses_create_params": {"input": "x"}, "response": RESPONSE}


def test_a_sandbox(tmp_path: Path) -> None:
    """It is found by its entry point."""
    assert "intercode" in list_providers()
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho ran; echo made > made\n")
    (tmp_path / "run.sh").chmod(0o755)
    spec = SandboxSpec(
        workdir="/srv", env={"A": "1"}, files={"/srv/a": "hi\n"}, resources={"memory_mib": 256}
    )
    with Sandbox({"intercode": {}}) as sandbox:
        assert sandbox.start(spec).status() == SandboxStatus.RUNNING
        done = sandbox.exec("cat a; echo $A$B; pwd; echo no >&2; exit 3", env={"B": "2"})
        assert (done.stdout, done.stderr) == ("hi\n12\n/srv\n", "no\n")
        assert (done.return_code, done.error_type) == (3, None)
        sandbox.upload(tmp_path / "run.sh", "/srv/run.sh")
        assert sandbox.exec("./run.sh").stdout == "ran\n"
        sandbox.download("/srv/made", tmp_path / "made")
        assert (tmp_path / "made").read_text() == "made\n"
        late = sandbox.exec("echo begun; sleep 99", timeout_s=0.3)
        assert (late.stdout, late.return_code, late.error_type) == ("begun\n", 124, "timeout")
        assert sandbox.exec("true", cwd="/nowhere").return_code == 126
        assert sandbox.exec("true", user="nobody-of-this-name").return_code == 126
        assert sandbox.exec("id -u", user="root").stdout == "0\n"


def test_nothing_is_left() -> None:
    live: Any = get_provider()
    with Sandbox({"intercode": {"sandbox": "native"}}) as sandbox:
        before = len(live._live)
        sandbox.start(SandboxSpec())
        assert len(live._live) == before + 1
    assert len(live._live) == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (SandboxSpec(image="no such name"), "cannot understand"),
        (SandboxSpec(entrypoint=["x"]), "entry point"),
        (SandboxSpec(resources={"gpu": 1}), "GPU"),
    ],
)
async def test_what_cannot_be_had(spec: SandboxSpec, message: str) -> None:
    async with AsyncSandbox({"intercode": {}}) as sandbox:
        with pytest.raises(SandboxCreateError, match=message):
            await sandbox.start(spec)


async def test_a_lost_sandbox_is_an_error() -> None:
    async with AsyncSandbox({"intercode": {}}) as sandbox:
        await sandbox.start(SandboxSpec())
        sandbox._handle.raw.sandbox.close()
        with pytest.raises(intercode.SandboxError):
            await sandbox.exec("true")


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A client of a server; its cookie is its session."""
    config = BaseResourcesServerConfig(host="127.0.0.1", port=0, entrypoint="x", name="intercode")
    server = InterCode(config=config, server_client=MagicMock(spec=ServerClient))
    with TestClient(server.setup_webserver(), raise_server_exceptions=False) as client:
        yield client
        assert server._envs == {}


def rewarded(client: TestClient, one: Played) -> float:
    assert client.post("/seed_session", json={"task_id": one.task_id}).status_code == 200
    seen = [client.post("/bash", json={"command": action}).json() for action in one.actions]
    assert [answer["output"] for answer in seen] == list(one.observations)
    verified = client.post("/verify", json=VERIFY).json()
    assert verified["response"]["id"] == "r"
    return float(verified["reward"])


def test_the_same_rewards(client: TestClient) -> None:
    recorded = played("bash")
    assert [rewarded(client, one) for one in recorded] == [one.reward for one in recorded]


def test_sessions(client: TestClient) -> None:
    """Each has an environment of its own; none has another's; the last turn ends it."""
    one, other = (task.task_id for task in intercode.load_dataset("bash")[:2])
    assert client.post("/verify", json=VERIFY).status_code == 409
    client.post("/seed_session", json={"task_id": one})
    stranger = TestClient(client.app)
    assert stranger.post("/bash", json={"command": "ls"}).status_code == 409
    client.post("/seed_session", json={"task_id": other})
    told = [client.post("/bash", json={"command": "pwd"}).json()["output"] for _ in range(11)]
    assert told[-1] == "the episode has ended" != told[-2]
    assert client.post("/verify", json=VERIFY).json()["reward"] < 1.0
