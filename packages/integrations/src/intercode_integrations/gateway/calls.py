"""Recorded calls to a model: request and answer, decoded from any of the three API protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from intercode.models import anthropic, openai, response_parsing, responses_decoding
from intercode.models.api_fields import Name
from intercode.models.base import Answer, Message, Role, ToolCall, Usage

PAYMENT_REQUIRED_STATUS = 402
"""HTTP status of a call that exceeds a budget."""
CLIENT_DISCONNECTED = "the client left"
"""Error text of a call whose client closed the connection."""
EPISODE_ENDED = "the episode ended before the answer"
"""Error text of a call that was running when its session was closed."""
_DECODERS: dict[Name, Callable[[dict[str, Any]], Answer]] = {
    "chat": openai.decode_chat,
    "messages": anthropic.decode,
    "responses": responses_decoding.decode,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call through the gateway.

    Attributes:
        protocol: ``chat``, ``responses`` or ``messages``; or ``count``: a request for a token
            count, with the count's response as `text`.
        path: The URL path that the client requested.
        model: The provider's name of the model that answered; without an answer, of the requested
            model.
        messages: The dialogue of the request. ``[image]`` replaces each image.
        text: The answer's text.
        tool_calls: The tool calls of the answer.
        usage: The charged tokens, as far as the provider reports them.
        cost: US dollars; None if the price or the tokens are unknown.
        seconds: The duration of the successful attempt, without waiting and earlier attempts. For a
            call without an answer, and for a token count, the duration of the whole call.
        retries: The number of failed attempts before the answer.
        status: The HTTP status that the client received.
        streamed: Whether the answer was a stream.
        cached: Whether the answer came from InterCode's cache, at a cost of 0.
        error: The reason why the answer is missing, incomplete, or an estimate (of a token count);
            empty if the answer is complete.
        finish: The reason for which the model ended the answer, in the words of its API.
        token_ids: Tokens of the answer, if the server returns them.
        prompt_token_ids: Tokens of the prompt, if the server returns them.
        logprobs: Log-probabilities of the answer's tokens, if the server returns them.
        tools: The names of the tools that the request offered to the model.
    """

    protocol: Name | Literal["count"]
    path: str
    model: str
    messages: tuple[Message, ...] = ()
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    seconds: float = 0.0
    retries: int = 0
    status: int = 200
    streamed: bool = False
    cached: bool = False
    error: str = ""
    finish: str = ""
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    tools: tuple[str, ...] = ()

    @property
    def is_count(self) -> bool:
        """Whether the request asked only for a token count, not for an answer."""
        return self.protocol == "count"

    @property
    def is_answered(self) -> bool:
        """Whether the client received an answer of the model, at least in part."""
        return not self.error or bool(self.text or self.tool_calls)

    @property
    def is_cut(self) -> bool:
        """Whether the episode ended or the client disconnected before any part of the answer.

        Such a call gives no evidence about the model.
        """
        return self.error in {EPISODE_ENDED, CLIENT_DISCONNECTED} and not self.is_answered

    @property
    def unpaid(self) -> bool:
        """Whether the gateway refused the call because it exceeds a budget."""
        return self.status == PAYMENT_REQUIRED_STATUS


def decode_answer(protocol: Name, body: dict[str, Any]) -> Answer:
    """Decode a model's answer from the JSON body of a response.

    Args:
        protocol: The protocol of the model's API.
        body: The body.

    Raises:
        AttemptError: The answer has no usable content.
    """
    return _DECODERS[protocol](body)


def incomplete_reason(body: Mapping[str, Any]) -> str:
    """Return the server's reason why an answer is incomplete; empty if it is complete.

    Without streaming, only the protocol ``responses`` has incomplete answers. In a stream, the
    server can report an error in every protocol.
    """
    details = body.get("error") or body.get("incomplete_details")
    if not details and body.get("status") not in {"failed", "incomplete"}:
        return ""
    return json.dumps(details or {"status": body["status"]})[: response_parsing.MAX_MESSAGE_LENGTH]


def read_token_data(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and log-probabilities that the body of an answer contains.

    Only bodies of the protocol ``chat`` contain token ids. Bodies of ``responses`` contain
    log-probabilities in the parts of their text.

    Returns:
        A tuple for each of ``token_ids``, ``prompt_token_ids`` and ``logprobs`` that the body
        contains.
    """
    token_data: dict[str, Any] = {}
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if isinstance(ids := choice.get("token_ids"), list):
        token_data["token_ids"] = tuple(ids)
    if isinstance(ids := body.get("prompt_token_ids"), list):
        token_data["prompt_token_ids"] = tuple(ids)
    logprob_entries = (choice.get("logprobs") or {}).get("content") or []
    for output_item in body.get("output") or ():
        parts = output_item.get("content") if isinstance(output_item, dict) else None
        for part in parts if isinstance(parts, list) else ():
            logprob_entries = [*logprob_entries, *(part.get("logprobs") or ())]
    if logprob_entries:
        token_data["logprobs"] = tuple(
            entry.get("logprob") for entry in logprob_entries if isinstance(entry, dict)
        )
    return token_data


def read_dialogue(protocol: Name, request_body: Mapping[str, Any]) -> tuple[Message, ...]:
    """Decode the messages in the body of a request, including the system prompt."""
    if protocol == "responses":
        return (
            *_system_messages(request_body.get("instructions")),
            *_input_messages(request_body.get("input")),
        )
    system_messages = _system_messages(request_body.get("system"))
    return (
        *system_messages,
        *(
            message
            for item in request_body.get("messages") or ()
            for message in _decode_message(item)
        ),
    )


def tool_names(request_body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the tools in a request's body; a tool without a name gives its type."""
    tools = (tool.get("function", tool) for tool in request_body.get("tools") or ())
    return tuple(
        str(tool_function.get("name") or tool_function.get("type"))
        for tool_function in tools
        if isinstance(tool_function, dict)
    )


def _system_messages(value: Any) -> tuple[Message, ...]:
    return (Message("system", _content_text(value)),) if value else ()


def _role(value: Any) -> Role:
    roles: dict[Any, Role] = {"assistant": "assistant", "user": "user", "tool": "tool"}
    # Every other role, such as "developer", is equivalent to "system".
    return roles.get(value if isinstance(value, str) else "", "system")


def _content_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return response_parsing.replace_surrogates(content or "")
    parts = content if isinstance(content, list) else [content]
    return "".join(_part_text(part) for part in parts)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    for key in ("text", "refusal"):
        if isinstance(text := part.get(key), str):
            return response_parsing.replace_surrogates(text)
    kind = str(part.get("type", ""))
    return "[image]" if "image" in kind else f"[{kind}]"


def _decode_message(message_data: Mapping[str, Any]) -> Iterator[Message]:
    """Decode a message of ``chat`` or ``messages``; each tool result becomes its own message."""
    role, content = _role(message_data.get("role")), message_data.get("content")
    blocks = content if isinstance(content, list) else []
    content_blocks: list[Any] = []
    tool_calls: list[ToolCall] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_result":
            yield Message(
                "tool", _content_text(block.get("content")), (), str(block.get("tool_use_id"))
            )
        elif kind == "tool_use":
            arguments = response_parsing.arguments(block.get("input"))
            tool_calls.append(ToolCall(str(block.get("id")), str(block.get("name")), arguments))
        elif kind not in {"thinking", "redacted_thinking"}:
            content_blocks.append(block)
    for tool_call in message_data.get("tool_calls") or ():
        function = tool_call.get("function") or tool_call.get("custom") or {}
        arguments = response_parsing.arguments(function.get("arguments", function.get("input")))
        tool_calls.append(ToolCall(str(tool_call.get("id")), str(function.get("name")), arguments))
    if content_blocks or tool_calls or not blocks:
        text = _content_text(content_blocks if blocks else content)
        call_id = message_data.get("tool_call_id")
        yield Message(role, text, tuple(tool_calls), call_id if isinstance(call_id, str) else None)


def _input_messages(input_items: Any) -> Iterable[Message]:
    if isinstance(input_items, str):
        yield Message("user", input_items)
        return
    for item in input_items or ():
        kind = item.get("type", "message")
        if kind == "message":
            yield Message(_role(item.get("role")), _content_text(item.get("content")))
        elif kind.endswith("_call"):
            yield Message("assistant", "", (responses_decoding.call(item),))
        elif kind.endswith("_output"):
            output = item.get("output")
            text = json.dumps(output) if isinstance(output, dict) else _content_text(output)
            yield Message("tool", text, (), str(item.get("call_id")))
