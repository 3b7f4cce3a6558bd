"""Server-sent events: cut out of a stream, and put together to the answer that would be without it.

`Assembly` is fed with bytes as they come, cut anywhere, and its answer depends on their sequence
only. It is the same as the body that the server sends to those who do not ask for a stream, in all
that `intercode_integrations.gateway.calls` reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from intercode.models import wire
from intercode.models.protocols import Name

LONGEST_EVENT = 32 * 1024**2
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_JOINED = ("content", "reasoning_content", "reasoning", "refusal")
"""Fields of a chat's delta that are continued; those of a tool call are below."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes with the blank line at the end, and its data, if that is an object."""

    raw: bytes
    data: dict[str, Any] | None
    last: bool = False
    """Whether it is ``[DONE]``."""


@dataclass(slots=True)
class Assembly:
    """The answer of a stream, so far.

    Attributes:
        name: The protocol.
        body: The answer, as it would be without a stream.
        whole: Whether the stream has come to its end.
        error: The error that the server reported within the stream.
    """

    name: Name
    body: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    error: dict[str, Any] | None = None
    _rest: bytes = b""
    _partial: dict[int, str] = field(default_factory=dict)
    """Arguments of tools by block, as JSON in the making (messages)."""
    _items: list[Any] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes; return the events that they complete.

        Raises:
            ValueError: An event is too long, or makes no sense.
        """
        self._rest += data
        found: list[Event] = []
        begin = 0
        for end in _END.finditer(self._rest):
            found.append(_event(self._rest[begin : end.end()]))
            begin = end.end()
        self._rest = self._rest[begin:]
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError("an event of the stream is too long")
        for event in found:
            if event.last:
                self.whole = True
            elif event.data is not None:
                self._take(event.data)
        return found

    def _take(self, data: dict[str, Any]) -> None:
        if data.get("error"):
            found = data["error"]
            self.error = found if isinstance(found, dict) else {"message": str(found)}
            return
        try:
            _TAKE[self.name](self, data)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(f"an event of the stream makes no sense: {error!r}") from None


def _event(raw: bytes) -> Event:
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(raw) if line.startswith(b"data:")]
    text = b"\n".join(lines)
    if not lines:
        return Event(raw, None)
    if text.strip() == b"[DONE]":
        return Event(raw, None, last=True)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("an event of the stream is not JSON") from None
    return Event(raw, data if isinstance(data, dict) else None)


def rewritten(raw: bytes, data: object) -> bytes:
    """Return an event with other data."""
    rest = [line for line in _LINE.split(raw) if line and not line.startswith(b"data:")]
    return b"\n".join([*rest, b"data: " + json.dumps(data).encode()]) + b"\n\n"


def _chat(to: Assembly, data: dict[str, Any]) -> None:
    body = to.body
    if not body:
        body |= {"object": "chat.completion", "choices": []}
    for key, value in data.items():
        if key not in {"choices", "object"} and value is not None:
            body[key] = value
    for part in data.get("choices") or ():
        index = part.get("index", 0)
        choices = body["choices"]
        choice = next((one for one in choices if one["index"] == index), None)
        if choice is None:
            choice = {"index": index, "message": {"role": "assistant", "content": None}}
            choices.append(choice)
        _continue(choice["message"], part.get("delta") or {})
        for key in ("finish_reason", "stop_reason"):
            if part.get(key) is not None:
                choice[key] = part[key]
        if part.get("token_ids"):
            choice.setdefault("token_ids", []).extend(part["token_ids"])
        for key, more in (part.get("logprobs") or {}).items():
            if isinstance(more, list):
                choice.setdefault("logprobs", {}).setdefault(key, []).extend(more)


def _continue(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in _JOINED:
        if delta.get(key) is not None:
            message[key] = (message.get(key) or "") + delta[key]
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        index = part.get("index", len(calls))
        call = next((one for one in calls if one["index"] == index), None)
        if call is None:
            call = {"index": index, "type": "function", "function": {"name": "", "arguments": ""}}
            calls.append(call)
        if part.get("id"):
            call["id"] = part["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _messages(to: Assembly, data: dict[str, Any]) -> None:
    kind = data.get("type")
    if kind == "message_start":
        to.body = dict(data["message"])
        to.body["content"] = []
    elif kind == "content_block_start":
        to.body["content"].append(dict(data["content_block"]))
    elif kind == "content_block_delta":
        index, delta = data["index"], data["delta"]
        block = to.body["content"][index]
        if delta["type"] == "input_json_delta":
            to._partial[index] = to._partial.get(index, "") + delta["partial_json"]
            return
        for key in ("text", "thinking", "signature"):
            if key in delta:
                block[key] = (block.get(key) or "") + delta[key]
        if "citation" in delta:
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
    elif kind == "content_block_stop" and (text := to._partial.pop(data["index"], "")):
        to.body["content"][data["index"]]["input"] = wire.arguments(text)
    elif kind == "message_delta":
        to.body |= data["delta"]
        counted = {k: v for k, v in (data.get("usage") or {}).items() if v is not None}
        to.body["usage"] = {**(to.body.get("usage") or {}), **counted}
    elif kind == "message_stop":
        to.whole = True


def _responses(to: Assembly, data: dict[str, Any]) -> None:
    kind = data.get("type")
    if kind == "response.output_item.done":
        to._items.append(data["item"])
    elif kind in {"response.completed", "response.incomplete", "response.failed"}:
        to.body = dict(data["response"])
        to.body["output"] = to.body.get("output") or to._items
        to.whole = True
    elif kind == "error":
        to.error = data


_TAKE: dict[Name, Callable[[Assembly, dict[str, Any]], None]] = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
}
