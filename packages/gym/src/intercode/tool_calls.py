"""Tools and tool calls as plain data: an environment's actions as functions with arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call; its parameters are a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool.

    Attributes:
        call_id: The id that the result, a message of role ``tool``, refers to.
        name: The tool's name.
        arguments: Arguments by name. Text that is not JSON object is retained: ``{"_raw": text}``.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verb:
    """A tool, with the conversion between its calls and actions."""

    tool: Tool
    action: Callable[[Mapping[str, Any]], str]
    """Converts arguments to an action; a `NoAction` explains invalid arguments."""
    arguments: Callable[[str], Mapping[str, Any] | None]
    """Converts an action to arguments; None: another tool's action."""
