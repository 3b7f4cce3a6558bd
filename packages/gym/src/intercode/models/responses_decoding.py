"""Decoding of OpenAI's protocol ``responses``, which clients of the gateway use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from intercode.models import response_parsing
from intercode.models.base import Answer, ToolCall


def decode(response_body: dict[str, Any]) -> Answer:
    """Decode a model's answer from a response of the protocol ``responses``.

    Args:
        response_body: The JSON object of the response.

    Raises:
        AttemptError: The response has no usable output.
    """
    output = response_body.get("output")
    if not isinstance(output, list):
        raise response_parsing.unusable_answer("the answer has no output")
    output_items = [output_item for output_item in output if isinstance(output_item, dict)]
    messages = (
        output_item
        for output_item in output_items
        if output_item.get("type", "message") == "message"
    )
    text = "".join(response_parsing.extract_text(message.get("content")) for message in messages)
    calls = tuple(
        call(output_item)
        for output_item in output_items
        if str(output_item.get("type")).endswith("_call")
    )
    reason = (response_body.get("incomplete_details") or {}).get(
        "reason", response_body.get("status")
    )
    usage = response_parsing.usage(response_body.get("usage"), "input_tokens", "output_tokens")
    return Answer(
        text,
        calls,
        usage,
        response_parsing.extract_model(response_body),
        response_parsing.finish(reason, bool(calls)),
    )


def call(item: Mapping[str, Any]) -> ToolCall:
    """Decode a tool call from an item of a response.

    The item calls a function, a custom tool with text input, or a shell.
    """
    values = item.get("arguments", item.get("input", item.get("action")))
    name = str(item.get("name") or item.get("type"))
    call_id = str(item.get("call_id") or item.get("id") or "")
    return ToolCall(call_id, name, response_parsing.arguments(values))
