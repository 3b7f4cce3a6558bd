"""`langgraph_agent.py`, `smolagents_agent.py` and `openai_agents.py`, with scripted models."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parents[1]))  # its folder `agents` hides the SDK of that name

import langgraph_agent
import openai_agents
import pytest
import smolagents_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from openai import AsyncOpenAI
from smolagents import OpenAIServerModel

import intercode
from agents import OpenAIChatCompletionsModel, set_tracing_disabled
from intercode.errors import SandboxError
from intercode.models.base import Message, ToolCall
from intercode.models.scripted import Line
from intercode_integrations.testing.server import ScriptedServer

os.environ["LANGSMITH_TRACING"] = "false"
set_tracing_disabled(True)
TASK = intercode.load_dataset("bash").by_id("archive-01")
Calls = Sequence[tuple[str, dict[str, str]]]
"""The calls of tools that a model asks for, one after the other; then it stops."""
SUBMIT = ("submit", {})
GOLD = ("bash", {"command": TASK.gold[0]})
BAD = ("bash", {"command": "echo no"})


def serving(calls: Calls) -> ScriptedServer:
    """A server of a model that asks for these calls."""

    def say(messages: Sequence[Message]) -> Line:
        said = sum(message.role == "assistant" for message in messages)
        if said >= len(calls):
            return Line("Done.")
        name, arguments = calls[said]
        return Line(calls=(ToolCall(f"call-{said}", name, arguments),), finish="tool_calls")

    return ScriptedServer(say)


class FakeChat(GenericFakeChatModel):
    """A chat model that takes tools, and says what it is given to say."""

    def bind_tools(self, tools: Any, **options: Any) -> FakeChat:
        assert [tool.name for tool in tools] == ["bash", "submit"]
        return self


def with_langgraph(calls: Calls) -> float | None:
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": str(at)}])
        for at, (name, arguments) in enumerate(calls)
    ]
    return langgraph_agent.solve(TASK.task_id, FakeChat(messages=iter([*said, AIMessage("Done.")])))


def with_smolagents(calls: Calls) -> float | None:
    final = ("final_answer", {"answer": "done"})
    with serving([*calls, final]) as server:
        model = OpenAIServerModel("scripted", api_base=server.url, api_key="x")
        return smolagents_agent.solve(TASK.task_id, model)


def with_openai(calls: Calls) -> float | None:
    with serving(calls) as server:
        client = AsyncOpenAI(base_url=server.url, api_key="x")
        model = OpenAIChatCompletionsModel("scripted", openai_client=client)
        return asyncio.run(openai_agents.solve(TASK.task_id, model))


every = pytest.mark.parametrize("solve", [with_langgraph, with_smolagents, with_openai])
Solve = Callable[[Calls], "float | None"]


@every
@pytest.mark.parametrize("calls", [[GOLD, SUBMIT], [GOLD], [BAD, GOLD, SUBMIT]])
def test_a_model_that_solves_the_task(solve: Solve, calls: Calls) -> None:
    """Also one that stops without submit."""
    assert solve(calls) == 1.0


@every
@pytest.mark.parametrize("calls", [[BAD, SUBMIT], [BAD], [], [BAD] * 14])
def test_one_that_does_not(solve: Solve, calls: Calls) -> None:
    """Also one that has no turn left."""
    assert solve(calls) == 0.0


@every
def test_a_lost_sandbox_is_not_a_reward(solve: Solve, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: object, action: str) -> None:
        raise SandboxError("the sandbox was lost")

    monkeypatch.setattr("intercode.envs.bash.BashEnv.step", lost)
    with pytest.raises(Exception, match="the sandbox was lost"):
        solve([GOLD, SUBMIT])
