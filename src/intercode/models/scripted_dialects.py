"""How servers differ, for `intercode.models.scripted_server`: what each makes of one answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from intercode.models.base import Usage
from intercode.models.client import Answer

Payload = dict[str, Any]
Dialect = Callable[[Payload], Payload]
"""Changes an answer of ``chat/completions`` into what another server would say."""


def chat(answer: Answer) -> Payload:
    """An answer of ``chat/completions``, as OpenAI has it."""
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
    """An answer of ``completions``."""
    choice = {"index": 0, "text": answer.text, "logprobs": None, "finish_reason": _finish(answer)}
    return _envelope(answer, "text_completion", choice)


def messages(answer: Answer) -> Payload:
    """An answer of Anthropic's ``messages``."""
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


def openai(payload: Payload) -> Payload:
    """As it is."""
    return payload


def vllm(payload: Payload) -> Payload:
    """Fields of its own, details of the usage that are null, no word that tools are called."""
    choice = payload["choices"][0]
    choice |= {"stop_reason": None, "token_ids": None}
    if "message" in choice:
        choice["message"] |= {"reasoning_content": "Hm.", "function_call": None, "audio": None}
        choice["message"].setdefault("tool_calls", [])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"]["prompt_tokens_details"] = None
    return payload | {"prompt_logprobs": None, "kv_transfer_params": None, "service_tier": None}


def ollama(payload: Payload) -> Payload:
    """Arguments that are objects, calls without an id, ``stop`` where tools are called."""
    choice = payload["choices"][0]
    for call in choice.get("message", {}).get("tool_calls", ()):
        call.pop("id")
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    if choice["finish_reason"] == "tool_calls":
        choice["finish_reason"] = "stop"
    payload["usage"].pop("prompt_tokens_details")
    return payload | {"system_fingerprint": "fp_ollama"}


def llama_cpp(payload: Payload) -> Payload:
    """Timings, content that is null, and with an old build no usage."""
    choice = payload["choices"][0]
    if "message" in choice and not choice["message"]["content"]:
        choice["message"]["content"] = None
    payload.pop("usage")
    choice["finish_reason"] = None
    return payload | {"timings": {"prompt_n": 1, "predicted_n": 1}, "__verbose": {"stop": True}}


def calls_in_text(payload: Payload) -> Payload:
    """A server without the model's template: the calls stay in the text."""
    message = payload["choices"][0]["message"]
    said = [message["content"] or ""]
    for call in message.pop("tool_calls", ()):
        function = call["function"]
        body = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        said.append(f"<tool_call>\n{json.dumps(body)}\n</tool_call>")
    message["content"] = "\n".join(said)
    payload["choices"][0]["finish_reason"] = "stop"
    return payload


DIALECTS: dict[str, Dialect] = {
    "openai": openai,
    "vllm": vllm,
    "ollama": ollama,
    "llama.cpp": llama_cpp,
    "calls-in-text": calls_in_text,
}
TOO_LONG: dict[str, tuple[int, Payload]] = {
    "openai": (
        400,
        {
            "error": {
                "message": "This model's maximum context length is 10 tokens.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    ),
    "vllm": (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 10 tokens. However, you requested "
            "20 tokens (15 in the messages, 5 in the completion).",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 20,
                "n_ctx": 10,
            }
        },
    ),
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 20 tokens > 10 maximum",
            },
        },
    ),
}
"""How each says that a dialogue is too long; others say it as OpenAI does. (Ollama cuts it.)"""
