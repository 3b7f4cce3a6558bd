"""Agents that hold the environment: the contract `run(env) -> Episode`, in real sandboxes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from intercode import make
from intercode.agents.guarded_env import AgentEnv
from intercode.episode import Episode
from intercode.errors import ActionError, EnvironmentStateError, SandboxError
from intercode.evaluate import RunResult, evaluate
from intercode.evaluate.episode_loop import FifoSemaphore, SharedRunResources, run_episode
from intercode.task import Dataset, Task

from evaluate import fakes  # isort: skip

TASK = Task("t", "Make /tmp/a.", verification="test -e /tmp/a")


class Holds:
    def __init__(self, play: Callable[[AgentEnv], Any]) -> None:
        self.run = play


def played(play: Callable[[AgentEnv], Any], task: Task = TASK, **options: Any) -> RunResult:
    tasks = Dataset([task], name="one")
    return evaluate(tasks, lambda task: Holds(play), lambda: make("bash", data=tasks, **options))


def only(result: RunResult) -> Episode:
    (episode,) = result.kept
    return episode


def test_an_episode_that_is_not_ended_is_handed_in_as_it_stands() -> None:
    def play(env: AgentEnv) -> None:
        assert env.observation == TASK.query and env.running
        assert env.step("touch /tmp/a; echo done")[:2] == ("done\n", 0.0)
        assert env.observation == "done\n"

    episode = only(played(play))
    assert (episode.status, episode.reward, len(episode.turns)) == ("submitted", 1.0, 1)


def test_tools_are_called_and_turns_are_counted() -> None:
    def play(env: AgentEnv) -> Episode:
        assert [tool.name for tool in env.tools] == ["bash", "submit"]
        env.call("bash", {"command": "touch /tmp/a"})
        assert [message["role"] for message in env.messages("plain")][-2:] == ["assistant", "user"]
        _, _, terminated, truncated, _ = env.call("bash", {"command": "ls"})
        assert (terminated, truncated, env.running) == (False, True, False)
        return env.episode

    episode = only(played(play, max_turns=2))
    assert (episode.status, episode.reward) == ("truncated", 1.0)


def test_nothing_tells_the_reward() -> None:
    seen: list[object] = []

    def play(env: AgentEnv) -> Episode:
        (fork,) = env.fork(1)
        fork.step("touch /tmp/a")
        seen.append(fork.step("submit"))
        seen.append(
            (fork.episode.score, fork.episode.reward, [t.reward for t in fork.episode.turns])
        )
        return env.episode

    episode = only(played(play))
    assert seen[0] == ("", 0.0, True, False, {"task_id": "t", "turn": 1, "turns_left": 9})
    assert seen[1] == (None, None, [0.0])
    assert episode.reward == 0.0  # the other branch made the file


def test_no_end_is_scored_before_the_agent_has_chosen() -> None:
    """Otherwise the time that it takes would tell."""
    scored: list[str] = []

    def reward(task: Task, episode: Episode, place: Any) -> float:
        scored.append(episode.id)
        return 1.0

    def play(env: AgentEnv) -> Episode:
        forks = env.fork(3)
        for fork in forks:
            fork.step("submit")
        assert scored == []
        return forks[1].episode

    episode = only(played(play, reward=reward))
    assert (episode.reward, scored) == (1.0, ["t#0.1"])
    assert episode.metadata["submissions"] == 3


def test_an_end_that_was_closed_may_be_chosen() -> None:
    def play(env: AgentEnv) -> Episode:
        ends = []
        for fork in env.fork(2):
            fork.step("touch /tmp/a")
            fork.step("submit")
            ends.append(fork.episode)
            fork.close()
        return ends[1]

    episode = only(played(play))
    assert (episode.reward, episode.error) == (1.0, None)


def test_nothing_of_an_attempt_is_kept_when_it_is_over() -> None:
    seen: list[weakref.ref[Any]] = []

    def play(env: AgentEnv) -> None:
        (fork,) = env.fork(1)
        seen.extend([weakref.ref(env), weakref.ref(fork)])

    played(play)
    gc.collect()
    assert [one() for one in seen] == [None, None]


def reached(thing: object, depth: int = 6) -> Iterator[object]:
    """Yield what attributes and containers lead to."""
    yield thing
    if depth and not isinstance(thing, (type, ModuleType)):
        inside = [*getattr(thing, "__dict__", {}).values()]
        inside += [getattr(thing, name, None) for name in getattr(thing, "__slots__", ())]
        inside += [*thing.values()] if isinstance(thing, dict) else []
        inside += [*thing] if isinstance(thing, (list, tuple, set)) else []
        if isinstance(thing, partial):
            inside += thing.args
        for one in inside:
            yield from reached(one, depth - 1)


def test_no_attribute_leads_to_gold() -> None:
    task = Task("t", "Find it.", gold=("flag{secret}",))
    seen: list[object] = []

    def play(env: AgentEnv) -> None:
        (fork,) = env.fork(1)
        with fork.snapshot() as snapshot:
            assert env.restore(snapshot) == task.query
            for held in (env, fork, snapshot, env.episode):
                seen.extend(reached(held))

    tasks = Dataset([task], name="one")
    result = evaluate(tasks, lambda task: Holds(play), lambda: make("ctf", data=tasks))
    assert only(result).error is None
    assert not any(isinstance(one, Task) or "flag{secret}" in str(one) for one in seen)


def test_wrong_flags_count_over_all_forks() -> None:
    task = Task("t", "Find it.", gold=("flag{b}",))
    told: list[str] = []

    def play(env: AgentEnv) -> Episode:
        forks = env.fork(4)
        told.extend(fork.step("submit flag{a}")[0] for fork in forks[:3])
        forks[3].step("submit flag{b}")  # the fourth attempt of three
        return forks[3].episode

    tasks = Dataset([task], name="one")
    result = evaluate(tasks, lambda task: Holds(play), lambda: make("ctf", data=tasks, attempts=3))
    episode = only(result)
    assert told[:2] == [
        "That is not the flag. 2 more attempts.\n",
        "That is not the flag. 1 more attempt.\n",
    ]
    assert (episode.reward, episode.metadata["submissions"]) == (0.0, 4)


def test_the_reward_of_every_turn_is_told_where_it_was_asked_for() -> None:
    def play(env: AgentEnv) -> None:
        assert env.step("touch /tmp/a")[1] == 1.0

    assert only(played(play, reward_every_turn=True)).success


def test_a_fork_may_count_and_is_the_attempt_then() -> None:
    def play(env: AgentEnv) -> Episode:
        env.step("cd /tmp")
        first, second = env.fork(2)
        first.step("touch b")
        second.step("touch a")
        return second.episode

    episode = only(played(play))
    assert episode.success and [turn.action for turn in episode.turns] == ["cd /tmp", "touch a"]
    assert episode.fork is None and episode.id == "t#0"
    assert episode.metadata["fork"] == {"parent": "t#0", "turn": 1, "branch": (1,)}


def test_what_a_foreign_episode_or_an_exception_is() -> None:
    def raises(env: AgentEnv) -> None:
        raise KeyError("mine")

    for play, says in (
        (raises, "KeyError: 'mine'"),
        (lambda env: Episode("t", "", "bash"), "returned no episode of its environment"),
        (lambda env: env.step(7), "not a text but int"),
    ):
        episode = only(played(play))
        assert (episode.status, episode.score) == ("error", None)
        assert episode.metadata["error_type"] == "AgentError" and says in (episode.error or "")


def test_an_agent_may_catch_its_own_mistakes() -> None:
    def play(env: AgentEnv) -> Episode:
        with pytest.raises(ActionError):
            env.step(7)  # type: ignore[arg-type]
        env.step("touch /tmp/a")
        env.step("submit")
        with pytest.raises(EnvironmentStateError):
            env.step("ls")
        return env.episode

    assert only(played(play)).success


def test_a_lost_sandbox_is_an_error_even_if_the_agent_catches_it() -> None:
    tasks = fakes.dataset(1)
    made = fakes.Factory(
        tasks, fail=lambda task, action: SandboxError("lost") if action == "x" else None
    )

    def play(env: AgentEnv) -> None:
        with pytest.raises(SandboxError):
            env.step("x")

    result = evaluate(tasks, lambda task: Holds(play), made, max_retries=1)
    episode = only(result)
    assert (episode.status, episode.error) == ("error", "lost")
    assert len(made.made) == 2  # it was tried again


def test_forks_are_closed_and_the_first_environment_is_not() -> None:
    kept: list[AgentEnv] = []

    def play(env: AgentEnv) -> None:
        kept.extend([env, *env.fork(2)])
        env.close()
        for one in kept:
            one.step("true")

    assert not only(played(play)).error
    for fork in kept[1:]:
        with pytest.raises((EnvironmentStateError, SandboxError)):
            fork.sandbox.exec(["true"])


def test_permits_are_held_while_it_decides_and_while_it_acts() -> None:
    env = fakes.FakeEnv(fakes.dataset(1))
    env.reset(options={"task_id": "t0"})
    shared = SharedRunResources(calls=FifoSemaphore(1), sandboxes=FifoSemaphore(1))
    held: list[tuple[int, int]] = []
    actions: list[str] = []
    shared = SharedRunResources(
        shared.calls, shared.sandboxes, lambda task, action: actions.append(action)
    )
    step = env.step

    def watched(action: str) -> Any:
        held.append((shared.calls.held, shared.sandboxes.held))
        return step(action)

    env.step = watched  # type: ignore[method-assign]

    def play(one: AgentEnv) -> None:
        held.append((shared.calls.held, shared.sandboxes.held))
        threads = [threading.Thread(target=one.step, args=("x",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held.append((shared.calls.held, shared.sandboxes.held))

    run_episode(env, lambda task: Holds(play), env.tasks[0], resources=shared)
    assert held == [(1, 0), (0, 1), (0, 1), (1, 0), (0, 1)]
    assert actions == ["x", "x", "submit"]
    assert (shared.calls.held, shared.sandboxes.held) == (0, 0)


def test_it_is_found_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n"
        "    def run(self, env):\n"
        "        env.step('touch /tmp/a')\n"
        "        return env.episode\n"
        "def make(task):\n"
        "    return Mine()\n"
    )
    tasks = Dataset([TASK], name="one")
    agent = f"{tmp_path}/mine.py:make"
    assert only(evaluate(tasks, agent, lambda: make("bash", data=tasks))).success
