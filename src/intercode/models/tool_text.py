"""Tool calls that a server has left in the text.

A model calls tools in text; the server is to take them out. Servers without the right template or
parser (llama.cpp without ``--jinja``, vLLM without ``--enable-auto-tool-choice``) hand it on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from intercode.models.base import ToolCall
from intercode.models.decoding import arguments

_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def extract(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """A text without the calls in it, and the calls.

    Taken are ``<tool_call>{…}</tool_call>`` (Hermes, Qwen), and a text that is nothing but a call
    (Llama), both only of tools that were offered: JSON for its own sake stays text.
    """
    calls: list[ToolCall] = []

    def take(source: str) -> bool:
        call = _call(source, names, len(calls))
        if call is not None:
            calls.append(call)
        return call is not None

    rest = _TAG.sub(lambda match: "" if take(match[1].strip()) else match[0], text)
    if not calls and take(text.strip()):
        rest = ""
    return (rest.strip() if calls else text), tuple(calls)


def _call(source: str, names: Collection[str], number: int) -> ToolCall | None:
    try:
        data: Any = json.loads(source, strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("name") not in names:
        return None
    given = data.get("arguments", data.get("parameters"))
    return None if given is None else ToolCall(f"text_{number}", data["name"], arguments(given))
