"""Environments whose results go over a wire: valid texts, and failures as values."""

from __future__ import annotations

import json
import math
from contextlib import closing
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, strategies as st

import intercode
from intercode import exact, plain
from intercode.envs.bash import BashEnv
from intercode.envs.vector import ThreadVectorEnv
from intercode.errors import ActionError, SandboxError, UsageError
from intercode.task import Dataset, Task

from .conftest import TASKS, kill_sandbox
from .toy import Toy, many, toy

ANY = st.text(st.characters(exclude_categories=()) | st.sampled_from("\ufffd\udce9\ud83d8u"))


@given(ANY)
@example("\ufffde9\ufffd\ufffd\ufffdud83d\udce9e9")
@example("\ufffd\udcff\udc80\ud800\udfff\udc7f")
def test_every_text_is_plain_and_comes_back_exactly(text: str) -> None:
    sent = plain(text)
    assert exact(json.loads(json.dumps(sent, ensure_ascii=False).encode())) == text
    assert exact(sent) == text
    if "\ufffd" not in text and text.encode("utf-8", "replace").decode() == text:
        assert sent == text


@given(st.recursive(ANY | st.integers() | st.none(), lambda inner: st.dictionaries(ANY, inner)))
def test_so_does_data(data: Any) -> None:
    json.dumps(plain(data), ensure_ascii=False).encode()
    assert exact(plain(data)) == data


def test_the_escapes_are_those_of_the_reference() -> None:
    assert plain("caf\udce9") == "caf\ufffde9"
    assert plain("\ufffd and \ud83d") == "\ufffd\ufffd and \ufffdud83d"
    assert exact("\ufffd?") == "\ufffd?"  # no escape


def test_all_that_leaves_is_valid_and_an_escaped_name_can_be_used() -> None:
    odd = Task(
        "caf\udce9", "Read \udcff.", ("true",), tags=("\udcfe",), setup="echo x >$'caf\\xe9'"
    )
    env = BashEnv(Dataset([odd]), observations="utf-8", render_mode="ansi")
    with closing(env):
        query, info = env.reset(task_id=plain(odd.task_id))
        assert query == "Read \ufffdff." and info["tags"] == ("\ufffdfe",)
        name, *_, first = env.step("ls; printf '\\xfe'")
        assert name == "caf\ufffde9\n\ufffdfe"
        content, *_, second = env.step("cat caf\ufffde9")
        assert content == "x\n"
        rendered = env.render()
        assert rendered is not None and "cat caf\ufffde9" in rendered
        json.dumps([query, info, name, first, second, rendered], ensure_ascii=False).encode()
        assert env.episode.turns[0].observation == "caf\udce9\n\udcfe"  # the record is exact
        assert env.episode.turns[1].action == "cat caf\udce9"


def test_without_it_texts_are_as_before() -> None:
    with closing(BashEnv(TASKS)) as env:
        env.reset(task_id="count")
        assert env.step("printf '\\xe9\ufffde9'")[0] == "\udce9\ufffde9"


@pytest.mark.parametrize("option", ["observations", "errors"])
def test_another_value_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} must be '.*' or '.*', not 'maybe'"):
        toy(many(1), **{option: "maybe"})


def test_a_lost_sandbox_is_a_value_and_the_record_counts_an_error() -> None:
    with closing(BashEnv(TASKS, errors="value")) as env:
        env.reset(task_id="count")
        kill_sandbox(env)
        observation, reward, terminated, truncated, info = env.step("echo 3")
        assert (observation, terminated, truncated) == ("", False, True) and math.isnan(reward)
        assert info["error"]["kind"] == "infrastructure"
        assert info["error"]["type"].startswith("Sandbox") and info["error"]["message"]
        json.dumps(info)
        assert (env.episode.status, env.episode.score) == ("error", None)
        _, info = env.reset(task_id="count")
        assert "error" not in info and env.step("echo 3")[0] == "3\n"


def test_a_reset_that_fails_says_so_and_the_next_step_ends_it() -> None:
    place = Toy()
    env = toy(many(2), place, errors="value")
    place.lost = True
    query, info = env.reset(task_id="1")
    assert query == "Do 1."
    assert info["error"] == {
        "kind": "infrastructure",
        "type": "SandboxError",
        "message": "there is no place",
    }
    _, reward, terminated, truncated, told = env.step("a")
    assert math.isnan(reward) and (terminated, truncated) == (False, True)
    assert told["error"] == info["error"]
    with pytest.raises(intercode.EnvironmentStateError, match="has ended"):
        env.step("a")
    place.lost = False
    env.reset()
    assert env.step("a")[0] == "a\n"
    place.lost = True
    env.reset()  # and then one that is well: nothing is left of the error
    place.lost = False
    env.reset()
    assert env.step("a")[0] == "a\n"


def test_what_a_task_is_to_blame_for_is_told_without_its_text() -> None:
    task = Task("a", "q", setup="echo the gold is 42 >&2; false", gold=("echo 42",))
    with closing(BashEnv(Dataset([task]), errors="value")) as env:
        _, info = env.reset()
    assert (info["error"]["kind"], info["error"]["type"]) == ("task", "TaskError")
    assert "42" not in str(info) and "42" in str(env.episode.error)


def test_what_a_caller_or_an_agent_does_is_no_such_value() -> None:
    env = toy(many(1), errors="value")
    with pytest.raises(intercode.TaskNotFoundError):
        env.reset(task_id="none")
    env.reset()
    with pytest.raises(ActionError):
        env.step(3)  # type: ignore[arg-type]
    with closing(BashEnv(TASKS, errors="value")) as bash:
        bash.reset(task_id="count")
        *_, reward, _, _, info = bash.step("kill -9 $$; exit")
        assert not math.isnan(reward) and "error" not in info


def test_a_permanent_refusal_is_raised_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that goes on with values would train on nothing, to its end."""
    env = toy(many(2), errors="value")
    envs = ThreadVectorEnv([toy(many(2), errors="value") for _ in range(2)])

    def refuse(*_: Any) -> NoReturn:
        raise intercode.SandboxUnavailableError("namespaces are not permitted")

    with closing(envs), monkeypatch.context() as patch:
        patch.setattr(Toy, "open", refuse)
        with pytest.raises(intercode.SandboxUnavailableError, match="not permitted"):
            env.reset()
        assert env.episode.status == "error"
        with pytest.raises(intercode.VectorError, match="SandboxUnavailableError"):
            envs.reset()
    env.reset()
    assert env.step("a")[0] == "a\n"


def test_by_default_failures_are_raised() -> None:
    place = Toy()
    place.lost = True
    with pytest.raises(SandboxError):
        toy(many(1), place).reset()


def test_in_a_vector_the_others_go_on() -> None:
    places = [Toy(), Toy()]
    envs = ThreadVectorEnv([toy(many(4), place, errors="value") for place in places])
    with closing(envs):
        places[0].lost = True
        _, infos = envs.reset()
        assert infos["error"]["type"][0] == "SandboxError" and list(infos["_error"]) == [
            True,
            False,
        ]
        observations, rewards, _, truncated, infos = envs.step(("a", "a"))
        assert observations == ("", "a\n") and math.isnan(rewards[0])
        assert list(truncated) == [True, False] and infos["error"]["kind"][0] == "infrastructure"
        places[0].lost = False
        assert envs.step(("ignored", "a"))[0][0].startswith("Do ")
        assert envs.step(("b", "a"))[0] == ("b\n", "a\n")


def test_a_task_is_chosen_by_id_or_index() -> None:
    env = toy(many(3))
    for chosen in ({"task_id": "2"}, {"task_id": 2}, {"index": 2}):
        assert env.reset(**chosen)[0] == env.reset(options=chosen)[0] == "Do 2."  # type: ignore[arg-type]
    for wrong in ({"task_id": "3"}, {"index": 3}, {"index": -1}, {"index": "0"}, {"index": True}):
        with pytest.raises(intercode.TaskNotFoundError, match=r"many: "):
            env.reset(**wrong)  # type: ignore[arg-type]
    for twice in ({"task_id": "1", "index": 1}, {"task_id": "1", "options": {"task_id": "1"}}):
        with pytest.raises(UsageError):
            env.reset(**twice)  # type: ignore[arg-type]


def test_choosing_a_task_leaves_the_order_alone() -> None:
    plainly, choosing = toy(many(5)), toy(many(5))
    expected = [plainly.reset(seed=1)[0], *(plainly.reset()[0] for _ in range(4))]
    met = [choosing.reset(seed=1)[0]]
    for _ in range(4):
        choosing.reset(index=0)
        met.append(choosing.reset()[0])
    assert met == expected
