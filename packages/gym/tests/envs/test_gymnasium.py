"""Gymnasium's own checks, with every warning an error."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
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
    with pytest.raises(UsageError, match="no environment 'fish'; known: bash"):
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
    parts = ("errors", "extensions", "origin")
    ours = ["intercode", "intercode.lazy_names", "intercode.registration"]
    ours += ["intercode_sandbox", *(f"intercode_sandbox.{part}" for part in parts)]
    assert [name for name in imported if name.startswith("intercode")] == ours


def steps(env: Any) -> list[Any]:
    """Step until the episode is over; return the last step's results."""
    env.reset(options={"task_id": "count"})
    for number in range(1, 100):
        result = list(env.step("ls w | wc -l"))
        if result[2] or result[3]:
            return [number, *result]
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"max_episode_steps": 3}, 3),
        ({"max_episode_steps": 12}, 12),  # more than is usual
        ({"max_episode_steps": 5, "max_turns": 2}, 2),
        ({"max_episode_steps": -1, "max_turns": 4}, 4),
        ({}, 10),
    ],
)
def test_gymnasium_s_limit_of_steps_scores(options: dict[str, int], count: int) -> None:
    for make in (gymnasium.make, intercode.make):
        env = make("intercode-bash-v0" if make is gymnasium.make else "bash", data=TASKS, **options)
        number, observation, reward, terminated, truncated, info = steps(env)
        assert (number, observation, reward) == (count, "3\n", 1.0)
        assert (terminated, truncated, info["success"], info["turns_left"]) == (
            False,
            True,
            True,
            0,
        )
        env.close()


def test_a_registered_limit_of_steps_scores() -> None:
    kwargs = {"env": "bash", "data": TASKS}
    for vector in (None, "intercode.project:create_vec"):
        gymnasium.register(
            "limited-v0",
            entry_point="intercode.project:create",
            vector_entry_point=vector,
            kwargs=kwargs,
            max_episode_steps=2,
        )
        try:
            env = gymnasium.make("limited-v0")
            assert steps(env)[0] == 2 and env.unwrapped.episode.success  # type: ignore[attr-defined]
            env.close()
            envs = gymnasium.make_vec("limited-v0", 2)
            envs.reset(options={"task_id": "count"})
            envs.step(("echo 3",) * 2)
            *_, truncated, infos = envs.step(("echo 3",) * 2)
            assert truncated.all() and infos["success"].all()
            envs.close()
        finally:
            gymnasium.registry.pop("limited-v0")


def test_a_time_limit_of_ours_scores_where_gymnasium_s_own_cannot() -> None:
    wrap = gymnasium.wrappers.RecordEpisodeStatistics
    env = intercode.TimeLimit(wrap(intercode.make("bash", data=TASKS)), 2)
    number, _, reward, _, truncated, info = steps(env)
    assert (number, reward, truncated, info["success"]) == (2, 1.0, True, True)
    env.close()
    env = gymnasium.wrappers.TimeLimit(intercode.make("bash", data=TASKS), 2)
    number, _, reward, _, truncated, info = steps(env)
    assert (number, reward, truncated, "success" in info) == (2, 0.0, True, False)
    env.close()
    with pytest.raises(UsageError, match="only InterCode's environments score: not CartPoleEnv"):
        intercode.TimeLimit(gymnasium.make("CartPole-v1"), 2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1, not 0"):
        intercode.TimeLimit(intercode.make("bash", data=TASKS), 0)


def test_wrappers_in_a_vector() -> None:
    wrap = partial(intercode.TimeLimit, max_episode_steps=1)
    with pytest.raises(gymnasium.error.Error, match="wrappers"):
        gymnasium.make_vec("intercode-bash-v0", 2, wrappers=[wrap], data=TASKS)
    for make in (
        lambda: intercode.make_vec("bash", 2, wrappers=[wrap], data=TASKS),
        lambda: gymnasium.make_vec("intercode-bash-v0", 2, "sync", wrappers=[wrap], data=TASKS),
    ):
        envs: Any = make()
        envs.reset(options={"task_id": "count"})
        _, rewards, _, truncated, infos = envs.step(("echo 3", "echo 4"))
        assert list(rewards) == [1.0, 0.0] and truncated.all()
        assert list(infos["success"]) == [True, False]
        envs.close()


def test_processes() -> None:
    options: dict[str, Any] = {"vectorization_mode": "async", "data": TASKS, "max_turns": 4}
    with pytest.raises(ValueError, match="shared_memory=False") as caught:
        gymnasium.make_vec("intercode-bash-v0", 2, **options)
    assert "a text of unlimited length needs a vector without shared memory" in str(
        caught.value.__cause__
    )
    before = intercode.make("bash", data=TASKS)  # sandboxes of this process are not theirs
    before.reset(options={"task_id": "count"})
    envs = gymnasium.make_vec(
        "intercode-bash-v0", 2, vector_kwargs={"shared_memory": False}, **options
    )
    envs.reset(seed=1, options={"task_id": "count"})
    assert envs.step(("echo 3", "ls w"))[0] == ("3\n", "a\nb\nc\n")
    assert list(envs.step(("submit",) * 2)[1]) == [1.0, 0.0]
    envs.close()
    assert before.step("ls w | wc -l")[0] == "3\n"
    before.close()
