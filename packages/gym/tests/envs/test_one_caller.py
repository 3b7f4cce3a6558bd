"""An environment serves one thread, of one process, at a time; all others are refused in words."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from forks import in_a_fork
from intercode.envs.base import InterCodeEnv
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import EnvironmentStateError, InterCodeError
from waiting import PATIENCE, eventually

from .conftest import TASKS, MakeEnv, MakeSql
from .toy import Gate, Toy, many, toy


@pytest.fixture
def held() -> Any:
    """An environment whose action ``wait`` is running on another thread."""
    with Gate() as gate:
        env = toy(many(3), Toy({"wait": gate}))
        env.reset()
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(env.step("wait")))
        thread.start()
        assert gate.reached.wait(PATIENCE)
        yield env, gate, thread, results
    thread.join()


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_second_thread_is_refused_and_the_first_unharmed(held: Any, call: str) -> None:
    env, gate, thread, results = held
    with pytest.raises(EnvironmentStateError, match=r"one thread at a time.*make_vec"):
        env.step("x") if call == "step" else env.reset()
    gate.opened.set()
    thread.join(PATIENCE)
    assert results[0][0] == "wait\n"
    assert [turn.action for turn in env.episode.turns] == ["wait"]
    assert env.step("x")[0] == "x\n"


def test_an_error_lets_the_next_call_in() -> None:
    env = toy(many(1))
    env.reset()
    with pytest.raises(ValueError, match="must be a text"):
        env.step(3)  # type: ignore[arg-type]
    assert env.step("x")[0] == "x\n"


def refused(env: InterCodeEnv[Any]) -> None:
    """Every call is refused in a fork, `close` does nothing there, and the parent goes on."""
    for work in (env.reset, lambda: env.step("x")):
        said = in_a_fork(work)
        assert said.startswith("EnvironmentStateError: this environment was made by process ")
        assert "Make the environment" in said
    assert in_a_fork(env.close) == "done"


def test_a_fork_is_refused_with_bash(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(options={"task_id": "count"})
    refused(env)
    assert env.step("ls w | wc -l")[0] == "3\n"
    assert env.step("submit")[1] == 1.0


def test_a_fork_is_refused_with_sql(make_sql: MakeSql) -> None:
    env = make_sql()
    _, info = env.reset()
    task = env.dataset.by_id(info["task_id"])
    refused(env)
    for action in env.solution(task):
        result = env.step(action)
    assert result[1] == 1.0


def test_close_in_a_fork_reaches_nothing_of_the_parent_s() -> None:
    class Closed(Toy):
        def close(self) -> None:
            raise InterCodeError("it was closed")

    env = toy(many(3), Closed())
    env.reset()
    assert in_a_fork(env.close) == "done"
    with pytest.raises(InterCodeError, match="it was closed"):
        env.close()


def test_a_fork_of_a_busy_environment_is_refused_not_held_up(held: Any) -> None:
    env, *_ = held
    assert "Make the environment" in in_a_fork(lambda: env.step("x"))


def test_a_fork_makes_its_own(make_env: MakeEnv) -> None:
    make_env().reset()

    def own() -> None:
        env = make_env(TASKS)
        env.reset(options={"task_id": "count"})
        assert env.step("ls w | wc -l")[0] == "3\n"
        env.close()

    assert in_a_fork(own) == "done"


def test_a_fork_of_a_vector_is_refused_and_does_not_wait_for_threads_that_it_has_not() -> None:
    envs = ThreadVectorEnv([toy(many(3)) for _ in range(2)])
    envs.reset()
    for work in (envs.reset, lambda: envs.step(("x", "x")), lambda: envs.send(("x", "x"))):
        assert "this vector of environments was made by process" in in_a_fork(work)
    assert in_a_fork(envs.close) == "done"
    assert envs.step(("x", "y"))[0] == ("x\n", "y\n")
    envs.close()


def test_close_fails_the_call_of_another_thread_whose_end_frees_what_it_holds() -> None:
    class Counted(Toy):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    errors: list[BaseException] = []

    def act() -> None:
        try:
            env.step("wait")
        except InterCodeError as error:
            errors.append(error)

    with Gate() as gate:
        place = Counted({"wait": gate})
        env = toy(many(1), place)
        env.reset()
        thread = threading.Thread(target=act)
        thread.start()
        assert gate.reached.wait(PATIENCE)
        env.close()
        during = place.closed
    thread.join(PATIENCE)
    assert [type(error) for error in errors] == [EnvironmentStateError]
    assert "closed during an action" in str(errors[0])
    assert during == 1 < place.closed  # the place at once, the interpreter after the action
    with pytest.raises(EnvironmentStateError, match=r"call reset\(\)"):
        env.step("x")


@pytest.mark.parametrize("call", ["reset", "step", "send", "recv", "fork", "render", "call"])
def test_a_closed_vector_refuses_every_call(call: str) -> None:
    envs = ThreadVectorEnv([toy(many(3)) for _ in range(2)])
    envs.reset()
    envs.close()
    envs.close()
    arguments = {"step": [("x", "x")], "send": [("x", "x")], "fork": [0], "call": ["reset"]}
    with pytest.raises(EnvironmentStateError, match="the vector was closed"):
        getattr(envs, call)(*arguments.get(call, []))


def test_close_fails_a_vector_s_call_of_another_thread() -> None:
    errors: list[BaseException] = []
    with Gate() as gate:
        envs = ThreadVectorEnv([toy(many(3), Toy({"wait": gate})) for _ in range(2)])
        envs.reset()

        def act() -> None:
            try:
                envs.step(("wait", "x"))
            except InterCodeError as error:
                errors.append(error)

        thread = threading.Thread(target=act)
        thread.start()
        assert gate.reached.wait(PATIENCE)
        closing = threading.Thread(target=envs.close)
        closing.start()
        assert eventually(lambda: envs._is_closed)
    for each in (thread, closing):
        each.join(PATIENCE)
    assert "closed during an action" in str(errors[0])
