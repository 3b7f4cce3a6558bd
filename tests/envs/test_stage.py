from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from intercode.envs.stage import SandboxStage
from intercode.sandbox import Limits, get_provider
from intercode.task import Task

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
