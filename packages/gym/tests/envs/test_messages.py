"""An episode so far as chat messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

import intercode
from intercode.agents.parser import find_code
from intercode.envs.tools import read_action, read_call
from intercode.envs.traits import PYTHON, SHELL, SQL
from intercode.episode import NoAction
from intercode.errors import EnvironmentStateError, UsageError
from intercode.tool_calls import ToolCall

from .conftest import MakeEnv
from .test_tools import FLAG
from .toy import many, toy

ACTIONS = ["ls w", "cat <<'E'\n```bash\nx\n```\nE", "printf '\\377'", "echo `date`"]


def played(make_env: MakeEnv) -> Any:
    env = make_env()
    env.reset(options={"task_id": "count"})
    for action in ACTIONS:
        env.step(action)
    return env


def test_as_a_dialogue_with_blocks_of_code(make_env: MakeEnv) -> None:
    env = played(make_env)
    system, task, *rest = env.messages()
    assert (system["role"], task["role"]) == ("system", "user")
    assert "Bash on Linux" in system["content"] and env.episode.query in task["content"]
    assert [message["role"] for message in rest] == ["assistant", "user"] * len(ACTIONS)
    assert [find_code(message["content"], "bash") for message in rest[::2]] == ACTIONS
    assert "a\nb\nc" in rest[1]["content"] and "?" in rest[5]["content"]
    env.step("submit")
    *same, last = env.messages()
    assert same == [system, task, *rest] and find_code(last["content"], "bash") == "submit"


def test_as_calls_of_tools(make_env: MakeEnv) -> None:
    env = played(make_env)
    env.step(NoAction("you called no tool"))
    env.call("submit", {})
    _, _, *rest = env.messages("tools")
    calls = [message["tool_calls"][0] for message in rest if "tool_calls" in message]
    functions = [call["function"] for call in calls]
    assert [one["name"] for one in functions] == [*["bash"] * len(ACTIONS), "submit"]
    given = [json.loads(one["arguments"]) for one in functions]
    assert [one.get("command") for one in given] == [*ACTIONS, None]
    answered = [message["tool_call_id"] for message in rest if message["role"] == "tool"]
    assert answered == [call["id"] for call in calls[:-1]]
    assert len({call["id"] for call in calls}) == len(calls)
    told = rest[-2]
    assert told["role"] == "user" and told["content"].startswith("[you called no tool]\n")


def test_as_they_are(make_env: MakeEnv) -> None:
    env = played(make_env)
    query, *rest = env.messages("plain")
    assert query == {"role": "user", "content": env.episode.query}
    assert [message["content"] for message in rest[::2]] == ACTIONS
    assert rest[-1]["role"] == "user"  # the model is next
    json.dumps(env.messages("plain")).encode()
    env.step("submit")
    assert env.messages("plain")[-1] == {"role": "assistant", "content": "submit"}


@pytest.mark.parametrize("name", ["ctf", "sql", "python", "swe"])
def test_every_environment_tells_its_episodes(name: str) -> None:
    env = intercode.make(name)
    env.reset(seed=0)
    env.step("SELECT 1" if name == "sql" else "1 + 1")
    for style in ("chat", "tools", "plain"):
        assert env.messages(style)[-1]["role"] in ("user", "tool")
    env.close()


def test_a_call_and_its_action_are_inverse() -> None:
    for traits in (SHELL, SQL, PYTHON, FLAG):
        answer = traits.answer or traits.may_answer
        actions = ["a\nb", "submit now please", "submit", *(["submit x"] if answer else [])]
        for action in actions:
            name, arguments = read_call(action, traits)
            assert read_action(ToolCall("", name, arguments), traits) == action


def test_what_is_refused() -> None:
    env = toy(many(1))
    with pytest.raises(EnvironmentStateError, match="call reset"):
        env.messages()
    env.reset()
    with pytest.raises(UsageError, match="no style of messages 'chats'"):
        env.messages("chats")
