"""An environment's actions as tools: with schemas, and as functions for agents' frameworks."""

from __future__ import annotations

import inspect
import threading
import typing
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

import intercode
from intercode.envs.tools import list_tools, read_action
from intercode.envs.traits import PYTHON, SHELL, SQL, Traits
from intercode.errors import EnvironmentStateError, SandboxError
from intercode.tool_calls import ActionTool, Tool
from waiting import PATIENCE

from .conftest import MakeEnv, kill_sandbox
from .toy import Gate, Toy, many, toy

FLAG = replace(SHELL, answer="flag")


@pytest.mark.parametrize(
    ("traits", "code", "answer", "required"),
    [
        (SHELL, {"bash": ["command"]}, [], []),
        (SQL, {"sql": ["statement"]}, [], []),
        (PYTHON, {"python": ["code"]}, ["function"], []),
        (FLAG, {"bash": ["command"]}, ["flag"], ["flag"]),
    ],
)
def test_each_language_has_a_tool_and_there_is_submit(
    traits: Traits, code: dict[str, list[str]], answer: list[str], required: list[str]
) -> None:
    run, submit = list_tools(traits)
    assert {run.name: run.parameters["required"]} == code
    assert (submit.name, list(submit.parameters["properties"])) == ("submit", answer)
    assert submit.parameters["required"] == required
    for tool in (run, submit):
        described = [field["description"] for field in tool.parameters["properties"].values()]
        assert all([tool.description, *described])


def test_a_call_is_the_action_that_it_stands_for(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(options={"task_id": "sort"})
    assert [tool.name for tool in env.tools] == ["bash", "submit"]
    assert env.call("bash", {"command": "sort in.txt > out.txt; echo done"})[0] == "done\n"
    _, reward, terminated, _, info = env.call("submit", {})
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    with pytest.raises(EnvironmentStateError):
        env.call("bash", {"command": "ls"})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("python", {"code": "1"}, "no tool 'python', only 'bash' and 'submit'"),
        ("bash", {}, "the tool 'bash' needs 'command', a text"),
        ("bash", {"command": 3}, "the tool 'bash' needs 'command', a text"),
    ],
)
def test_a_call_that_makes_no_sense_is_a_turn_of_the_models(
    name: str, arguments: dict[str, Any], said: str
) -> None:
    env = toy(many(1))
    env.reset()
    observation, *_, info = env.call(name, arguments)
    assert said in observation and info["turn"] == 1
    assert env.episode.turns[0].info["invalid"]


def test_functions_say_what_frameworks_read() -> None:
    env = toy(many(1))
    env.traits = PYTHON
    python, submit = intercode.tools(env)
    assert (python.__name__, submit.__name__) == ("python", "submit")
    assert typing.get_type_hints(python) == {"code": str, "return": str}
    assert inspect.signature(python).parameters["code"].annotation is str  # not a text
    assert inspect.signature(submit).parameters["function"].default == ""
    assert inspect.getdoc(python) == (
        "Run code at the Python prompt.\n\n"
        "Args:\n    code: The code, of one line or several.\n\n"
        "Returns:\n    What the prompt would show."
    )
    assert inspect.getsource(python).startswith("def python(code: str) -> str:")


def test_functions_play_an_episode_and_say_when_it_is_over(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(options={"task_id": "count"})
    bash, submit = functions = intercode.tools(env)
    assert bash("printf '\\377'") == "?"  # text that JSON can carry
    assert bash(command="ls w | wc -l") == "3\n"
    assert (functions.done, functions.reward) == (False, None)
    assert submit() == "[the episode has ended]"
    assert (functions.done, functions.reward) == (True, 1.0)
    assert bash("ls") == submit() == "[the episode has ended: this call did nothing]"
    env.reset(options={"task_id": "count"})
    assert not functions.done and "w" in bash("ls")


def test_the_last_turn_is_shown_with_its_end(make_env: MakeEnv) -> None:
    env = intercode.TimeLimit(make_env(), max_episode_steps=1)
    assert isinstance(env, gymnasium.Wrapper)
    env.reset(options={"task_id": "count"})
    bash, _ = functions = intercode.tools(env)
    assert bash("ls w | wc -l") == "3\n[the episode has ended: its turn limit is reached]"
    assert functions.reward == 1.0


def test_a_lost_sandbox_is_raised_and_no_reward(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(options={"task_id": "count"})
    bash, _ = functions = intercode.tools(env)
    kill_sandbox(env)
    with pytest.raises(SandboxError):
        bash("ls")
    assert (functions.done, functions.reward) == (True, None)


def test_calls_from_several_threads_wait_for_each_other() -> None:
    with Gate() as gate:
        env = toy(many(1), Toy({"wait": gate}))
        env.reset()
        bash, _ = intercode.tools(env)
        said: list[str] = []

        def call(text: str) -> None:
            said.append(bash(text))

        threads = [threading.Thread(target=call, args=(text,)) for text in ("wait", "next")]
        threads[0].start()
        assert gate.reached.wait(PATIENCE)
        threads[1].start()
        gate.opened.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(said) == ["next\n", "wait\n"]


def test_an_environment_may_have_more_tools() -> None:
    peek = ActionTool(
        Tool(
            "peek",
            "Look.",
            {
                "type": "object",
                "properties": {"from": {"type": "integer", "description": "The line."}},
                "required": ["from"],
            },
        ),
        lambda arguments: f"peek {arguments['from']}",
        lambda action: {"from": int(action[5:])} if action.startswith("peek ") else None,
    )
    traits = replace(SHELL, more=(peek,))
    assert [tool.name for tool in list_tools(traits)] == ["bash", "peek", "submit"]
    env = toy(many(1))
    env.traits = traits
    env.reset()
    assert env.call("peek", {"from": 3})[0] == "peek 3\n"
    _, look, _ = intercode.tools(env)
    assert look(4) == look(from_=4) == "peek 4\n"
    said = read_action(intercode.tool_calls.ToolCall("", "x", {}), traits)
    assert said == "" and "'bash', 'peek' and 'submit'" in said.note  # type: ignore[attr-defined]


def test_traits_still_give_a_list_of_tools_and_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"env\.tools lists"):
        assert intercode.tools(SHELL) == list_tools(SHELL)
