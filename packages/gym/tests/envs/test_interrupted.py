"""An exception of the caller that strikes between an action and its observation: Ctrl-C, an alarm.

It ends the attempt: no later action gets the observation of another one, and the next reset is as
any other.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from types import FrameType
from typing import Any

import pytest

import intercode
from intercode.databases.inside import wire
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import EnvironmentStateError
from intercode.rewards.gold import GoldCache
from intercode_sandbox.ownership import CallGuard
from striking import struck_in_a_call
from waiting import PATIENCE

from .toy import Gate, Toy, many, toy

ENDLESS = {
    "bash": "while :; do sleep 100; done",
    "ctf": "while :; do sleep 100; done",
    "swe": "while :; do sleep 100; done",
    "python": "import time\nwhile True: time.sleep(100)",
    "sql": "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT MAX(n) FROM r",
}
SHORT = {"python": "print('the other')", "sql": "SELECT 'the other'"}


class Struck(BaseException):
    """An exception that is no `Exception`, as those of several libraries for time limits."""


@pytest.fixture
def strikes() -> Iterator[Callable[[type[BaseException]], int]]:
    """Makes the handler of a signal raise an exception; returns the signal."""
    before = signal.getsignal(signal.SIGUSR1)

    def strikes(error: type[BaseException]) -> int:
        def handler(number: int, frame: FrameType | None) -> None:
            raise error

        signal.signal(signal.SIGUSR1, handler)
        return signal.SIGUSR1

    yield strikes
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, RuntimeError, Struck])
@pytest.mark.parametrize("name", ENDLESS)
def test_it_ends_the_attempt_and_no_other(
    name: str, error: type[BaseException], strikes: Callable[[type[BaseException]], int]
) -> None:
    with closing(intercode.make(name, errors="value")) as env:
        env.reset(seed=0)
        with pytest.raises(error), struck_in_a_call(env, strikes(error)):
            env.step(ENDLESS[name])
        said = f"{error.__name__} has interrupted an action .* call reset"
        for action in (SHORT.get(name, "echo the other"), "submit"):
            with pytest.raises(EnvironmentStateError, match=said):
                env.step(action)
        episode = env.unwrapped.episode  # type: ignore[attr-defined]
        assert (episode.status, episode.score) == ("error", None)
        assert episode.error == f"interrupted by {error.__name__}"
        env.reset(seed=1)
        observation = env.step(SHORT.get(name, "echo the other"))[0]
        assert "the other" in observation
        assert env.step("submit")[2]


@pytest.mark.parametrize("name", ["bash", "sql", "python"])
def test_it_ends_a_fork_and_not_its_source(
    name: str, strikes: Callable[[type[BaseException]], int]
) -> None:
    with closing(intercode.make(name)) as env:
        env.reset(seed=0)
        [fork] = env.unwrapped.fork()  # type: ignore[attr-defined]
        with closing(fork):
            with pytest.raises(Struck), struck_in_a_call(fork, strikes(Struck)):
                fork.step(ENDLESS[name])
            with pytest.raises(EnvironmentStateError, match="Struck has interrupted"):
                fork.step("submit")
        assert "the other" in env.step(SHORT.get(name, "echo the other"))[0]


class Moment:
    """Raises `Struck` at one of the moments at which Python looks for signals.

    These are the beginning of a function, and the return from one that is not written in Python.

    Args:
        number: The moment, counted from 0.
        module: The beginning of its module's name.
    """

    def __init__(self, number: int, module: str = "intercode.") -> None:
        self._left, self._module = number, module

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        is_here = str(frame.f_globals.get("__name__")).startswith(self._module)
        if is_here and event in ("call", "c_return"):
            self._left -= 1
            if self._left < 0:
                sys.setprofile(None)
                raise Struck

    def __enter__(self) -> None:
        sys.setprofile(self)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)


def test_it_may_strike_at_any_moment_of_a_step() -> None:
    env = toy(many(1))
    for number in range(1, 10_000):  # the first moment is before any action
        env.reset()
        try:
            with Moment(number):
                env.step("first")
        except Struck:
            with pytest.raises(EnvironmentStateError, match="Struck has interrupted"):
                env.step("second")
        else:
            break
    assert 30 < number < 9_999


@pytest.mark.parametrize("module", ["intercode.databases.", "intercode.interpreters.sql"])
def test_it_may_strike_at_any_moment_of_the_wait_for_a_database(module: str) -> None:
    """Also where a session is used without an environment: the next answer is its own."""
    with closing(intercode.make("sql")) as env:
        env.reset(seed=0)
        session = env.unwrapped.workspace  # type: ignore[attr-defined]
        for number in range(10_000):
            try:
                with Moment(number, module):
                    session.execute("SELECT 1")
            except Struck:
                outcome = session.execute(f"SELECT {number} + 2")
                assert outcome.results[0].rows == ((number + 2,),)
            else:
                break
        assert number < 9_999


def test_a_worker_that_owes_an_answer_serves_no_other_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def struck(*arguments: object) -> None:
        raise Struck

    with closing(intercode.make("sql")) as env:
        env.reset(seed=0)
        worker = env.unwrapped.workspace._worker  # type: ignore[attr-defined]
        process = worker.process
        with monkeypatch.context() as patch, pytest.raises(Struck):
            patch.setattr(wire, "receive", struck)
            worker.request(("execute", "SELECT 1", 1.0, 1, 1 << 20), 1.0, 1 << 20)
        assert not worker.alive
        env.reset(seed=0)
        assert process.poll() is not None
        assert "the other" in env.step(SHORT["sql"])[0]


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_on_the_way_in_or_out_it_leaves_nothing_locked(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = toy(many(1))
    env.reset()
    real = getattr(CallGuard, method)

    def struck(self: CallGuard, *exception: object) -> None:
        if method == "__enter__":
            with monkeypatch.context() as patch:  # its caller's frame is the one that is noted
                patch.setattr(sys, "_getframe", lambda depth, get=sys._getframe: get(depth + 1))
                real(self)
        raise Struck

    with monkeypatch.context() as patch, pytest.raises(Struck):
        patch.setattr(CallGuard, method, struck)
        env.step("first")
    env.reset()
    assert env.step("second")[0] == "second\n"


def test_a_vector_is_reset_after_it_and_waits_for_no_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(step: Future[Any], timeout: float | None = None) -> None:
        raise KeyboardInterrupt  # as Ctrl-C in the first wait for a result

    with closing(intercode.make_vec("bash", 2)) as envs:
        envs.reset(seed=0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Future, "exception", interrupted)
            envs.step((ENDLESS["bash"], "echo the first"))
        with pytest.raises(EnvironmentStateError, match="call recv"):
            envs.step(("echo 1", "echo 2"))
        envs.reset(seed=1)
        assert envs.step(("echo 1", "echo 2"))[0] == ("1\n", "2\n")


def test_a_result_of_a_vector_that_it_loses_ends_that_attempt() -> None:
    envs = ThreadVectorEnv([toy(many(2)) for _ in range(2)])
    envs.reset()
    with closing(envs):
        for number in range(10_000):
            try:
                with Moment(number, "intercode.envs.vector"):
                    envs.step(("first", "first"))
            except Struck:
                running = set(envs._futures)
                if running:
                    assert envs.recv(len(running))[0] == ("first\n",) * len(running)
                for index, inner in enumerate(envs._base_envs):
                    taken = [turn.action for turn in inner.episode.turns]
                    is_over = inner.episode.status == "error"
                    assert taken == [] or is_over or index in running
                envs.reset()
                envs.step(("second", "second"))
                envs.reset()
            else:
                break
        assert 10 < number < 9_999


def test_a_vector_keeps_the_results_of_the_others_when_a_step_raises_no_exception() -> None:
    def leave() -> None:
        raise SystemExit(0)

    envs = ThreadVectorEnv([toy(many(2), Toy({"leave": leave})), toy(many(2))])
    with closing(envs):
        envs.reset()
        with pytest.raises(intercode.VectorError, match="environment 0: SystemExit") as failed:
            envs.step(("leave", "x"))
        assert failed.value.results[0][1] == "x\n"


def test_gold_that_it_has_interrupted_is_computed_again() -> None:
    cache = GoldCache()
    for number in range(10_000):
        try:
            with Moment(number, "intercode.rewards.gold"):
                assert cache.get("key", lambda: 1) == 1
        except Struck:
            assert cache.get("key", lambda: 2) == 2
            cache = GoldCache()
        else:
            break
    assert 3 < number < 9_999


def test_others_that_wait_for_gold_do_not_get_it() -> None:
    cache = GoldCache()
    results: list[object] = []

    def interrupted() -> int:
        gate()
        raise KeyboardInterrupt

    def first() -> None:
        with pytest.raises(KeyboardInterrupt):
            cache.get("key", interrupted)

    with Gate() as gate:
        threads = [
            threading.Thread(target=first),
            threading.Thread(target=lambda: results.append(cache.get("key", lambda: 2))),
        ]
        threads[0].start()
        assert gate.reached.wait(PATIENCE)
        threads[1].start()
        gate.opened.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert results == [2]
