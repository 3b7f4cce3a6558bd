"""An environment of a server does what it does in process: values, errors and `info`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import intercode
from serve.served import Served, told

Pair = tuple[Any, Any]


def outcome(call: Callable[[], Any]) -> Any:
    """The value of a call, or its error's class and message."""
    try:
        return call()
    except intercode.InterCodeError as error:
        return type(error), str(error)


RESETS: dict[str, dict[str, Any]] = {
    "an index": {"index": 1},
    "an unknown id": {"task_id": "nobody"},
    "an unknown index": {"index": 10**6},
    "no index": {"index": "1"},
    "two choices": {"task_id": "nobody", "index": 0},
    "twice": {"index": 0, "options": {"index": 0}},
    "an unknown option": {"options": {"image": "mine"}},
    "a seed": {"seed": 3},
}
ACTIONS: dict[str, Any] = {
    "a command": "SELECT 1",
    "nothing": "",
    "a NUL": "a\0b",
    "a byte": "printf '\udcff'",
    "half a pair": "echo \ud800",
    "a mark": "printf '\ufffd'",
    "not a text": 5,
    "bytes": b"ls",
    "submit": "submit",
    "submit more": " submit more",
    "skip": "skip",
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a tool that is not there": ("nothing", {}),
    "a tool without its argument": ("submit", {"answer": 5}),
    "a tool's wrong argument": ("bash", {"command": 5}),
}
steps = st.sampled_from([*RESETS, *ACTIONS, *CALLS])


def act(env: Any, name: str) -> Any:
    if name in RESETS:
        return outcome(lambda: env.reset(**RESETS[name]))
    if name in CALLS:
        return outcome(lambda: env.call(*CALLS[name]))
    return outcome(lambda: env.step(ACTIONS[name]))


@settings(max_examples=30)
@given(names=st.lists(steps, max_size=16))
def test_any_calls(both: Pair, names: list[str]) -> None:
    here, there = both
    for name in ("a seed", *names):
        assert act(there, name) == act(here, name), name
        assert told(there) == told(here), name


def test_before_the_first_reset(kind: str, server: Served) -> None:
    with closing(intercode.connect(f"{server.url}/{kind}")) as there:
        with closing(intercode.make(kind).unwrapped) as here:
            for name in (*ACTIONS, *CALLS):
                assert act(there, name) == act(here, name) and act(there, name)[0] is not None
        assert [tool.name for tool in there.tools] == [kind, "submit"]


def test_too_many_turns_and_messages(both: Pair) -> None:
    here, there = both
    for env in both:
        env.reset(index=0)
    for _ in range(here.max_turns):
        last = there.step("SELECT 1")
        assert last == here.step("SELECT 1")
    assert last[2:4] == (False, True)
    for style in ("chat", "plain", "tools"):
        assert there.messages(style) == here.messages(style)


def test_the_order_of_a_seed(both: Pair) -> None:
    here, there = both
    for seed in (7, None, None):
        assert there.reset(seed=seed)[1] == here.reset(seed=seed)[1]


def test_escaped_texts(server: Served) -> None:
    with (
        closing(intercode.make("bash", observations="utf-8")) as here,
        closing(intercode.connect(server.url, observations="utf-8")) as there,
    ):
        for env in (here, there):
            env.reset(index=0)
        for action in ("printf '\\377'", intercode.plain("printf '\udcff'")):
            assert there.step(action) == here.step(action)


def test_a_vector(server: Served) -> None:
    here = intercode.make_vec("bash", 3, seed=5)
    there = intercode.connect_vec([server.url, f"{server.url}/bash"], 3, seed=5)
    try:
        texts, infos = there.reset()
        expected, known = here.reset()
        assert texts == expected and list(infos["task_id"]) == list(known["task_id"])
        for actions in (["pwd", "ls", "false"], ["submit", "skip", "ls"], ["ls"] * 3):
            ours, theirs = there.step(actions), here.step(actions)
            assert ours[0] == theirs[0] and list(ours[1]) == list(theirs[1])
            assert list(ours[2]) == list(theirs[2]) and list(ours[3]) == list(theirs[3])
        with pytest.raises(intercode.ForkError):
            there.fork(0)
    finally:
        here.close()
        there.close()


def test_a_wrong_address(server: Served) -> None:
    for url in ("bash", "ftp://host", f"{server.url}/bush"):
        with pytest.raises(intercode.UsageError, match=r"bu?a?s?h|ftp"):
            intercode.connect(url)
    with pytest.raises(intercode.UsageError, match="at least one URL"):
        intercode.connect_vec([])
    with pytest.raises(intercode.UsageError, match="num_envs must be at least 1, not 0"):
        intercode.connect_vec(server.url, 0)
    with pytest.raises(intercode.TaskError, match="test"):
        intercode.connect(server.url, split="test")
