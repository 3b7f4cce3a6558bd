"""Server-sent events: parsed from a stream, and assembled into the equivalent unstreamed answer.

`StreamedAnswer` accepts the stream's bytes in chunks of any size; the result does not depend on the
chunks' boundaries. In every field that `intercode_integrations.gateway.calls` reads, the assembled
answer equals the body that the server sends without streaming.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from intercode.models import response_parsing
from intercode.models.api_fields import Name

MAX_EVENT_BYTES = 32 * 1024**2
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_CONTINUED_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
"""Text fields of a ``chat`` delta whose values are appended to the message. `_extend_message` also
appends the fields of tool calls."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event: its bytes including the blank line, and its data if that is a JSON object."""

    raw_bytes: bytes
    data: dict[str, Any] | None
    is_last: bool = False
    """Whether the event is ``[DONE]``, which ends a stream of the protocol ``chat``."""


@dataclass(slots=True)
class StreamedAnswer:
    """The answer that the events of a stream have built so far.

    Attributes:
        name: The API protocol of the stream.
        body: The answer, in the form of a response without streaming.
        is_complete: Whether the last event of the protocol has arrived.
        error: The error that the server reported within the stream.
    """

    name: Name
    body: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    error: dict[str, Any] | None = None
    _buffer: bytes = b""
    _partial: dict[int, str] = field(default_factory=dict)
    """Index of a content block → incomplete JSON of its tool arguments (``messages`` only)."""
    _items: list[Any] = field(default_factory=list)

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Add bytes of the stream; return the events that are now complete.

        Raises:
            ValueError: An event is too long, or malformed.
        """
        self._buffer += data
        events: list[StreamEvent] = []
        begin = 0
        for end_match in _END.finditer(self._buffer):
            events.append(_parse_event(self._buffer[begin : end_match.end()]))
            begin = end_match.end()
        self._buffer = self._buffer[begin:]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise ValueError("an event of the stream is too long")
        for event in events:
            if event.is_last:
                self.is_complete = True
            elif event.data is not None:
                self._take(event.data)
        return events

    def _take(self, data: dict[str, Any]) -> None:
        if data.get("error"):
            server_error = data["error"]
            self.error = (
                server_error if isinstance(server_error, dict) else {"message": str(server_error)}
            )
            return
        try:
            _HANDLERS[self.name](self, data)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"an event of the stream is malformed: {error!r}") from None


def _parse_event(raw_bytes: bytes) -> StreamEvent:
    lines = [
        line[5:].removeprefix(b" ") for line in _LINE.split(raw_bytes) if line.startswith(b"data:")
    ]
    text = b"\n".join(lines)
    if not lines:
        return StreamEvent(raw_bytes, None)
    if text.strip() == b"[DONE]":
        return StreamEvent(raw_bytes, None, is_last=True)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("an event of the stream is not JSON") from None
    return StreamEvent(raw_bytes, data if isinstance(data, dict) else None)


def encode_event(raw_bytes: bytes, data: object) -> bytes:
    """Return an event's bytes with its data replaced; its other lines stay."""
    other_lines = [
        line for line in _LINE.split(raw_bytes) if line and not line.startswith(b"data:")
    ]
    return b"\n".join([*other_lines, b"data: " + json.dumps(data).encode()]) + b"\n\n"


def _add_chat(assembly: StreamedAnswer, data: dict[str, Any]) -> None:
    body = assembly.body
    if not body:
        body |= {"object": "chat.completion", "choices": []}
    for key, value in data.items():
        if key not in {"choices", "object"} and value is not None:
            body[key] = value
    for choice_delta in data.get("choices") or ():
        choice_index = choice_delta.get("index", 0)
        choices = body["choices"]
        choice = next(
            (candidate for candidate in choices if candidate["index"] == choice_index), None
        )
        if choice is None:
            choice = {"index": choice_index, "message": {"role": "assistant", "content": None}}
            choices.append(choice)
        _extend_message(choice["message"], choice_delta.get("delta") or {})
        for key in ("finish_reason", "stop_reason"):
            if choice_delta.get(key) is not None:
                choice[key] = choice_delta[key]
        if choice_delta.get("token_ids"):
            choice.setdefault("token_ids", []).extend(choice_delta["token_ids"])
        for key, entries in (choice_delta.get("logprobs") or {}).items():
            if isinstance(entries, list):
                choice.setdefault("logprobs", {}).setdefault(key, []).extend(entries)


def _extend_message(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in _CONTINUED_FIELDS:
        if delta.get(key) is not None:
            message[key] = (message.get(key) or "") + delta[key]
    for call_delta in delta.get("tool_calls") or ():
        tool_calls = message.setdefault("tool_calls", [])
        call_index = call_delta.get("index", len(tool_calls))
        tool_call = next(
            (candidate for candidate in tool_calls if candidate["index"] == call_index), None
        )
        if tool_call is None:
            tool_call = {
                "index": call_index,
                "type": "function",
                "function": {"name": "", "arguments": ""},
            }
            tool_calls.append(tool_call)
        if call_delta.get("id"):
            tool_call["id"] = call_delta["id"]
        function = call_delta.get("function") or {}
        tool_call["function"]["name"] += function.get("name") or ""
        tool_call["function"]["arguments"] += function.get("arguments") or ""


def _add_messages(assembly: StreamedAnswer, data: dict[str, Any]) -> None:
    event_type = data.get("type")
    if event_type == "message_start":
        assembly.body = dict(data["message"])
        assembly.body["content"] = []
    elif event_type == "content_block_start":
        assembly.body["content"].append(dict(data["content_block"]))
    elif event_type == "content_block_delta":
        block_index, delta = data["index"], data["delta"]
        block = assembly.body["content"][block_index]
        if delta["type"] == "input_json_delta":
            assembly._partial[block_index] = (
                assembly._partial.get(block_index, "") + delta["partial_json"]
            )
            return
        for key in ("text", "thinking", "signature"):
            if key in delta:
                block[key] = (block.get(key) or "") + delta[key]
        if "citation" in delta:
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
    elif event_type == "content_block_stop" and (
        input_json := assembly._partial.pop(data["index"], "")
    ):
        assembly.body["content"][data["index"]]["input"] = response_parsing.arguments(input_json)
    elif event_type == "message_delta":
        assembly.body |= data["delta"]
        usage = {
            usage_field: token_count
            for usage_field, token_count in (data.get("usage") or {}).items()
            if token_count is not None
        }
        assembly.body["usage"] = {**(assembly.body.get("usage") or {}), **usage}
    elif event_type == "message_stop":
        assembly.is_complete = True


def _add_responses(assembly: StreamedAnswer, data: dict[str, Any]) -> None:
    event_type = data.get("type")
    if event_type == "response.output_item.done":
        assembly._items.append(data["item"])
    elif event_type in {"response.completed", "response.incomplete", "response.failed"}:
        assembly.body = dict(data["response"])
        assembly.body["output"] = assembly.body.get("output") or assembly._items
        assembly.is_complete = True
    elif event_type == "error":
        assembly.error = data


_HANDLERS: dict[Name, Callable[[StreamedAnswer, dict[str, Any]], None]] = {
    "chat": _add_chat,
    "messages": _add_messages,
    "responses": _add_responses,
}
