"""Tasks exported to Harbor, and Harbor's runner with our back end and our verifier."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
from harbor.models.task.task import Task
from harbor.models.trial.paths import TrialPaths
from recorded import played

from intercode.errors import SandboxTimeoutError
from intercode_integrations.harbor import InterCodeEnvironment
from intercode_integrations.harbor.writer import ANSWER
from sandbox import rootfs
from sandbox.layouts import layout
from sandbox.local_registry import push, serving
from waiting import eventually

BACK_END = "intercode_integrations.harbor:InterCodeEnvironment"
VERIFIER = "intercode_integrations.harbor:InterCodeVerifier"
TASKS = {"bash": 57, "sql": 73, "python": 49, "ctf": 19, "swe": 6}
"""How many tasks are exported: three of CTF have a program beside the agent."""
PROGRAMS = "bash tar gzip sed tr cut diff stat sha256sum head tee readlink dirname true"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All bundled tasks, exported by the command."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, count in TASKS.items():
        command = ["intercode", "datasets", "export", name, "--to", "harbor", "--json"]
        done = subprocess.run(
            [*command, "--out", str(folder / name)], capture_output=True, text=True, check=False
        )
        told = json.loads(done.stdout)
        assert done.returncode == (1 if told["left_out"] else 0), done.stderr
        assert len(told["exported"]) == count
        assert sorted(told["left_out"]) == (["hosts", "inbox", "notes"] if name == "ctf" else [])
    return folder


def harbor(tasks: Path, agent: str, out: Path, *options: str) -> list[dict[str, Any]]:
    """Run Harbor's command; return what it says of each trial."""
    given = ("-p", str(tasks), "-a", agent, "-o", str(out), "-e", BACK_END, "-n", "2")
    done = subprocess.run(
        ["harbor", "run", *given, "--quiet", "-y", *options],
        env={**os.environ, "HARBOR_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(path.read_text()) for path in out.glob("*/*/result.json")]
    assert len(results) == len(list(tasks.glob("*/task.toml"))), done.stdout + done.stderr
    assert not [found for result in results if (found := result["exception_info"])]
    return results


def rewards(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return the rewards by task."""
    return {
        result["task_name"].rpartition("/")[2]: result["verifier_result"]["rewards"]["reward"]
        for result in results
    }


def test_harbor_reads_them(folder: Path) -> None:
    tasks = [Task(path.parent) for path in folder.glob("*/*/task.toml")]
    assert len(tasks) == sum(TASKS.values())
    for task in tasks:
        assert task.name == f"intercode/{task.task_dir.name}"
        assert task.config.environment.network_mode.value == "no-network"


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_their_own_checks(folder: Path, tmp_path: Path, agent: str, reward: float) -> None:
    together = tmp_path / "all"
    together.mkdir()
    for task in folder.glob("*/*"):
        (together / task.name).symlink_to(task)
    found = rewards(harbor(together, agent, tmp_path / "out"))
    assert len(found) == sum(TASKS.values())
    assert {task: value for task, value in found.items() if value != reward} == {}


@pytest.mark.parametrize("name", ["bash", "sql"])
def test_our_verifier_gives_the_rewards_of_episodes_in_process(
    folder: Path, tmp_path: Path, name: str
) -> None:
    options = ("--ak", f"env={name}", "--ek", f"tasks={name}", "--verifier", VERIFIER)
    results = harbor(folder / name, "harbor_recorded:Recorded", tmp_path, *options)
    assert rewards(results) == {one.task_id: one.reward for one in played(name)}


def test_our_verifier_needs_our_tasks(folder: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    (one / "archive-01").symlink_to(folder / "bash/archive-01")
    with pytest.raises(AssertionError, match="name the exported tasks"):
        harbor(one, "oracle", tmp_path / "out", "--verifier", VERIFIER)


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A function that starts our back end with a Dockerfile, as a context."""

    @asynccontextmanager
    async def started(
        dockerfile: str | None = "FROM host\nWORKDIR /srv\n",
        policy: dict[str, Any] | None = None,
        tasks: str = "",
        **settings: Any,
    ) -> AsyncIterator[InterCodeEnvironment]:
        folder = tmp_path / "task/environment"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "given").write_text("pears\n")
        if dockerfile is not None:
            (folder / "Dockerfile").write_text(dockerfile)
        paths = TrialPaths(tmp_path / "trial")
        paths.mkdir()
        box = InterCodeEnvironment(
            environment_dir=folder,
            environment_name="test",
            session_id="test__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(**settings),
            logger=logging.getLogger("test"),
            network_policy=NetworkPolicy(**(policy or {"network_mode": "no-network"})),
            tasks=tasks,
        )
        await box.start(force_build=False)
        try:
            yield box
        finally:
            await box.stop(delete=True)

    return started


async def said(box: BaseEnvironment, command: str, **how: Any) -> str:
    """Run a command that succeeds, and return what it prints."""
    done = await box.exec(command, **how)
    assert done.return_code == 0, done
    return str(done.stdout).strip()


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a small image in a registry of this machine's."""
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path / "cache"))
    programs = f"{rootfs.PROGRAMS} {PROGRAMS}"
    archive = rootfs.write(tmp_path / "rootfs.tar", programs).read_bytes()
    settings = {"Env": ["PATH=/bin", "A=1"], "WorkingDir": "/tmp"}
    source = layout(tmp_path / "image", [archive], settings, pack=bytes)
    with serving(tmp_path) as registry:
        push(source, f"{registry}/tests/system:1")
        yield f"{registry}/tests/system:1"


async def test_an_image_of_a_registry(make: Make, system: str) -> None:
    async with make(None, docker_image=system) as box:
        assert await said(box, "echo $A; pwd; cat given") == "1\n/tmp\npears"


def test_tasks_on_an_image_of_a_registry(tmp_path: Path, system: str) -> None:
    task = {"task_id": "one", "query": "Write b to /srv/a/b.", "gold": "echo b > /srv/a/b"}
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{**task, "setup": "mkdir -p /srv/a; echo c > /srv/a/c"}]))
    out = tmp_path / "exported"
    command = ["intercode", "datasets", "export", str(tasks), "--env", "bash", "--to", "harbor"]
    subprocess.run([*command, "--base", system, "--out", str(out), "--quiet"], check=True)
    assert (out / "one/environment/Dockerfile").read_text().startswith(f"FROM {system}\n")
    for agent, reward in {"oracle": 1.0, "nop": 0.0}.items():
        assert rewards(harbor(out, agent, tmp_path / agent)) == {"one": reward}


async def test_commands(make: Make) -> None:
    async with make(env={"OF_TASK": "1"}, workdir="/var") as box:
        assert await said(box, "pwd; echo $OF_TASK") == "/var\n1"
        assert await said(box, "pwd", cwd="/srv") == "/srv"
        assert await said(box, "echo $A$OF_TASK", env={"A": "é"}) == "é1"
        assert await said(box, "ls /tests /solution") == "/solution:\n\n/tests:"
        done = await box.exec("echo out; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.return_code) == ("out\n", "err\n", 3)
        done = await box.exec(f"cat; echo out; exit 3 # {'x' * 3_000_000}")
        assert (done.stdout, done.stderr, done.return_code) == ("out\n", "", 3)
        assert (await box.exec("true", cwd="/none")).return_code == 126
        assert (await box.exec("true", user="nobody-known")).return_code == 126


async def test_users(make: Make) -> None:
    dockerfile = "FROM host\nRUN useradd -m -u 1234 agent\nUSER agent\nWORKDIR /home/agent\n"
    async with make(dockerfile) as box:
        assert await said(box, "id -un; pwd") == "agent\n/home/agent"
        assert await said(box, "id -u", user="root") == "0"
        assert await said(box, "id -u", user=1234) == "1234"
        await said(box, "echo > /logs/agent/by-agent")
        with box.with_default_user("root"):
            assert await said(box, "id -u") == "0"


async def test_a_late_command_ends_with_all_that_it_started(make: Make) -> None:
    async with make() as box:
        done = await box.exec("echo begun; sleep 1000 & sleep 1000; true", timeout_sec=1)
        assert (done.stdout, done.return_code) == ("begun\n", 124)
        # They were killed, and may not have been buried yet.
        assert eventually(lambda: not box.box.sandbox.processes())


async def test_a_command_that_is_no_longer_awaited_ends(make: Make) -> None:
    async with make() as box:
        await said(box, "mkfifo /tmp/begun")
        running = asyncio.ensure_future(box.exec("echo > /tmp/begun; sleep 1000"))
        await said(box, "cat /tmp/begun")  # beside it
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await box.box.processes() == []


@pytest.mark.parametrize(
    ("work", "reward"),
    [
        ("echo 8 > {}", 1.0),
        ("echo 8 > {}; touch /tests/more /solution/more /tmp/more", 1.0),
        ("echo 8 > {}; sleep 1000 & disown", 1.0),
        ("echo 8 > {}; touch /data/more", 0.5),
        ("true", 0.0),
        ("mkdir {}", 0.0),
        ("mkfifo {}", 0.0),
        ("ln -s /proc/self/environ {}", 0.0),
        ("truncate -s 200M {}", 0.0),
    ],
)
async def test_whatever_an_agent_leaves_has_a_reward(
    make: Make, tmp_path: Path, work: str, reward: float
) -> None:
    toml = tmp_path / "task/task.toml"
    toml.parent.mkdir()
    toml.write_text('[metadata.intercode]\nenvironment = "bash"\ntask_id = "archive-01"\n')
    async with make(tasks="bash") as box:
        await box.exec(work.format(ANSWER))
        assert (await box.score()).value == reward


async def test_an_answer_that_cannot_be_read_is_no_reward_of_0(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = tmp_path / "task/task.toml"
    toml.parent.mkdir()
    toml.write_text('[metadata.intercode]\nenvironment = "bash"\ntask_id = "archive-01"\n')
    async with make(tasks="bash") as box:
        backend = box.box.sandbox.backend
        read = backend.read_file

        def late(path: str, *limit: int) -> bytes:
            if path == ANSWER:
                raise SandboxTimeoutError("no answer in time")
            return read(path, *limit)

        monkeypatch.setattr(backend, "read_file", late)
        with pytest.raises(SandboxTimeoutError):
            await box.score()


async def test_files(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "in").mkdir(parents=True)
    (source / "in/run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "in/run.sh").chmod(0o755)
    (source / "link").symlink_to("in/run.sh")
    async with make() as box:
        await box.upload_dir(source, "/srv/a b")
        await box.upload_file(source / "in/run.sh", "/srv/deep/er/one.sh")
        ran = "'/srv/a b/link'; /srv/deep/er/one.sh; stat -c %U /srv/deep/er/*"
        assert await said(box, ran) == "ran\nran\nroot"
        await box.download_dir("/srv/a b", tmp_path / "back")
        await box.download_file("/srv/deep/er/one.sh", tmp_path / "one/file")
        assert await box.is_dir("/srv/a b")
        assert not await box.is_file("/srv/a b")
    assert (tmp_path / "back/link").readlink() == Path("in/run.sh")
    assert (tmp_path / "back/in/run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "one/file").read_text() == (source / "in/run.sh").read_text()


async def test_resources(make: Make) -> None:
    async with make(memory_mb=128, storage_mb=16) as box:
        more = "python3 -c 'x = bytearray(1 << 29)'"
        assert (await box.exec(more)).return_code != 0
        assert (await box.exec("head -c 64M /dev/zero > /srv/much")).return_code != 0


async def test_networks(make: Make) -> None:
    reach = 'python3 -c "import socket; print(socket.if_nameindex())"'
    async with make() as box:
        assert await said(box, reach) == "[(1, 'lo')]"
    allowed = {"network_mode": "allowlist", "allowed_hosts": ["pypi.org", "*.example.org"]}
    async with make(policy=allowed) as box:
        assert "127.0.0.1" in await said(box, "echo $https_proxy$HTTPS_PROXY")
        assert await said(box, reach) == "[(1, 'lo')]"
    with pytest.raises(ValueError, match="CIDR"):
        async with make(policy={"network_mode": "allowlist", "allowed_hosts": ["10.0.0.0/8"]}):
            pass


async def test_what_no_sandbox_can_be_is_refused(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "task/environment"
    with pytest.raises(RuntimeError, match="GPU"):
        async with make(gpus=1):
            pass
    async with make():
        (folder / "Dockerfile").rename(folder / "docker-compose.yaml")
    with pytest.raises(Exception, match="only a compose file"):
        InterCodeEnvironment(
            environment_dir=folder,
            environment_name="test",
            session_id="test",
            trial_paths=TrialPaths(tmp_path / "trial"),
            task_env_config=EnvironmentConfig(),
        )
