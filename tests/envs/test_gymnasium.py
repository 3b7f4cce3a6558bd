"""Gymnasium's own checks, with every warning an error."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import intercode
from intercode.errors import UsageError
from intercode.task import Dataset, Task

from .conftest import TASKS

pytestmark = pytest.mark.filterwarnings("error")


def test_check_env_with_the_bundled_tasks() -> None:
    env = gymnasium.make("intercode-bash-v0")
    check_env(env)
    env.close()


def test_gymnasium_s_wrappers_compose() -> None:
    env: Any = gymnasium.make(
        "intercode-bash-v0", data=TASKS, max_episode_steps=2, disable_env_checker=False
    )
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=1, options={"task_id": "count"})
    env.step("ls w | wc -l")
    *_, info = env.step("submit")
    assert info["episode"]["r"] == 1.0
    env.close()


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_make_vec(mode: str) -> None:
    envs = gymnasium.make_vec(
        "intercode-bash-v0", num_envs=3, vectorization_mode=mode, data=TASKS, max_turns=4
    )
    observations, infos = envs.reset(seed=1, options={"task_id": "count"})
    assert observations == (TASKS["count"].query,) * 3
    assert list(infos["task_id"]) == ["count"] * 3
    observations, rewards, *_ = envs.step(("echo 3", "echo 4", "ls w"))
    assert observations == ("3\n", "4\n", "a\nb\nc\n")
    _, rewards, terminated, *_ = envs.step(("submit",) * 3)
    assert list(rewards) == [1.0, 0.0, 0.0]
    assert terminated.all()
    envs.close()


def test_make_by_the_short_name() -> None:
    env = intercode.make("bash", data=TASKS)
    assert isinstance(env, intercode.InterCodeEnv)
    env.close()
    with pytest.raises(UsageError, match="no environment named 'fish'; known: bash"):
        intercode.make("fish")
    with pytest.raises(UsageError, match="environment 'bash' has no protocol 'x'"):
        intercode.make("bash", protocol="x")


def test_public_names_are_there_and_lazy() -> None:
    for name in intercode.__all__:
        assert getattr(intercode, name) is not None
        assert name in dir(intercode)
    assert intercode.Task is Task
    assert intercode.Dataset is Dataset
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        intercode.nothing  # noqa: B018
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, intercode; print(*sorted(sys.modules))"],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert [name for name in imported if name.startswith("intercode")] == ["intercode"]
