"""Tool calling: actions are the model's own function calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from intercode.agents.language import Strategy
from intercode.agents.scene import Scene
from intercode.agents.talk import CUT_OFF, Talk
from intercode.episode import NoAction, Turn
from intercode.models.base import Tool, ToolCall

_CODE: Mapping[str, tuple[str, str]] = {
    "bash": ("command", "Run a command in the shell."),
    "sql": ("statement", "Run a statement in the database."),
    "python": ("code", "Run code at the Python prompt."),
}
"""Language → the name of its tool's parameter, and what the tool does."""
_ANY = ("code", "Run code.")
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
        talk.dialogue.tools = tools(talk.scene)

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
        action = action_of(call, self._talk.scene)
        if isinstance(action, NoAction) and self._cut_off and not self._calls:
            return NoAction(CUT_OFF)
        return action


def tools(scene: Scene) -> list[Tool]:
    """The tools of an environment: its language, and ``submit``."""
    parameter, what = _CODE.get(scene.language, _ANY)
    flag = ["flag"] if scene.env == "ctf" else []
    end = "Hand in the flag." if flag else "End the task: it is done."
    return [
        Tool(scene.language, what, _schema([parameter])),
        Tool("submit", end, _schema(flag)),
    ]


def action_of(call: ToolCall, scene: Scene) -> str:
    """What a call asks for; a `NoAction` that says what is wrong with it."""
    if call.name == "submit":
        flag = call.arguments.get("flag")
        return f"submit {flag}" if scene.env == "ctf" and flag else "submit"
    if call.name != scene.language:
        return NoAction(f"there is no tool {call.name!r}, only {scene.language!r} and 'submit'")
    parameter, _ = _CODE.get(scene.language, _ANY)
    code = call.arguments.get(parameter)
    if not isinstance(code, str):
        return NoAction(f"the tool {call.name!r} needs {parameter!r}, a text")
    return code


def _schema(parameters: Sequence[str]) -> Mapping[str, object]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }


TOOL_CALLING = Strategy("tool-calling", "tool_calling", ToolCalling)
