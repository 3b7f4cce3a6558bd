"""A caller that cancels an action: it is stopped, and the episode goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

import intercode
from intercode.interpreters.base import CANCELLATION, ActionCancellation
from intercode.task import Dataset, Task
from intercode_sandbox import Limits
from waiting import PATIENCE, eventually, new_marker, sleepers

from .test_interrupted import ENDLESS, SHORT

AGAIN = 0.05
SLEEP = {
    "bash": "sleep {}; echo later",
    "python": "import subprocess\nsubprocess.run(['sleep', '{}'], check=True)\nprint('later')",
}


@contextmanager
def cancelled(when: Callable[[], object]) -> Iterator[None]:
    """Cancel what is called in the block, as soon as something holds, and again until it ends."""
    cancellation, over = ActionCancellation(), threading.Event()

    def cancel() -> None:
        if eventually(lambda: over.is_set() or when()):
            while not over.wait(AGAIN):
                cancellation.request()

    thread = threading.Thread(target=cancel)
    before = CANCELLATION.set(cancellation)
    thread.start()
    try:
        yield
    finally:
        CANCELLATION.reset(before)
        over.set()
        thread.join()


@pytest.mark.parametrize("name", ENDLESS)
def test_it_is_stopped_and_the_episode_goes_on(name: str) -> None:
    with closing(intercode.make(name)) as env:
        env.reset(seed=0)
        with cancelled(lambda: True):
            observation, *_ = env.step(ENDLESS[name])
        [turn] = env.episode.turns
        assert "interrupted" in observation and not turn.ok
        assert "timed_out" not in turn.info
        assert "the other" in env.step(SHORT.get(name, "echo the other"))[0]


@pytest.mark.parametrize("name", SLEEP)
def test_a_wait_for_output_ends(name: str) -> None:
    marker = new_marker()
    with closing(intercode.make(name, limits=Limits(timeout=PATIENCE))) as env:
        env.reset(seed=0)
        with cancelled(lambda: sleepers(marker)):
            observation, *_ = env.step(SLEEP[name].format(marker))
        [turn] = env.episode.turns
        assert "interrupted" in observation and "later" not in observation
        assert "timed_out" not in turn.info and not sleepers(marker)


def test_a_wait_for_a_screen_ends() -> None:
    with closing(intercode.make("bash", keys=True, limits=Limits(timeout=PATIENCE))) as env:
        env.reset(seed=0)
        env.step("keys Enter")
        with cancelled(lambda: True):
            env.step("keys")  # which waits until something is drawn
        assert env.episode.turns[1].seconds < PATIENCE


def test_the_score_that_follows_is_not_stopped() -> None:
    task = Task("x", "x", gold=("sleep 0.01; echo right",))
    with closing(intercode.make("bash", data=Dataset([task]), max_turns=1)) as env:
        env.reset()
        with cancelled(lambda: True):
            *_, truncated, info = env.step("sleep 100")
        assert truncated and info["success"] is False
        assert env.episode.status == "truncated" and env.episode.score is not None


def test_a_request_before_the_action_counts() -> None:
    cancellation, woken = ActionCancellation(), threading.Event()
    cancellation.request()
    with cancellation.waking(woken.set):
        assert woken.is_set()
    woken.clear()
    cancellation.request()
    assert not woken.is_set(), "nobody waits any more"
