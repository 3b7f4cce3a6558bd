"""Requests of all protocols, converted to InterCode's form for the scripted server.

A script is stateless: it receives the whole dialogue, and counts the model's turns by the messages
of the assistant. Therefore each reply of the model must be one message. Some protocols split a
reply into items, and some agents into messages; this module joins them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from intercode.models import responses_decoding
from intercode.models.base import Message, Request, Role, Settings, Tool, ToolCall
from intercode.models.response_parsing import arguments, extract_text
from intercode.models.scripted import Line, Script

COMPLETION = 16
"""Maximum tokens of a completion if the request sets no limit, as in OpenAI's own protocol."""
SHELL = "shell"
"""Name by which a script refers to an agent's shell tool, whatever the agent calls the tool."""
_SHELLS = {"bash", "exec_command", "execute_bash", "execute_command", "local_shell", "run_command"}
_SHELLS |= {SHELL, "run_shell_command", "shell_command", "terminal"}
"""Names of shell tools in Claude Code, Codex, OpenHands, Gemini CLI and others, in lower case."""
_COMMANDS = ("command", "cmd", "code", "script")
"""Parameters of shell tools that contain the command."""
_DEFAULT_VALUES: dict[object, object] = {"boolean": False, "integer": 1, "number": 1, "array": []}
"""Type → value for any other required parameter of a tool."""

Body = Mapping[str, Any]


def shell(command: str, text: str = "") -> Line:
    """Return a scripted line that runs a command with the agent's own shell tool.

    The server finds the shell tool of a request by its name, and the form of the arguments by its
    schema. Some requests offer no shell tool, because agents also ask for titles and summaries. The
    reply to such a request is `text`, or ``ok`` if `text` is empty.

    Args:
        command: The shell command.
        text: The text before the tool call.
    """
    return Line(text, (ToolCall("", SHELL, {"command": command}),), "tool_calls")


def request(path: str, body: Body) -> Request:
    """Convert a request to InterCode's form.

    Args:
        path: The endpoint's path, without ``/v1``.
        body: The body of the request.
    """
    return Request(tuple(_messages(path, body)), _settings(path, body), tuple(_tools(path, body)))


def turn(messages: Iterable[Message]) -> int:
    """Return the number of messages in a dialogue that the model has written."""
    return sum(message.role == "assistant" for message in messages)


def fit_script(base_script: Script, tools: Sequence[Tool]) -> Script:
    """Return a script that calls the shell tool among `tools` where `base_script` calls `SHELL`."""

    def fit(messages: Sequence[Message]) -> Line:
        line, turn_count = base_script(messages), turn(messages)
        tool_calls: list[ToolCall] = []
        for call_index, tool_call in enumerate(line.calls):
            # The ids of all calls in a dialogue must differ.
            identified_call = replace(
                tool_call, call_id=tool_call.call_id or f"call_{turn_count}_{call_index}"
            )
            if tool_call.name != SHELL:
                tool_calls.append(identified_call)
            elif (tool := _find_shell_tool(tools)) is not None:
                call_arguments = _command_arguments(
                    tool, str(tool_call.arguments.get("command", ""))
                )
                tool_calls.append(
                    replace(identified_call, name=tool.name, arguments=call_arguments)
                )
        if line.calls and not tool_calls:
            return Line(line.text or "ok")
        return replace(line, calls=tuple(tool_calls))

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
    command_parameter = next(
        (command_parameter for command_parameter in _COMMANDS if command_parameter in properties),
        "command",
    )
    is_list = properties.get(command_parameter, {}).get("type") == "array"
    call_arguments: dict[str, Any] = {
        command_parameter: ["bash", "-lc", command] if is_list else command
    }
    for parameter in tool.parameters.get("required", ()):
        parameter_schema = properties.get(parameter, {})
        choices = parameter_schema.get("enum") or [
            _DEFAULT_VALUES.get(parameter_schema.get("type"), "act")
        ]
        call_arguments.setdefault(parameter, choices[0])
    return call_arguments


def _tools(path: str, body: Body) -> Iterable[Tool]:
    """Yield the tools that have a name. Tools that the provider itself runs may have none."""
    for entry in body.get("tools") or ():
        tool = entry.get("function", entry) if path == "chat/completions" else entry
        schema = tool.get("input_schema") or tool.get("parameters") or {}
        if "name" in tool:
            yield Tool(tool["name"], tool.get("description") or "", schema)


def _settings(path: str, body: Body) -> Settings:
    """Return the settings of a request that affect a scripted reply: token limit and stop texts."""
    limit_fields = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    limits = [body[name] for name in limit_fields if body.get(name) is not None]
    default_limit = COMPLETION if path == "completions" else None
    stop = body.get("stop") or body.get("stop_sequences") or ()
    return Settings(
        max_tokens=limits[0] if limits else default_limit,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _messages(path: str, body: Body) -> list[Message]:
    """Return the dialogue of a request, with each reply of the model as one message."""
    if path == "completions":
        return [Message("user", str(body.get("prompt", "")))]
    if path == "responses":
        return _join_assistant_messages(_input_messages(body))
    system_messages = (
        [Message("system", extract_text(body["system"]))] if body.get("system") else []
    )
    dialogue = [*system_messages, *map(_message, body.get("messages", ()))]
    return _join_assistant_messages(dialogue) if path == "messages" else dialogue


def _message(message_data: Body) -> Message:
    tool_calls = [
        ToolCall(tool_call.get("id", ""), function["name"], arguments(function.get("arguments")))
        for tool_call in message_data.get("tool_calls") or ()
        for function in [tool_call["function"]]
    ]
    content = message_data.get("content")
    blocks = (
        [content_block for content_block in content if isinstance(content_block, dict)]
        if isinstance(content, list)
        else []
    )
    tool_calls += [
        ToolCall(block["id"], block["name"], arguments(block.get("input")))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return Message(
        _role(message_data),
        _message_text(content),
        tuple(tool_calls),
        message_data.get("tool_call_id"),
    )


def _input_messages(body: Body) -> Iterable[Message]:
    """Yield the messages in the items of a request of ``responses``."""
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
            yield Message("assistant", "", (responses_decoding.call(item),))
        elif kind == "reasoning":
            yield Message("assistant", "")


def _join_assistant_messages(messages: Iterable[Message]) -> list[Message]:
    """Join consecutive messages of the assistant into one message each."""
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
    """Return the text of a message, including the texts of tool results in Anthropic's blocks."""
    if not isinstance(content, list):
        return extract_text(content) if isinstance(content, str | None) else json.dumps(content)
    parts = (part if isinstance(part, dict) else {"text": part} for part in content)
    return " ".join(_message_text(part.get("text", part.get("content", ""))) for part in parts)
