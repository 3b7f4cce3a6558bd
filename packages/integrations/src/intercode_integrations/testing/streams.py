"""Answers as streams of server-sent events, for `intercode_integrations.testing.server`.

Each function takes the whole answer, in a protocol's own form, and returns the events in which
the real server sends it. One event brings one token, which is a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Payload = dict[str, Any]
Event = tuple[str | None, Payload | str]
"""The event's name, if the protocol names events, and its data."""


def frame(event: Event) -> bytes:
    """Return an event as it is sent."""
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return ((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode()


def tokens(text: str) -> list[str]:
    """Split a text before each word but the first, so that the parts joined are the text."""
    return re.findall(r"\s*\S+(?:\s+\Z)?|\A\s+\Z", text)


def chat(answer: Payload, asked: Mapping[str, Any]) -> Iterator[Event]:
    """Stream an answer of ``chat/completions``."""
    choice = answer["choices"][0]
    message = choice.get("message", {})
    calls = message.get("tool_calls") or ()
    spent = _Spent(choice)
    yield _chunk(
        answer, asked, {"role": message.get("role", "assistant"), "content": ""}, first=True
    )
    if message.get("reasoning_content"):
        yield _chunk(answer, asked, {"reasoning_content": message["reasoning_content"]})
    for part in tokens(message.get("content") or ""):
        yield _chunk(answer, asked, {"content": part}, spent.next())
    for index, call in enumerate(calls):
        function = call["function"]
        # Ollama sends objects, and so whole.
        whole = not isinstance(function["arguments"], str)
        begun = {**function, "arguments": json.dumps(function["arguments"]) if whole else ""}
        head = {"index": index, **call, "function": begun}
        yield _chunk(answer, asked, {"tool_calls": [head]}, spent.next())
        for part in () if whole else tokens(function["arguments"]):
            delta = {"index": index, "function": {"arguments": part}}
            yield _chunk(answer, asked, {"tool_calls": [delta]}, spent.next())
    yield _chunk(answer, asked, {}, {}, choice["finish_reason"])
    yield from _end(answer, asked)


class _Spent:
    """Token ids and log-probabilities of an answer, one token after the other."""

    def __init__(self, choice: Payload) -> None:
        self._choice = choice
        self._next = 0

    def next(self) -> Payload:
        """Return the fields of the choice in the next token's chunk."""
        at, self._next = self._next, self._next + 1
        found: Payload = {}
        if self._choice.get("token_ids") is not None:
            found["token_ids"] = self._choice["token_ids"][at : at + 1]
        if isinstance(logprobs := self._choice.get("logprobs"), dict):
            found["logprobs"] = {
                name: part and part[at : at + 1] for name, part in logprobs.items()
            }
        return found


def _chunk(
    answer: Payload,
    asked: Mapping[str, Any],
    delta: Payload,
    fields: Payload | None = None,
    finish: str | None = None,
    first: bool = False,
) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    data = {**_head(answer, asked), "choices": [choice | (fields or {})]}
    if first and answer.get("prompt_token_ids") is not None:
        data["prompt_token_ids"] = answer["prompt_token_ids"]
    return None, data


def _head(answer: Payload, asked: Mapping[str, Any]) -> Payload:
    found = {name: answer[name] for name in ("id", "created", "model")}
    kinds = {"chat.completion": "chat.completion.chunk"}
    found["object"] = kinds.get(answer["object"], answer["object"])
    return found | ({"usage": None} if _with_usage(asked) else {})


def _end(answer: Payload, asked: Mapping[str, Any]) -> Iterator[Event]:
    if _with_usage(asked) and "usage" in answer:
        yield None, {**_head(answer, asked), "choices": [], "usage": answer["usage"]}
    yield None, "[DONE]"


def _with_usage(asked: Mapping[str, Any]) -> bool:
    return bool((asked.get("stream_options") or {}).get("include_usage"))


def completion(answer: Payload, asked: Mapping[str, Any]) -> Iterator[Event]:
    """Stream an answer of ``completions``."""
    choice = answer["choices"][0]
    spent = _Spent(choice)
    for part in tokens(choice["text"]):
        one = {"index": 0, "text": part, "logprobs": None, "finish_reason": None, **spent.next()}
        yield None, {**_head(answer, asked), "choices": [one]}
    last = {"index": 0, "text": "", "logprobs": None, "finish_reason": choice["finish_reason"]}
    yield None, {**_head(answer, asked), "choices": [last]}
    yield from _end(answer, asked)


def messages(answer: Payload, asked: Mapping[str, Any]) -> Iterator[Event]:
    """Stream an answer of Anthropic's ``messages``."""
    begun = {**answer, "content": [], "stop_reason": None}
    begun["usage"] = {**answer["usage"], "output_tokens": 1}
    yield _named("message_start", message=begun)
    for index, block in enumerate(answer["content"]):
        if block["type"] == "text":
            empty, text, kind = {**block, "text": ""}, block["text"], ("text_delta", "text")
        else:
            empty, text = {**block, "input": {}}, json.dumps(block["input"])
            kind = ("input_json_delta", "partial_json")
        yield _named("content_block_start", index=index, content_block=empty)
        if not index:
            yield _named("ping")
        for part in tokens(text):
            delta = {"type": kind[0], kind[1]: part}
            yield _named("content_block_delta", index=index, delta=delta)
        yield _named("content_block_stop", index=index)
    end = {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    yield _named("message_delta", delta=end, usage=answer["usage"])
    yield _named("message_stop")


def _named(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


def responses(answer: Payload, asked: Mapping[str, Any]) -> Iterator[Event]:
    """Stream an answer of ``responses``. Its events are numbered."""
    for number, (kind, data) in enumerate(_responses(answer)):
        assert isinstance(data, dict)
        yield kind, {**data, "sequence_number": number}


def _responses(answer: Payload) -> Iterator[Event]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield _named("response.created", response=begun)
    yield _named("response.in_progress", response=begun)
    for index, item in enumerate(answer["output"]):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield from _text(item, place)
        else:
            yield from _call(item, place)
        yield _named("response.output_item.done", output_index=index, item=item)
    yield _named(f"response.{answer['status']}", response=answer)


def _text(item: Payload, place: Payload) -> Iterator[Event]:
    empty = {**item, "status": "in_progress", "content": []}
    yield _named("response.output_item.added", output_index=place["output_index"], item=empty)
    part = item["content"][0]
    place = {**place, "content_index": 0}
    yield _named("response.content_part.added", **place, part={**part, "text": ""})
    for word in tokens(part["text"]):
        yield _named("response.output_text.delta", **place, delta=word, logprobs=[])
    yield _named("response.output_text.done", **place, text=part["text"], logprobs=[])
    yield _named("response.content_part.done", **place, part=part)


def _call(item: Payload, place: Payload) -> Iterator[Event]:
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield _named("response.output_item.added", output_index=place["output_index"], item=empty)
    name = "response.function_call_arguments"
    for word in tokens(item["arguments"]):
        yield _named(f"{name}.delta", **place, delta=word)
    yield _named(f"{name}.done", **place, name=item["name"], arguments=item["arguments"])


STREAMS: dict[str, Callable[[Payload, Mapping[str, Any]], Iterator[Event]]] = {
    "chat/completions": chat,
    "completions": completion,
    "messages": messages,
    "responses": responses,
}
"""By the endpoint's path."""


def failure(path: str, answer: Payload, error: Payload) -> Event:
    """Return the event of an error after the beginning of a stream."""
    if path == "messages":
        return "error", error
    if path == "responses":
        cause = {"code": "server_is_overloaded", "message": error["error"]["message"]}
        failed = {**answer, "status": "failed", "output": [], "usage": None, "error": cause}
        return _named("response.failed", response=failed, sequence_number=2)
    return None, error
