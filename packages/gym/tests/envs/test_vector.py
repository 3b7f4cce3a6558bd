from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import intercode
from intercode.envs.stage import SandboxStage
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import EnvironmentStateError, SandboxError, VectorError
from intercode.task import Task
from intercode_sandbox import SandboxBackend

from .conftest import TASKS, kill_sandbox

pytestmark = pytest.mark.filterwarnings("error")
MakeVec = Callable[..., ThreadVectorEnv]
COUNT = {"task_id": "count"}


@pytest.fixture
def make_vec() -> Iterator[MakeVec]:
    made: list[ThreadVectorEnv] = []

    def make(num_envs: int = 3, **options: Any) -> ThreadVectorEnv:
        envs = gymnasium.make_vec("intercode-bash-v0", num_envs, data=TASKS, **options)
        assert isinstance(envs, ThreadVectorEnv)
        made.append(envs)
        return envs

    yield make
    for envs in made:
        envs.close()
        envs.close()


def test_four_play_the_episodes_that_one_would(make_vec: MakeVec) -> None:
    envs, alone = make_vec(4), intercode.make("bash", data=TASKS)
    observations, infos = envs.reset(seed=20)
    assert observations in envs.observation_space
    actions = tuple(f"echo {index}; ls" for index in range(4))
    results = [envs.step(actions), envs.step(("submit",) * 4), envs.step(actions)]
    for index in range(4):  # the first four of its order, one after the other
        observation, info = alone.reset(seed=None if index else 20)
        assert (observations[index], infos["task_id"][index]) == (observation, info["task_id"])
        for result, action in zip(results, (actions[index], "submit"), strict=False):
            observation, reward, terminated, truncated, _ = alone.step(action)
            assert [part[index] for part in result[:4]] == [
                observation, reward, terminated, truncated,
            ]  # fmt: skip
    assert results[2][0] == tuple(alone.reset()[0] for _ in range(4))
    alone.close()


def test_different_seeds_give_different_episodes(make_vec: MakeVec) -> None:
    envs = make_vec(2)
    first = [envs.reset(seed=seed)[0] for seed in range(9)]
    assert len(set(first)) > 1
    assert [envs.reset(seed=seed)[0] for seed in range(9)] == first
    assert [envs.reset(seed=[None, seed])[0] for seed in range(9)] == first
    assert [make_vec(2, seed=seed).reset()[0] for seed in range(3)] == first[:3]
    assert envs.reset(seed=np.int64(5))[0] == first[5]
    with pytest.raises(ValueError, match="3 seeds"):
        envs.reset(seed=[1, 2, 3])


def test_they_run_at_the_same_time(make_vec: MakeVec) -> None:
    envs = make_vec(3)
    envs.reset()
    together = threading.Barrier(3)
    steps = [env.step for env in envs.envs]
    for env, step in zip(envs.envs, steps, strict=True):
        env.step = lambda action, step=step: (together.wait(60), step(action))[1]  # type: ignore[method-assign]
    assert envs.step(("echo x",) * 3)[0] == ("x\n",) * 3


def test_next_step_autoreset(make_vec: MakeVec) -> None:
    envs = make_vec(2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.reset(options=COUNT)
    _, rewards, terminated, _, infos = envs.step(("echo 3", "submit"))
    assert list(terminated) == [False, True]
    assert list(infos["_success"]) == [False, True]
    observations, rewards, terminated, _, infos = envs.step(("submit", "ignored"))
    assert list(rewards) == [1.0, 0.0]
    assert list(terminated) == [True, False]
    assert observations[1] in {task.query for task in TASKS}
    assert list(infos["turn"]) == [1, 0]
    assert envs.step(("ignored", "echo x"))[0][1] == "x\n"


def test_same_step_autoreset(make_vec: MakeVec) -> None:
    envs = make_vec(2, autoreset_mode="SameStep", max_turns=1)
    envs.reset(options=COUNT)
    observations, rewards, terminated, truncated, infos = envs.step(("echo 3", "submit"))
    assert list(rewards) == [1.0, 0.0]
    assert (list(terminated), list(truncated)) == ([False, True], [True, False])
    assert list(infos["final_obs"]) == ["3\n", ""]
    assert list(infos["final_info"]["success"]) == [True, False]
    assert all(observation in {task.query for task in TASKS} for observation in observations)
    assert list(infos["turn"]) == [0, 0]


def test_disabled_autoreset(make_vec: MakeVec) -> None:
    envs = make_vec(2, autoreset_mode="Disabled")
    envs.reset(options=COUNT)
    envs.step(("echo 3", "submit"))
    with pytest.raises(EnvironmentStateError, match=r"must be reset first: \[1\]"):
        envs.step(("ls", "ls"))
    mask = np.array([False, True])
    observations, infos = envs.reset(options={**COUNT, "reset_mask": mask})
    assert observations == ("3\n", TASKS["count"].query)
    assert list(infos["_task_id"]) == [False, True]
    assert list(envs.step(("submit", "submit"))[1]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.zeros(2, dtype=np.bool_)})


def test_gold_is_run_once_for_all(make_vec: MakeVec, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = SandboxStage.open

    def count(stage: SandboxStage, task: Task) -> SandboxBackend:
        started.append(task.task_id)
        return start(stage, task)

    monkeypatch.setattr(SandboxStage, "open", count)
    envs = make_vec(4)
    envs.reset(options=COUNT)
    assert len(started) == 4
    envs.step(("echo 3",) * 4)
    envs.step(("submit",) * 4)
    assert len(started) == 5


def test_a_failure_is_raised_when_all_have_ended_and_loses_no_result(make_vec: MakeVec) -> None:
    envs = make_vec(2)
    envs.reset(options=COUNT)
    kill_sandbox(envs.envs[0])  # type: ignore[arg-type]
    with pytest.raises(VectorError, match="first environment 0: Sandbox") as caught:
        envs.step(("echo 3", "echo 3"))
    assert isinstance(caught.value.__cause__, SandboxError)
    assert list(caught.value.errors) == [0]
    observations, rewards, terminated, truncated, infos = caught.value.results
    assert observations == ("", "3\n")
    assert np.isnan(rewards[0]) and rewards[1] == 0.0
    assert (list(terminated), list(truncated)) == ([False, False], [True, False])
    assert infos["error"][0].startswith("Sandbox") and list(infos["_error"]) == [True, False]
    observations, rewards, *_ = envs.step(("ignored", "submit"))
    assert observations[0] in {task.query for task in TASKS}
    assert list(rewards) == [0.0, 1.0]


def test_an_action_that_cannot_be_run_is_its_own_environment_s_turn(make_vec: MakeVec) -> None:
    envs = make_vec(4)
    envs.reset(options=COUNT)
    actions = ("a\0b", "\ud800", "echo " + 3_000_000 * "x", "ls w | wc -l")
    observations, *_, infos = envs.step(actions)
    assert list(infos["turn"]) == [1] * 4
    assert all(text.startswith("[not executed: ") for text in observations[:2])
    assert len(observations[2]) > 1000 and observations[3] == "3\n"


def test_render(make_vec: MakeVec) -> None:
    envs = make_vec(2, render_mode="ansi")
    envs.reset(options=COUNT)
    assert envs.render() == (f"# {TASKS['count'].query}\n",) * 2
