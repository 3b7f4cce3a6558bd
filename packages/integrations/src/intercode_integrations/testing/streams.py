"""Answers as streams of server-sent events, for `intercode_integrations.testing.server`.

Each function takes a whole answer in a protocol's own form, and yields the events in which the real
server would send the answer. Each event carries at most one token, and a token is a word. Only
arguments that are an object are sent as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Payload = dict[str, Any]
Event = tuple[str | None, Payload | str]
"""An event: its name (None if the protocol does not name events), and its data."""


def frame(event: Event) -> bytes:
    """Return the bytes of an event in a stream."""
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()


def tokens(text: str) -> list[str]:
    """Split a text before each word except the first. The joined parts equal the text."""
    return re.findall(r"\s*\S+(?:\s+\Z)?|\A\s+\Z", text)


def chat(answer: Payload, request_body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a ``chat/completions`` answer."""
    choice = answer["choices"][0]
    message = choice.get("message", {})
    tool_calls = message.get("tool_calls") or ()
    token_fields = _TokenFields(choice)
    yield _chunk(
        answer,
        request_body,
        {"role": message.get("role", "assistant"), "content": ""},
        is_first=True,
    )
    if message.get("reasoning_content"):
        yield _chunk(answer, request_body, {"reasoning_content": message["reasoning_content"]})
    for token in tokens(message.get("content") or ""):
        yield _chunk(answer, request_body, {"content": token}, token_fields.next_fields())
    for call_index, tool_call in enumerate(tool_calls):
        function = tool_call["function"]
        # Ollama sends arguments as an object, which cannot be split into several events.
        is_object = not isinstance(function["arguments"], str)
        function_start = {
            **function,
            "arguments": json.dumps(function["arguments"]) if is_object else "",
        }
        call_start = {"index": call_index, **tool_call, "function": function_start}
        yield _chunk(answer, request_body, {"tool_calls": [call_start]}, token_fields.next_fields())
        for token in () if is_object else tokens(function["arguments"]):
            delta = {"index": call_index, "function": {"arguments": token}}
            yield _chunk(answer, request_body, {"tool_calls": [delta]}, token_fields.next_fields())
    yield _chunk(answer, request_body, {}, {}, choice["finish_reason"])
    yield from _end(answer, request_body)


class _TokenFields:
    """The token ids and log-probabilities of an answer, which are read token by token."""

    def __init__(self, choice: Payload) -> None:
        self._choice = choice
        self._position = 0

    def next_fields(self) -> Payload:
        """Return the fields about the next token, for the chunk that carries the token."""
        position, self._position = self._position, self._position + 1
        fields: Payload = {}
        if self._choice.get("token_ids") is not None:
            fields["token_ids"] = self._choice["token_ids"][position : position + 1]
        if isinstance(logprobs := self._choice.get("logprobs"), dict):
            fields["logprobs"] = {
                field: entries and entries[position : position + 1]
                for field, entries in logprobs.items()
            }
        return fields


def _chunk(
    answer: Payload,
    request_body: Mapping[str, Any],
    delta: Payload,
    choice_fields: Payload | None = None,
    finish_reason: str | None = None,
    is_first: bool = False,
) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    data = {**_head(answer, request_body), "choices": [choice | (choice_fields or {})]}
    if is_first and answer.get("prompt_token_ids") is not None:
        data["prompt_token_ids"] = answer["prompt_token_ids"]
    return None, data


def _head(answer: Payload, request_body: Mapping[str, Any]) -> Payload:
    fields = {name: answer[name] for name in ("id", "created", "model")}
    object_types = {"chat.completion": "chat.completion.chunk"}
    fields["object"] = object_types.get(answer["object"], answer["object"])
    return fields | ({"usage": None} if _has_usage(request_body) else {})


def _end(answer: Payload, request_body: Mapping[str, Any]) -> Iterator[Event]:
    if _has_usage(request_body) and "usage" in answer:
        yield None, {**_head(answer, request_body), "choices": [], "usage": answer["usage"]}
    yield None, "[DONE]"


def _has_usage(request_body: Mapping[str, Any]) -> bool:
    return bool((request_body.get("stream_options") or {}).get("include_usage"))


def completion(answer: Payload, request_body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a ``completions`` answer."""
    choice = answer["choices"][0]
    token_fields = _TokenFields(choice)
    for token in tokens(choice["text"]):
        chunk_choice = {
            "index": 0,
            "text": token,
            "logprobs": None,
            "finish_reason": None,
            **token_fields.next_fields(),
        }
        yield None, {**_head(answer, request_body), "choices": [chunk_choice]}
    final_choice = {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
    }
    yield None, {**_head(answer, request_body), "choices": [final_choice]}
    yield from _end(answer, request_body)


def messages(answer: Payload, request_body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of an answer of Anthropic's ``messages``."""
    start_message = {**answer, "content": [], "stop_reason": None}
    start_message["usage"] = {**answer["usage"], "output_tokens": 1}
    yield _named_event("message_start", message=start_message)
    for block_index, block in enumerate(answer["content"]):
        if block["type"] == "text":
            start_block, block_text, delta_names = (
                {**block, "text": ""},
                block["text"],
                ("text_delta", "text"),
            )
        else:
            start_block, block_text = {**block, "input": {}}, json.dumps(block["input"])
            delta_names = ("input_json_delta", "partial_json")
        yield _named_event("content_block_start", index=block_index, content_block=start_block)
        if not block_index:
            yield _named_event("ping")
        for token in tokens(block_text):
            delta = {"type": delta_names[0], delta_names[1]: token}
            yield _named_event("content_block_delta", index=block_index, delta=delta)
        yield _named_event("content_block_stop", index=block_index)
    end_delta = {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    yield _named_event("message_delta", delta=end_delta, usage=answer["usage"])
    yield _named_event("message_stop")


def _named_event(event_type: str, **fields: Any) -> Event:
    return event_type, {"type": event_type, **fields}


def responses(answer: Payload, request_body: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of a ``responses`` answer, with their sequence numbers."""
    for sequence_number, (event_type, data) in enumerate(_response_events(answer)):
        assert isinstance(data, dict)
        yield event_type, {**data, "sequence_number": sequence_number}


def _response_events(answer: Payload) -> Iterator[Event]:
    start_response = {**answer, "status": "in_progress", "output": [], "usage": None}
    start_response["incomplete_details"] = None
    yield _named_event("response.created", response=start_response)
    yield _named_event("response.in_progress", response=start_response)
    for output_index, item in enumerate(answer["output"]):
        position = {"item_id": item["id"], "output_index": output_index}
        if item["type"] == "message":
            yield from _text_events(item, position)
        else:
            yield from _call_events(item, position)
        yield _named_event("response.output_item.done", output_index=output_index, item=item)
    yield _named_event(f"response.{answer['status']}", response=answer)


def _text_events(item: Payload, position: Payload) -> Iterator[Event]:
    start_item = {**item, "status": "in_progress", "content": []}
    yield _named_event(
        "response.output_item.added", output_index=position["output_index"], item=start_item
    )
    text_part = item["content"][0]
    position = {**position, "content_index": 0}
    yield _named_event("response.content_part.added", **position, part={**text_part, "text": ""})
    for token in tokens(text_part["text"]):
        yield _named_event("response.output_text.delta", **position, delta=token, logprobs=[])
    yield _named_event("response.output_text.done", **position, text=text_part["text"], logprobs=[])
    yield _named_event("response.content_part.done", **position, part=text_part)


def _call_events(item: Payload, position: Payload) -> Iterator[Event]:
    start_item = {**item, "status": "in_progress", "arguments": ""}
    yield _named_event(
        "response.output_item.added", output_index=position["output_index"], item=start_item
    )
    event_prefix = "response.function_call_arguments"
    for token in tokens(item["arguments"]):
        yield _named_event(f"{event_prefix}.delta", **position, delta=token)
    yield _named_event(
        f"{event_prefix}.done", **position, name=item["name"], arguments=item["arguments"]
    )


STREAMS: dict[str, Callable[[Payload, Mapping[str, Any]], Iterator[Event]]] = {
    "chat/completions": chat,
    "completions": completion,
    "messages": messages,
    "responses": responses,
}
"""Endpoint path → function that yields the events of an answer."""


def failure(path: str, answer: Payload, error: Payload) -> Event:
    """Return the event that reports an error within a stream."""
    if path == "messages":
        return "error", error
    if path == "responses":
        cause = {"code": "server_is_overloaded", "message": error["error"]["message"]}
        failed_response = {
            **answer,
            "status": "failed",
            "output": [],
            "usage": None,
            "error": cause,
        }
        return _named_event("response.failed", response=failed_response, sequence_number=2)
    return None, error
