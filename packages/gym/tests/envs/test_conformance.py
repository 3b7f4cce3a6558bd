"""What every environment must do, whatever it runs: one suite for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import intercode
from intercode.envs.base import InterCodeEnv
from intercode.envs.spaces import Unicode
from intercode.episode import Episode
from intercode.errors import (
    ActionError,
    EnvironmentStateError,
    SandboxError,
    TaskNotFoundError,
    UsageError,
)
from intercode.task import Dataset
from waiting import eventually

from .cases import CASES, Case
from .haste import haste

pytestmark = pytest.mark.filterwarnings("error")
Make = Callable[..., Any]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def tasks(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return case.data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make(case: Case, tasks: Dataset) -> Iterator[Make]:
    """Makes environments that are closed when the test ends, twice."""
    made: list[Any] = []

    def make_one(**options: Any) -> Any:
        options = {"data": tasks, "protocol": case.protocol, **case.options, **options}
        made.append(intercode.make(case.env, **options))
        return made[-1]

    yield make_one
    for env in made:
        env.close()
        env.close()


def solve(env: Any, task_id: str) -> float:
    """What the environment's own solution of a task is worth."""
    env.reset(options={"task_id": task_id})
    *actions, submit = env.solution(env.dataset[task_id])
    for action in actions:
        assert env.step(action)[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(submit)
    assert (terminated, truncated, env.episode.reward) == (True, False, reward)
    assert info["success"] is (reward == 1.0)
    assert set(info["parts"]) == set(env.episode.score.parts)
    return float(reward)


def test_gymnasium_s_own_checks(case: Case, tasks: Dataset) -> None:
    options = {"data": tasks, "protocol": case.protocol, **case.options}
    env = gymnasium.make(f"intercode-{case.env}-v0", **options)
    assert isinstance(env, InterCodeEnv)
    assert env.spec is not None
    assert env.spec.id == f"intercode-{case.env}-v0"
    check_env(env)
    env.close()


def test_spaces(case: Case, make: Make) -> None:
    env = make()
    assert isinstance(env.action_space, Unicode)
    assert isinstance(env.observation_space, Unicode)
    observation, info = env.reset()
    assert env.observation_space.contains(observation)
    assert info == {
        "task_id": env.episode.task_id,
        "turn": 0,
        "turns_left": env.max_turns,
        "query": observation,
        "tags": env.dataset.by_id(env.episode.task_id).tags,
    }
    action, shown = case.shows
    observation, *_, info = env.step(action)
    assert shown in observation
    assert env.observation_space.contains(observation)
    assert (info["task_id"], info["turn"], info["ok"]) == (env.episode.task_id, 1, True)


def test_solutions_solve_and_doing_nothing_does_not(make: Make) -> None:
    env = make()
    for task in filter(lambda task: task.gold, env.dataset):
        assert solve(env, task.task_id) == 1.0, task.task_id
        env.reset(options={"task_id": task.task_id})
        assert env.step("submit")[1:4] == (0.0, True, False)
        assert (env.episode.status, env.episode.success) == ("submitted", False)


def test_a_seed_gives_an_order_that_visits_every_task_once(make: Make) -> None:
    one, other = make(), make(seed=3)
    order = [one.reset(seed=3)[1]["task_id"]]
    order += [one.reset()[1]["task_id"] for _ in one.dataset[1:]]
    assert sorted(order) == sorted(task.task_id for task in one.dataset)
    found = [other.reset()[1]["task_id"]]
    # A chosen task leaves the order alone.
    assert other.reset(options={"task_id": order[0]})[1]["task_id"] == order[0]
    assert found + [other.reset()[1]["task_id"] for _ in order[1:]] == order


def test_the_order_of_calls(case: Case, make: Make) -> None:
    env = make()
    for call in (lambda: env.step("x"), lambda: env.episode, lambda: env.workspace):
        with pytest.raises(EnvironmentStateError, match=r"call reset\(\) first"):
            call()
    with pytest.raises(TaskNotFoundError):
        env.reset(options={"task_id": "none"})
    with pytest.raises(UsageError, match="no option 'task'"):
        env.reset(options={"task": env.dataset[0].task_id})
    env.reset()
    env.step("submit")
    with pytest.raises(EnvironmentStateError, match="has ended"):
        env.step("submit")
    env.reset()
    env.step(case.shows[0])
    env.close()
    env.close()
    for call in (lambda: env.step("x"), lambda: env.step("submit"), lambda: env.workspace):
        with pytest.raises(EnvironmentStateError):
            call()


def test_skip_gives_up_what_is_solved(make: Make) -> None:
    env = make()
    env.reset(options={"task_id": env.dataset[0].task_id})
    for action in env.solution(env.dataset[0])[:-1]:
        env.step(action)
    assert env.step("skip")[:4] == ("", 0.0, True, False)
    assert (env.episode.status, env.episode.reward) == ("skipped", 0.0)


def test_what_is_cut_off_is_scored(case: Case, make: Make) -> None:
    task = make().dataset[0]
    actions = make().solution(task)[:-1] or [case.shows[0]]
    env = make(max_turns=len(actions))
    env.reset(options={"task_id": task.task_id})
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (float(case.by_state), False, True)
    assert info["success"] is case.by_state
    assert (env.episode.status, env.episode.reward) == ("truncated", reward)
    assert env.episode.turns[-1].reward == reward
    with pytest.raises(EnvironmentStateError, match="has ended"):
        env.step("submit")


def test_a_reward_in_every_turn(case: Case, make: Make) -> None:
    env = make(reward_every_turn=True)
    task = env.dataset[0]
    env.reset(options={"task_id": task.task_id})
    _, reward, terminated, _, info = env.step(case.shows[0])
    assert (reward, terminated, info["success"]) == (0.0, False, False)
    for action in env.solution(task)[:-1]:
        _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["success"]) == (float(case.by_state), False, case.by_state)
    assert case.shows[1] in env.step(case.shows[0])[0], "it goes on"
    assert env.episode.turns[0].reward == 0.0


def test_two_runs_differ_in_nothing(case: Case, make: Make) -> None:
    """Not in the observations, the rewards or the info, also where a time limit is met."""
    *actions, endless = case.actions

    def run() -> list[Any]:
        env = make(seed=11)
        seen: list[Any] = [env.reset()]
        seen += [env.step(action) for action in actions]
        with haste(env):
            seen.append(env.step(endless))
        assert seen[-1][4]["ok"] is False
        return [*seen, env.step("submit"), env.reset()]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(run), pool.submit(run)
        assert one.result() == other.result()


ODD = {
    "no text at all": "",
    "blanks": " \t\n ",
    "a NUL": "echo \0",
    "half a surrogate pair": "echo \ud800",
    "a megabyte": "x" * (1 << 20),
    "odd characters": "\u202eabc\x1b[2J\u0000\uffff\U0001f600",
}


def test_odd_actions(case: Case, make: Make) -> None:
    """The agent is told what is wrong, and the episode goes on."""
    env = make(max_turns=20)
    task = env.dataset[0]
    env.reset(options={"task_id": task.task_id})
    for name, action in ODD.items():
        observation, reward, terminated, truncated, _ = env.step(action)
        assert isinstance(observation, str), name
        assert len(observation) < (1 << 20) + 4096, name
        assert (reward, terminated, truncated) == (0.0, False, False), name
        if "\0" in action or "\ud800" in action:
            assert observation.startswith("[not executed: ") or case.protocol == "paper"
    assert case.shows[1] in env.step(case.shows[0])[0]
    *actions, submit = env.solution(task)
    for action in (*actions, "\0", submit):  # what was not executed does not count
        _, reward, *_ = env.step(action)
    assert reward == 1.0
    assert Episode.from_json(env.episode.to_json()) == env.episode
    env.reset()
    with pytest.raises(ActionError, match="must be a text, not int"):
        env.step(3)


def test_an_episode_is_plain_data(case: Case, make: Make) -> None:
    env = make()
    env.reset(seed=5)
    env.step(case.shows[0])
    env.step("submit")
    episode = env.episode
    assert (episode.env, episode.seed, episode.status) == (env.name, 5, "submitted")
    assert [turn.action for turn in episode.turns] == [case.shows[0]]
    assert episode.seconds > 0 < episode.started
    assert Episode.from_json(episode.to_json()) == episode


def test_render(case: Case, make: Make) -> None:
    env = make(render_mode="ansi")
    env.reset()
    action, shown = case.shows
    observation, *_ = env.step(action)
    assert shown in observation
    episode = f"# {env.episode.query}\n{env.prompt}{action}\n{observation.rstrip()}\n"
    assert env.render() == episode
    env.step("submit")
    assert env.render() == f"{episode}# submitted, reward {env.episode.reward}\n"
    assert make().render() is None


@pytest.mark.parametrize("end", [False, True], ids=["an action", "submit"])
def test_a_sandbox_that_dies_is_an_error_and_never_a_reward(
    case: Case, make: Make, end: bool
) -> None:
    env = make()
    task = env.dataset[case.task or env.dataset[0].task_id]
    env.reset(options={"task_id": task.task_id})
    *actions, submit = env.solution(task)
    for action in actions:
        env.step(action)
    case.kill(env)
    with pytest.raises(SandboxError) as caught:
        env.step(submit if end else case.shows[0])
    assert (env.episode.status, env.episode.score) == ("error", None)
    assert env.episode.error == f"{type(caught.value).__name__}: {caught.value}"
    assert solve(env, task.task_id) == 1.0


@pytest.mark.parametrize("end", [False, True], ids=["an action", "submit"])
def test_a_sandbox_that_the_agent_has_ended_is_a_result(case: Case, make: Make, end: bool) -> None:
    env = make()
    task = env.dataset[case.task or env.dataset[0].task_id]
    env.reset(options={"task_id": task.task_id})
    *actions, submit = env.solution(task)
    for action in actions:
        env.step(action)
    case.fail(env)
    observation, reward, *over, info = env.step(submit if end else case.shows[0])
    answered = end and not case.by_state
    assert (reward, over, info["success"]) == (float(answered), [True, False], answered)
    episode = env.episode
    assert episode.status == ("submitted" if end else "ended")
    assert episode.score is not None and "by its own processes" in episode.score.detail["ended"]
    assert episode.outcome == info["outcome"] == ("solved" if answered else "ended-by-agent")
    if not end:
        assert observation == "[the sandbox has ended, by what ran in it]"
        with pytest.raises(EnvironmentStateError):
            env.step("submit")
    assert solve(env, task.task_id) == 1.0


def test_a_vector_of_two(case: Case, tasks: Dataset) -> None:
    options = {"data": tasks, "protocol": case.protocol, **case.options}
    envs = intercode.make_vec(case.env, num_envs=2, **options)
    task = tasks[0]
    observations, _ = envs.reset(seed=1, options={"task_id": task.task_id})
    assert observations == (task.query,) * 2
    *actions, submit = envs.envs[0].solution(task)
    for action in actions:
        envs.step((action, case.shows[0]))
    _, rewards, terminated, *_ = envs.step((submit, "submit"))
    assert list(rewards) == [1.0, 0.0]
    assert terminated.all()
    envs.close()


def test_closed_by_another_thread_an_action_fails_in_words(
    case: Case, make: Make, tasks: Dataset
) -> None:
    env = make()
    env.reset(options={"task_id": case.task or tasks.at(0).task_id})
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(env.step, case.actions[-1])
        assert eventually(lambda: env._calls._holder is not None or running.done())
        env.close()
        error = running.exception()
    assert type(error) is EnvironmentStateError
    assert "closed during an action" in str(error)
