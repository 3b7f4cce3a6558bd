"""Anthropic's protocol as data: what is sent, and what the answer means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from intercode.models import decoding
from intercode.models.base import Message, Role, ToolCall, Usage
from intercode.models.client import Answer, Request
from intercode.models.decoding import unusable

MOST_TOKENS = 4096
"""Of a reply, where the settings name no limit: the protocol wants one."""


def encode(request: Request) -> dict[str, Any]:
    """The parameters of ``messages``.

    System messages go into a field of their own. Neighbours of one speaker become one message, as
    speakers must take turns; results of tools are the user's. There is no seed.
    """
    settings = request.settings
    system = "\n\n".join(m.content for m in request.messages if m.role == "system")
    spoken = [m for m in request.messages if m.role != "system"]
    sent: dict[str, Any] = {
        "max_tokens": settings.max_tokens or MOST_TOKENS,
        "messages": [
            {"role": speaker, "content": [block for m in said for block in _blocks(m)]}
            for speaker, said in groupby(spoken, _speaker)
        ],
        "system": system or None,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_sequences": list(settings.stop) or None,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
        or None,
    }
    return {name: value for name, value in sent.items() if value is not None}


def _speaker(message: Message) -> Role:
    return "assistant" if message.role == "assistant" else "user"


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "tool_result",
                "tool_use_id": message.call_id or "",
                "content": message.content,
            }
        ]
    # A text of nothing but blanks is refused, and so is one that ends an assistant's turn in them.
    text = message.content.rstrip() if message.role == "assistant" else message.content
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [
        {"type": "tool_use", "id": c.call_id, "name": c.name, "input": dict(c.arguments)}
        for c in message.tool_calls
    ]
    return blocks or [{"type": "text", "text": "(nothing)"}]


def decode(data: dict[str, Any]) -> Answer:
    """What an answer says.

    Raises:
        AttemptError: It says nothing that can be used.
    """
    content = data.get("content")
    if not isinstance(content, list):
        raise unusable("the answer has no content")
    blocks = [block for block in content if isinstance(block, dict)]
    text = decoding.text_of([block for block in blocks if block.get("type") == "text"])
    calls = _calls([block for block in blocks if block.get("type") == "tool_use"])
    finish = decoding.finish(data.get("stop_reason"), bool(calls))
    model = data.get("model")
    return Answer(text, calls, _usage(data), model if isinstance(model, str) else "", finish)


def _calls(blocks: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    found: list[ToolCall] = []
    for block in blocks:
        if not isinstance(block.get("name"), str):
            raise unusable(f"the answer has a tool call without a name: {json.dumps(block)[:200]}")
        values = decoding.arguments(block.get("input"))
        found.append(ToolCall(str(block.get("id", "")), block["name"], values))
    return tuple(found)


def _usage(data: dict[str, Any]) -> Usage | None:
    usage = data.get("usage")
    if not isinstance(usage, dict):
        return None
    fresh, made = decoding.tokens(usage, "input_tokens"), decoding.tokens(usage, "output_tokens")
    if fresh is None or made is None:
        return None
    # Anthropic counts what its cache had apart.
    cached = decoding.tokens(usage, "cache_read_input_tokens") or 0
    kept = decoding.tokens(usage, "cache_creation_input_tokens") or 0
    return Usage(fresh + cached + kept, made, cached)
