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
        arguments: Arguments by name. If the model's text is not a JSON object, the arguments are
            ``{"_raw": text}``.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool of an environment, and functions that convert its calls to actions and back."""

    tool: Tool
    action: Callable[[Mapping[str, Any]], str]
    """A function that converts arguments of a call to an action. For invalid arguments, the action
    is a `NoAction` with the reason."""
    arguments: Callable[[str], Mapping[str, Any] | None]
    """A function that converts an action to arguments of a call; None: the action belongs to
    another tool."""
