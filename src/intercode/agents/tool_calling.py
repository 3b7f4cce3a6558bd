"""Tool calling: actions are the model's own function calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from intercode.agents.language import Strategy
from intercode.agents.talk import CUT_OFF, Talk
from intercode.envs.traits import Traits
from intercode.episode import NoAction, Turn
from intercode.models.base import Tool, ToolCall

NO_CALL = "you called no tool; every reply must call one"


class ToolCalling:
    """Takes the calls of a reply one a turn, and answers each before the model is asked again."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._calls: deque[ToolCall] = deque()
        self._open: str | None = None
        """The call whose answer is the next observation."""
        self._cut_off = False
        """Whether the last reply ended before it was complete."""
        talk.dialogue.tools = tools(talk.scene.traits)

    def act(self, observation: str, history: Sequence[Turn]) -> str:
        """The action of the next call."""
        if not history:
            self._talk.begin()
        else:
            self._talk.tell("observation", observation, call_id=self._open)
        if not self._calls:
            reply = self._talk.reply()
            self._calls.extend(reply.tool_calls)
            self._cut_off = reply.finish == "length"
        if not self._calls:
            self._open = None
            return NoAction(CUT_OFF if self._cut_off else NO_CALL)
        call = self._calls.popleft()
        self._open = call.call_id
        action = action_of(call, self._talk.scene.traits)
        if isinstance(action, NoAction) and self._cut_off and not self._calls:
            return NoAction(CUT_OFF)
        return action


def tools(traits: Traits) -> list[Tool]:
    """List the tools of an environment: its language, and ``submit``."""
    answer = [traits.answer] if traits.answer else []
    end = f"Hand in the {traits.answer}." if answer else "End the task: it is done."
    return [
        Tool(traits.language, traits.does, _schema([traits.parameter])),
        Tool("submit", end, _schema(answer)),
    ]


def action_of(call: ToolCall, traits: Traits) -> str:
    """Read the action that a call asks for; a `NoAction` says why there is none."""
    if call.name == "submit":
        answer = call.arguments.get(traits.answer) if traits.answer else None
        return f"submit {answer}" if answer else "submit"
    if call.name != traits.language:
        return NoAction(f"there is no tool {call.name!r}, only {traits.language!r} and 'submit'")
    code = call.arguments.get(traits.parameter)
    if not isinstance(code, str):
        return NoAction(f"the tool {call.name!r} needs {traits.parameter!r}, a text")
    return code


def _schema(parameters: Sequence[str]) -> Mapping[str, object]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }


TOOL_CALLING = Strategy("tool-calling", "tool_calling", ToolCalling)
