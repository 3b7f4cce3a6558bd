from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import intercode
from intercode.envs.stage import SandboxStage
from intercode.errors import TaskError, UsageError
from intercode.evaluate import evaluate
from intercode.task import Task
from intercode_sandbox import Limits, get_provider
from sandbox.fixtures import PROVIDERS

TASK = Task("t", "q", ("ls",))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"query": "other", "task_id": "u", "tags": ("x",)}, True),
        ({"gold": ("pwd",)}, True),  # the caches' keys name gold besides
        ({"setup": "touch a"}, False),
        ({"files": {"a": ""}}, False),
        ({"timeout": 3}, False),
    ],
)
def test_what_identifies_a_prepared_sandbox(change: Any, same: bool) -> None:
    stage = SandboxStage(get_provider())
    assert (stage.identify(TASK) == stage.identify(replace(TASK, **change))) is same


def test_a_setup_longer_than_an_argument_runs() -> None:
    data = "x" * 140_000
    task = replace(TASK, setup=f"cat > data <<'END'\n{data}\nEND")
    with closing(SandboxStage(get_provider()).open(task)) as sandbox:
        assert sandbox.read_file("data") == f"{data}\n".encode()


def test_a_setup_has_the_time_of_an_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intercode.envs.stage.SETUP_TIMEOUT", 0.2)  # allow limit: it is reached
    task = replace(TASK, setup="sleep 1000", timeout=0.3)  # allow limit: it is reached
    with pytest.raises(TaskError, match=r"setup was not done within 0\.3 s \(a longer timeout"):
        SandboxStage(get_provider()).open(task)
    stage = SandboxStage(get_provider(), limits=Limits(timeout=77))
    stage.open(replace(TASK, setup="sleep 0.5")).close()


def test_limits_and_network_belong_to_it() -> None:
    stages = [
        SandboxStage(get_provider()),
        SandboxStage(get_provider(), limits=Limits(timeout=77)),
        SandboxStage(get_provider(), network=True),
    ]
    assert len({stage.identify(TASK) for stage in stages}) == 3


def test_the_image_is_the_environment_s_the_task_s_or_the_host() -> None:
    own = replace(TASK, image="debian:bookworm")
    assert SandboxStage(get_provider()).image(TASK) == "host"
    assert SandboxStage(get_provider()).image(own) == "debian:bookworm"
    assert SandboxStage(get_provider(), image="host").image(own) == "host"


def test_what_a_task_lays_over_this_machine_it_lays_over_any_image() -> None:
    stage = SandboxStage(get_provider(), image="debian:bookworm[jq]+/a.tar")
    own = replace(TASK, image="host+builtin:fs_shop.sh+/b.tar")
    assert stage.image(own) == "debian:bookworm[jq]+/a.tar+builtin:fs_shop.sh+/b.tar"
    assert stage.image(replace(TASK, image="nl2bash+/b.tar")) == "debian:bookworm[jq]+/a.tar"


def test_capabilities_that_cannot_be_had_are_refused_at_once() -> None:
    task = replace(TASK, capabilities=("net_bind_service",), image="debian:bookworm")
    SandboxStage(get_provider()).check(task)
    stage = SandboxStage(get_provider(), network=True)
    for refused in (stage.check, stage.open):
        with pytest.raises(TaskError, match="native sandbox shares this machine's ports"):
            refused(task)
    stage.check(TASK)
    with pytest.raises(UsageError, match="SQL takes no capabilities"):
        intercode.make("sql", capabilities="chown")


@pytest.fixture
def below_usr() -> Iterator[Path]:
    """A folder among the machine's programs, which every sandbox of the image ``host`` sees."""
    with tempfile.TemporaryDirectory(prefix="ic-", dir="/usr/local/share") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write below /usr")
@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_tells_gold_is_hidden_where_programs_are(
    below_usr: Path, provider: str, request: pytest.FixtureRequest
) -> None:
    """Attack C1: data below /usr was readable, gold and all."""
    if provider == "docker":
        request.getfixturevalue("engine")
    data, seen = below_usr / "tasks.json", below_usr / "seen"
    data.write_text(json.dumps([{"query": "?", "gold": "echo secret"}]))
    seen.write_text("seen")
    run = below_usr / "run"
    with closing(intercode.make("bash", data=data, sandbox=provider)) as env:
        evaluate(env.dataset, "noop", lambda: env, out=run)
        env.reset()
        found = env.step(f"cat {data}; ls -A {run}; cat {seen}")[0]
    assert found == "seen"
