"""What all protocols share: bodies as JSON, reasons to end, arguments of tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from intercode.models.base import Finish
from intercode.models.client import AttemptError

_FINISH: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "limit": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filter",
    "safety": "filter",
    "refusal": "filter",
}


def unusable(reason: str) -> AttemptError:
    """The error that an answer is which makes no sense. The model has worked for it."""
    return AttemptError(reason, charged=True)


def load(body: bytes) -> dict[str, Any]:
    """The JSON object of a response.

    Raises:
        AttemptError: It is none: cut off, or a proxy's page.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unusable(f"the answer is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise unusable(f"the answer is no JSON object but a {type(data).__name__}")
    return data


def finish(reason: object, calls: bool) -> Finish:
    """Why a reply ended, in our words; servers have many."""
    known = _FINISH.get(str(reason).lower(), "stop")
    if calls and known == "stop":  # Ollama and older vLLM say "stop" even where tools are called
        return "tool_calls"
    return "stop" if known == "tool_calls" and not calls else known


def arguments(value: object) -> Mapping[str, Any]:
    """A call's arguments: JSON as a text, as OpenAI has it, or an object, as Ollama has it."""
    if isinstance(value, str):
        try:
            # Not strict: llama-cpp-python lets models put line ends of their own into it.
            parsed = json.loads(value, strict=False) if value.strip() else {}
        except (ValueError, RecursionError):
            return {"_raw": value}
        return parsed if isinstance(parsed, dict) else {"_raw": value}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"_raw": json.dumps(value)}


def clean(text: str) -> str:
    """A text that can be sent and written: half a character, as JSON may escape one, is no text."""
    if text.isascii():  # quick, and mostly so
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def text_of(content: object) -> str:
    """A message's content: a text, nothing, or a list of parts of which some are text."""
    if isinstance(content, str):
        return clean(content)
    if isinstance(content, list):
        parts = (part if isinstance(part, dict) else {"text": part} for part in content)
        return clean("".join(p["text"] for p in parts if isinstance(p.get("text"), str)))
    if content is None:
        return ""
    raise unusable(f"the answer's content is a {type(content).__name__}")


def tokens(usage: Mapping[str, Any], *names: str) -> int | None:
    """A count under one of these names."""
    for name in names:
        count = usage.get(name)
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None
