"""Tools and calls of them, in plain data: an environment's actions as functions with arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may ask to have called; its parameters are a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model asks to have called.

    Attributes:
        call_id: The id that the answer, a message of role ``tool``, refers to.
        name: The tool's name.
        arguments: Arguments by name. Text that is not a JSON object is kept: ``{"_raw": text}``.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verb:
    """A tool, and the action that a call of it stands for."""

    tool: Tool
    action: Callable[[Mapping[str, Any]], str]
    """Makes the action from the arguments; a `NoAction` says what is wrong with them."""
    arguments: Callable[[str], Mapping[str, Any] | None]
    """Reads the arguments from an action; None: it is not one of this tool."""
