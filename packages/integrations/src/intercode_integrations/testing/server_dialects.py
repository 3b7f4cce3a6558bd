"""Dialects of the scripted server: the variants in which real servers implement OpenAI's protocol.

`DIALECTS` lists them by name. The module also has the functions that write an answer in each
protocol.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from intercode.models.api_fields import ERRORS
from intercode.models.base import Answer, Message, Usage, as_openai
from intercode_integrations.testing.streams import tokens

Payload = dict[str, Any]
Dialect = Callable[[Payload, Mapping[str, Any]], Payload]
"""Function that converts an answer of ``chat/completions``, given with the request's body, into the
answer of another server to the same request."""


def chat(answer: Answer, turn: int = 1) -> Payload:
    """Return an answer of OpenAI's ``chat/completions``.

    Args:
        answer: The answer.
        turn: The number of earlier messages of the model in the dialogue, from which ids are made.
            Agents take two answers with the same id for parts of one answer.
    """
    openai_message = as_openai(Message("assistant", answer.text, answer.tool_calls))
    message: Payload = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.tool_calls:
        message |= {"tool_calls": openai_message["tool_calls"], "content": answer.text or None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, turn, "chat.completion", choice)


def completion(answer: Answer, turn: int = 1) -> Payload:
    """Return an answer of OpenAI's ``completions``; the arguments are as for `chat`."""
    choice = {"index": 0, "text": answer.text, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, turn, "text_completion", choice)


def messages(answer: Answer, turn: int = 1) -> Payload:
    """Return an answer of Anthropic's ``messages``; the arguments are as for `chat`."""
    usage = answer.usage or Usage()
    blocks: list[Payload] = [{"type": "text", "text": answer.text}] if answer.text else []
    blocks += [
        {
            "type": "tool_use",
            "id": tool_call.call_id,
            "name": tool_call.name,
            "input": dict(tool_call.arguments),
        }
        for tool_call in answer.tool_calls
    ]
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "filter": "refusal"}
    return {
        "id": f"msg_{turn}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": blocks,
        "stop_reason": reasons.get(answer.finish, "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input_tokens - usage.cached_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.output_tokens,
        },
    }


def responses(answer: Answer, turn: int = 1) -> Payload:
    """Return an answer of OpenAI's ``responses``; the arguments are as for `chat`."""
    usage = answer.usage or Usage()
    reasons = {"length": "max_output_tokens", "filter": "content_filter"}
    reason = reasons.get(answer.finish)
    status = "incomplete" if reason else "completed"
    output_items: list[Payload] = []
    if answer.text:
        text_part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message_item = {"type": "message", "role": "assistant", "content": [text_part]}
        output_items.append({"id": f"msg_{turn}", "status": status, **message_item})
    output_items += [
        {
            "id": f"fc_{turn}_{call_index}",
            "type": "function_call",
            "status": "completed",
            "call_id": tool_call.call_id,
            "name": tool_call.name,
            "arguments": json.dumps(dict(tool_call.arguments)),
        }
        for call_index, tool_call in enumerate(answer.tool_calls)
    ]
    return {
        "id": f"resp_{turn}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "metadata": {},
        "model": answer.model,
        "output": output_items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total,
        },
    }


def error(path: str, status: int, message: str, code: str | None) -> Payload:
    """Return the body of an error response, in the form of the protocol at `path`."""
    if path.startswith("messages"):
        return {
            "type": "error",
            "error": {"type": ERRORS.get(status, "api_error"), "message": message},
        }
    return {"error": {"message": message, "type": "scripted_error", "param": None, "code": code}}


def _finish(answer: Answer) -> str:
    return "content_filter" if answer.finish == "filter" else answer.finish


def _envelope(answer: Answer, turn: int, kind: str, choice: Payload) -> Payload:
    usage = answer.usage or Usage()
    return {
        "id": f"cmpl-{turn}",
        "object": kind,
        "created": 0,
        "model": answer.model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }


def openai(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Return an answer unchanged: the dialect of OpenAI itself."""
    return payload


def vllm(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Write an answer as vLLM does: with vLLM's own fields, and without details of the usage.

    The finish reason of tool calls becomes ``stop``.
    """
    choice = payload["choices"][0]
    choice |= {"stop_reason": None, "token_ids": None}
    if "message" in choice:
        choice["message"] |= {"reasoning_content": "Hm.", "function_call": None, "audio": None}
        choice["message"].setdefault("tool_calls", [])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"]["prompt_tokens_details"] = None
    return payload | {"prompt_logprobs": None, "kv_transfer_params": None, "service_tier": None}


def ollama(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Write tool calls as Ollama does: arguments as objects, no ids, and finish reason ``stop``."""
    choice = payload["choices"][0]
    for tool_call in choice.get("message", {}).get("tool_calls", ()):
        tool_call.pop("id")
        tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"].pop("prompt_tokens_details")
    return payload | {"system_fingerprint": "fp_ollama"}


def llama_cpp(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Add timings and remove null fields, as ``llama-server`` of build b1-0c1e570 does."""
    choice = payload["choices"][0]
    if "message" in choice:
        choice.pop("logprobs")
        choice["message"].pop("refusal")
        choice["message"]["content"] = choice["message"]["content"] or ""
    timings = {"cache_n": 0, "prompt_n": 1, "prompt_ms": 4.2, "predicted_n": 1, "predicted_ms": 0.1}
    return payload | {"system_fingerprint": "b1-0c1e570", "timings": timings}


def old_llama_cpp(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Write an answer as an old build of llama.cpp does: without usage, content or finish reason.

    A text that is not empty stays.
    """
    payload = llama_cpp(payload, request_body)
    choice = payload["choices"][0]
    if "message" in choice:
        choice["message"]["content"] = choice["message"]["content"] or None
    payload.pop("usage")
    choice["finish_reason"] = None
    return payload | {"__verbose": {"stop": True}}


def llama_cpp_python(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Write tool calls as llama-cpp-python does in its format ``chatml-function-calling``.

    The form is that of release 0.3.36. Arguments have raw line ends, and the last call is repeated
    in another field. Without the tool choice ``auto``, the answer has no tool calls.
    """
    choice = payload["choices"][0]
    payload["usage"].pop("prompt_tokens_details")
    message = choice.get("message", {})
    message.pop("refusal", None)
    if request_body.get("tool_choice") != "auto" and message.pop("tool_calls", None):
        choice |= {"finish_reason": "stop"}
    for call_index, tool_call in enumerate(message.get("tool_calls", ())):
        function = tool_call["function"]
        function["arguments"] = function["arguments"].replace("\\n", "\n")
        tool_call["id"] = f"call__{call_index}_{function['name']}_{payload['id']}"
        message["function_call"] = {**function, "name": f"{function['name']}:"}
    return payload


def calls_in_text(payload: Payload, request_body: Mapping[str, Any]) -> Payload:
    """Write tool calls into the text, as a server that lacks the model's call format does."""
    message = payload["choices"][0]["message"]
    content_parts = [message["content"] or ""]
    for tool_call in message.pop("tool_calls", ()):
        function = tool_call["function"]
        call_body = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        content_parts.append(f"<tool_call>\n{json.dumps(call_body)}\n</tool_call>")
    message["content"] = "\n".join(content_parts)
    payload["choices"][0]["finish_reason"] = "stop"
    return payload


def no_json(request_body: Mapping[str, Any]) -> tuple[int, Payload] | None:
    """Return llama.cpp's refusal of tool arguments that are not JSON; None if all are JSON."""
    tool_calls = [
        tool_call
        for message in request_body.get("messages", ())
        for tool_call in message.get("tool_calls", ())
    ]
    try:
        for tool_call in tool_calls:
            json.loads(tool_call["function"]["arguments"])
    except ValueError as error:
        error_text = f"Failed to parse tool call arguments as JSON: {error}"
        return 500, {"error": {"code": 500, "message": error_text, "type": "server_error"}}
    return None


def add_token_data(
    payload: Payload, request_body: Mapping[str, Any], input_messages: Iterable[Message]
) -> Payload:
    """Add log-probabilities and vLLM's token ids to an answer of OpenAI, if the request wants them.

    Each token that the usage counts has an id and a log-probability. A tool call counts as a token
    for its name, and the tokens of its arguments. Both values depend only on the token's text.
    """
    if not request_body.get("return_token_ids") and request_body.get("logprobs") in {None, False}:
        return payload
    choice = payload["choices"][0]
    answer_tokens = tokens(
        choice["text"] if "text" in choice else choice["message"]["content"] or ""
    )
    for tool_call in choice.get("message", {}).get("tool_calls") or ():
        call_arguments = tool_call["function"]["arguments"]
        answer_tokens += [tool_call["function"]["name"]]
        answer_tokens += tokens(
            call_arguments if isinstance(call_arguments, str) else json.dumps(call_arguments)
        )
    if request_body.get("logprobs") not in {None, False} and "text" in choice:
        choice["logprobs"] = {
            "tokens": answer_tokens,
            "token_logprobs": [_logprob(token) for token in answer_tokens],
            "top_logprobs": None,
            "text_offset": [
                len("".join(answer_tokens[:index])) for index in range(len(answer_tokens))
            ],
        }
    elif request_body.get("logprobs"):
        choice["logprobs"] = {
            "content": [
                {
                    "token": token,
                    "logprob": _logprob(token),
                    "bytes": list(token.encode()),
                    "top_logprobs": [],
                }
                for token in answer_tokens
            ],
            "refusal": None,
        }
    if request_body.get("return_token_ids"):
        prompt_words = [
            prompt_word for message in input_messages for prompt_word in message.content.split()
        ]
        payload["prompt_token_ids"] = [token_id(prompt_word) for prompt_word in prompt_words]
        choice["token_ids"] = [token_id(token) for token in answer_tokens]
    return payload


def token_id(token: str) -> int:
    """Return the id of a token, which is a word with or without surrounding white space."""
    return zlib.crc32(token.strip().encode()) % 32_000


def _logprob(token: str) -> float:
    return -(1 + token_id(token) % 100) / 128


DIALECTS: dict[str, Dialect] = {
    "openai": openai,
    "vllm": vllm,
    "ollama": ollama,
    "llama.cpp": llama_cpp,
    "old llama.cpp": old_llama_cpp,
    "llama-cpp-python": llama_cpp_python,
    "calls-in-text": calls_in_text,
}
_LIMIT = "This model's maximum context length is 10 tokens."
_OPENAI = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
TOO_LONG: dict[str, Payload] = {
    "openai": {"error": {"message": _LIMIT, **_OPENAI}},
    "vllm": {
        "object": "error",
        "message": f"{_LIMIT} However, you requested 20 tokens (15 in the messages, 5 in the "
        "completion).",
        "type": "BadRequestError",
        "code": 400,
    },
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": "request (20 tokens) exceeds the available context size (10 tokens), try "
            "increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 20,
            "n_ctx": 10,
        }
    },
    "llama-cpp-python": {
        "error": {
            "message": f"{_LIMIT} However, you requested 20 tokens (20 in the messages, None in "
            "the completion). Please reduce the length of the messages or completion.",
            **_OPENAI,
        }
    },
    "anthropic": {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 20 tokens > 10 maximum",
        },
    },
}
"""Dialect → body of the response with status 400 to a dialogue that is too long. Dialects that are
not listed send OpenAI's body. (Ollama truncates the dialogue instead.)"""
