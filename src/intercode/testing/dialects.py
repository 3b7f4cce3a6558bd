"""Dialects of servers, for `intercode.testing.server`: one answer in the form of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from intercode.models.base import Answer, Usage

Payload = dict[str, Any]
Dialect = Callable[[Payload, Mapping[str, Any]], Payload]
"""Changes an answer of ``chat/completions`` into another server's answer to the same request."""


def chat(answer: Answer) -> Payload:
    """Return an answer of ``chat/completions`` in OpenAI's form."""
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for call in answer.tool_calls
    ]
    message: Payload = {"role": "assistant", "content": answer.text, "refusal": None}
    if calls:
        message |= {"tool_calls": calls, "content": answer.text or None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, "chat.completion", choice)


def completion(answer: Answer) -> Payload:
    """Return an answer of ``completions``."""
    choice = {"index": 0, "text": answer.text, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, "text_completion", choice)


def messages(answer: Answer) -> Payload:
    """Return an answer of Anthropic's ``messages``."""
    usage = answer.usage or Usage()
    blocks: list[Payload] = [{"type": "text", "text": answer.text}] if answer.text else []
    blocks += [
        {"type": "tool_use", "id": c.call_id, "name": c.name, "input": dict(c.arguments)}
        for c in answer.tool_calls
    ]
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "filter": "refusal"}
    return {
        "id": "msg_1",
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


def _finish(answer: Answer) -> str:
    return "content_filter" if answer.finish == "filter" else answer.finish


def _envelope(answer: Answer, kind: str, choice: Payload) -> Payload:
    usage = answer.usage or Usage()
    return {
        "id": "cmpl-1",
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


def openai(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Return the answer unchanged."""
    return payload


def vllm(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Add vLLM's own fields and null details of the usage; say ``stop`` where tools are called."""
    choice = payload["choices"][0]
    choice |= {"stop_reason": None, "token_ids": None}
    if "message" in choice:
        choice["message"] |= {"reasoning_content": "Hm.", "function_call": None, "audio": None}
        choice["message"].setdefault("tool_calls", [])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"]["prompt_tokens_details"] = None
    return payload | {"prompt_logprobs": None, "kv_transfer_params": None, "service_tier": None}


def ollama(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Write arguments as objects, calls without an id, and ``stop`` where tools are called."""
    choice = payload["choices"][0]
    for call in choice.get("message", {}).get("tool_calls", ()):
        call.pop("id")
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"].pop("prompt_tokens_details")
    return payload | {"system_fingerprint": "fp_ollama"}


def llama_cpp(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Add timings, and leave out nulls, as ``llama-server`` b1-0c1e570 does."""
    choice = payload["choices"][0]
    if "message" in choice:
        choice.pop("logprobs")
        choice["message"].pop("refusal")
        choice["message"]["content"] = choice["message"]["content"] or ""
    timings = {"cache_n": 0, "prompt_n": 1, "prompt_ms": 4.2, "predicted_n": 1, "predicted_ms": 0.1}
    return payload | {"system_fingerprint": "b1-0c1e570", "timings": timings}


def old_llama_cpp(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Write an old build's answer: no usage, null content and reasons."""
    payload = llama_cpp(payload, asked)
    choice = payload["choices"][0]
    if "message" in choice:
        choice["message"]["content"] = choice["message"]["content"] or None
    payload.pop("usage")
    choice["finish_reason"] = None
    return payload | {"__verbose": {"stop": True}}


def llama_cpp_python(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Put raw line ends into arguments, repeat calls, and call no tools unless ``auto``.

    So does version 0.3.36, with the chat format ``chatml-function-calling``.
    """
    choice = payload["choices"][0]
    payload["usage"].pop("prompt_tokens_details")
    message = choice.get("message", {})
    message.pop("refusal", None)
    if asked.get("tool_choice") != "auto" and message.pop("tool_calls", None):
        choice |= {"finish_reason": "stop"}
    for number, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        function["arguments"] = function["arguments"].replace("\\n", "\n")
        call["id"] = f"call__{number}_{function['name']}_{payload['id']}"
        message["function_call"] = {**function, "name": f"{function['name']}:"}
    return payload


def calls_in_text(payload: Payload, asked: Mapping[str, Any]) -> Payload:
    """Leave calls in the text, as servers do that do not know the model's form of calls."""
    message = payload["choices"][0]["message"]
    said = [message["content"] or ""]
    for call in message.pop("tool_calls", ()):
        function = call["function"]
        body = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        said.append(f"<tool_call>\n{json.dumps(body)}\n</tool_call>")
    message["content"] = "\n".join(said)
    payload["choices"][0]["finish_reason"] = "stop"
    return payload


def no_json(asked: Mapping[str, Any]) -> tuple[int, Payload] | None:
    """Return llama.cpp's refusal of arguments that are not JSON; None if all are."""
    calls = [
        call for message in asked.get("messages", ()) for call in message.get("tool_calls", ())
    ]
    try:
        for call in calls:
            json.loads(call["function"]["arguments"])
    except ValueError as error:
        said = f"Failed to parse tool call arguments as JSON: {error}"
        return 500, {"error": {"code": 500, "message": said, "type": "server_error"}}
    return None


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
"""The body of status 400 that says that a dialogue is too long; other servers send OpenAI's.
(Ollama cuts the dialogue.)"""
