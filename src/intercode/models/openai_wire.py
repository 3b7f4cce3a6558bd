"""OpenAI's protocol, chat and completions, as data: what is sent, and what the answer means.

Many servers speak it, each a little differently; see ``docs/reference/models.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from intercode.errors import ModelError
from intercode.models import decoding, refusal, tool_text
from intercode.models.base import Message, Settings, Tool, ToolCall, Usage
from intercode.models.client import Answer, Request
from intercode.models.decoding import unusable

MOST_TOKENS = 1024
"""Of a completion, where the settings name no limit: servers have 16."""
_SPEAKERS = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Result"}


def encode_chat(request: Request, limit: str = "max_tokens") -> dict[str, Any]:
    """The parameters of ``chat/completions``.

    Args:
        request: What is asked.
        limit: What the protocol calls the most tokens of a reply.
    """
    sent = _settings(request.settings, limit)
    sent["messages"] = [_message(message) for message in request.messages]
    if request.tools:
        sent["tools"] = [_tool(tool) for tool in request.tools]
        sent["tool_choice"] = "auto"  # llama-cpp-python tells of no tools unless this is said
    return sent


def encode_completion(request: Request) -> dict[str, Any]:
    """The parameters of ``completions``, for models without a chat template.

    A dialogue of one message is sent as it is; a longer one as a transcript that the model goes
    on with, as far as its own part goes.
    """
    if request.tools:
        raise ModelError("a completions model takes no tools")
    messages = request.messages
    sent = {"max_tokens": MOST_TOKENS, **_settings(request.settings, "max_tokens")}
    if len(messages) == 1:
        return {**sent, "prompt": messages[0].content}
    turns = [f"{_SPEAKERS[m.role]}: {m.content}" for m in messages]
    prompt = "\n\n".join([*turns, "Assistant:"])
    return {"stop": [f"\n\n{_SPEAKERS['user']}:"], **sent, "prompt": prompt}


def _settings(settings: Settings, limit: str) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        limit: settings.max_tokens,
        "stop": list(settings.stop) or None,
        "seed": settings.seed,
    }
    return {name: value for name, value in sent.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        sent["tool_call_id"] = message.call_id or ""
    if message.tool_calls:
        # Arguments that were no JSON are so now: servers that read them refuse the dialogue else.
        sent["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    return sent


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def decode_chat(data: dict[str, Any], tools: Sequence[Tool] = ()) -> Answer:
    """What an answer of ``chat/completions`` says.

    Raises:
        AttemptError: It says nothing that can be used.
    """
    choice = _choice(data)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise unusable("the answer has no message")
    text, calls = decoding.text_of(message.get("content")), _calls(message)
    if tools and not calls:
        text, calls = tool_text.extract(text, {tool.name for tool in tools})
    refused = message.get("refusal")
    if isinstance(refused, str) and refused and not text and not calls:
        return Answer(refused, (), _usage(data), _model(data), "filter")
    finish = decoding.finish(choice.get("finish_reason"), bool(calls))
    return Answer(text, calls, _usage(data), _model(data), finish)


def decode_completion(data: dict[str, Any]) -> Answer:
    """What an answer of ``completions`` says.

    Raises:
        AttemptError: It says nothing that can be used.
    """
    choice = _choice(data)
    text = decoding.text_of(choice.get("text"))
    finish = decoding.finish(choice.get("finish_reason"), calls=False)
    return Answer(text, (), _usage(data), _model(data), finish)


def _choice(data: dict[str, Any]) -> dict[str, Any]:
    if data.get("error"):  # proxies report a failure behind them with a status of 200
        error = data["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise refusal.judge(code if isinstance(code, int) else 502, {}, json.dumps(data))
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise unusable("the answer has no choices")
    return choices[0]


def _calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    given = message.get("tool_calls") or []
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        raise unusable(f"the answer's tool calls are a {type(given).__name__}")
    found: list[ToolCall] = []
    for call in given:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise unusable("the answer has a tool call without a name")
        call_id = str(call.get("id") or f"call_{len(found)}")  # Ollama's may have none
        values = decoding.arguments(function.get("arguments"))
        found.append(ToolCall(call_id, function["name"], values))
    return tuple(found)


def _usage(data: dict[str, Any]) -> Usage | None:
    usage = data.get("usage")
    if not isinstance(usage, dict):
        return None
    given, made = (
        decoding.tokens(usage, "prompt_tokens"),
        decoding.tokens(usage, "completion_tokens"),
    )
    if given is None or made is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = decoding.tokens(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(given, made, min(cached or 0, given))


def _model(data: dict[str, Any]) -> str:
    model = data.get("model")
    return model if isinstance(model, str) else ""
