"""Requests converted to InterCode's form, for `intercode_integrations.testing.server`.

A script is stateless: it receives the dialogue, and counts its turns by the messages of the
assistant. A model's whole reply must therefore be one message, even if a protocol splits it into
items or an agent into messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from intercode.models import responses
from intercode.models.base import Message, Request, Role, Settings, Tool, ToolCall
from intercode.models.scripted import Line, Script
from intercode.models.wire import arguments, extract_text

COMPLETION = 16
"""Tokens of a completion without a limit: a trap of the protocol."""
SHELL = "shell"
"""A script's name for an agent's shell tool, independent of the agent's own name."""
_SHELLS = {"bash", "exec_command", "execute_bash", "execute_command", "local_shell", "run_command"}
_SHELLS |= {SHELL, "run_shell_command", "shell_command", "terminal"}
"""Names of shell tools, in lower case: of Claude Code, Codex, OpenHands, Gemini CLI and others."""
_COMMANDS = ("command", "cmd", "code", "script")
"""Parameters for the command."""
_DEFAULT_VALUES: dict[object, object] = {"boolean": False, "integer": 1, "number": 1, "array": []}
"""Values of further required parameters of a tool, by type."""

Body = Mapping[str, Any]


def shell(command: str, text: str = "") -> Line:
    """Make a line that runs a command with the agent's own shell tool.

    The server finds the tool by its name, and the form of its arguments by its schema. If a request
    offers no shell tool (agents also request titles and summaries), the line is its text, or
    ``ok``.
    """
    return Line(text, (ToolCall("", SHELL, {"command": command}),), "tool_calls")


def request(path: str, body: Body) -> Request:
    """Return a request in InterCode's form."""
    return Request(tuple(_messages(path, body)), _settings(path, body), tuple(_tools(path, body)))


def turn(messages: Iterable[Message]) -> int:
    """Return the number of the model's messages."""
    return sum(message.role == "assistant" for message in messages)


def fit_script(base_script: Script, tools: Sequence[Tool]) -> Script:
    """Return a script whose calls of `SHELL` are calls of the shell tool among these tools."""

    def fit(messages: Sequence[Message]) -> Line:
        line, turn_count = base_script(messages), turn(messages)
        calls: list[ToolCall] = []
        for call_index, call in enumerate(line.calls):
            # Ids of calls must be unique in a dialogue.
            identified_call = replace(
                call, call_id=call.call_id or f"call_{turn_count}_{call_index}"
            )
            if call.name != SHELL:
                calls.append(identified_call)
            elif (tool := _find_shell_tool(tools)) is not None:
                call_arguments = _command_arguments(tool, str(call.arguments.get("command", "")))
                calls.append(replace(identified_call, name=tool.name, arguments=call_arguments))
        if line.calls and not calls:
            return Line(line.text or "ok")
        return replace(line, calls=tuple(calls))

    return fit


def _find_shell_tool(tools: Sequence[Tool]) -> Tool | None:
    name_matches = (tool for tool in tools if tool.name.lower() in _SHELLS)
    parameter_matches = (tool for tool in tools if {"command", "cmd"} & _properties(tool).keys())
    return next(name_matches, None) or next(parameter_matches, None)


def _properties(tool: Tool) -> dict[str, Any]:
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    return properties


def _command_arguments(tool: Tool, command: str) -> dict[str, Any]:
    properties = _properties(tool)
    name = next((name for name in _COMMANDS if name in properties), "command")
    listed = properties.get(name, {}).get("type") == "array"
    values: dict[str, Any] = {name: ["bash", "-lc", command] if listed else command}
    for parameter in tool.parameters.get("required", ()):
        schema = properties.get(parameter, {})
        choices = schema.get("enum") or [_DEFAULT_VALUES.get(schema.get("type"), "act")]
        values.setdefault(parameter, choices[0])
    return values


def _tools(path: str, body: Body) -> Iterable[Tool]:
    """Return the tools that have names; tools that a provider runs itself may have none."""
    for entry in body.get("tools") or ():
        tool = entry.get("function", entry) if path == "chat/completions" else entry
        schema = tool.get("input_schema") or tool.get("parameters") or {}
        if "name" in tool:
            yield Tool(tool["name"], tool.get("description") or "", schema)


def _settings(path: str, body: Body) -> Settings:
    """Return the settings of a request that a script can respect."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    limits = [body[name] for name in names if body.get(name) is not None]
    default_limit = COMPLETION if path == "completions" else None
    stop = body.get("stop") or body.get("stop_sequences") or ()
    return Settings(
        max_tokens=limits[0] if limits else default_limit,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _messages(path: str, body: Body) -> list[Message]:
    """Return the dialogue of a request."""
    if path == "completions":
        return [Message("user", str(body.get("prompt", "")))]
    if path == "responses":
        return _join_assistant_messages(_input_messages(body))
    system = [Message("system", extract_text(body["system"]))] if body.get("system") else []
    dialogue = [*system, *map(_message, body.get("messages", ()))]
    return _join_assistant_messages(dialogue) if path == "messages" else dialogue


def _message(data: Body) -> Message:
    calls = [
        ToolCall(call.get("id", ""), function["name"], arguments(function.get("arguments")))
        for call in data.get("tool_calls") or ()
        for function in [call["function"]]
    ]
    content = data.get("content")
    blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
    calls += [
        ToolCall(block["id"], block["name"], arguments(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return Message(_role(data), _message_text(content), tuple(calls), data.get("tool_call_id"))


def _input_messages(body: Body) -> Iterable[Message]:
    """Return the dialogue in the items of ``responses``."""
    if body.get("instructions"):
        yield Message("system", extract_text(body["instructions"]))
    input_items = body.get("input") or ()
    for item in (
        [{"role": "user", "content": input_items}] if isinstance(input_items, str) else input_items
    ):
        kind = item.get("type", "message")
        if kind == "message":
            yield Message(_role(item), _message_text(item.get("content")))
        elif kind.endswith("_output"):
            yield Message("tool", _message_text(item.get("output")), (), item.get("call_id"))
        elif kind.endswith("_call"):
            yield Message("assistant", "", (responses.call(item),))
        elif kind == "reasoning":
            yield Message("assistant", "")


def _join_assistant_messages(messages: Iterable[Message]) -> list[Message]:
    """Join consecutive messages of an assistant."""
    joined_messages: list[Message] = []
    for message in messages:
        if joined_messages and message.role == joined_messages[-1].role == "assistant":
            last_message = joined_messages.pop()
            text = "\n".join(filter(None, (last_message.content, message.content)))
            message = Message("assistant", text, last_message.tool_calls + message.tool_calls)
        joined_messages.append(message)
    return joined_messages


def _role(data: Body) -> Role:
    role: Role = data.get("role", "user")
    return "system" if role == "developer" else role  # type: ignore[comparison-overlap]


def _message_text(content: Any) -> str:
    """Return a message's text, including tool results in Anthropic's blocks."""
    if not isinstance(content, list):
        return extract_text(content) if isinstance(content, str | None) else json.dumps(content)
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    return " ".join(_message_text(part.get("text", part.get("content", ""))) for part in parts)
