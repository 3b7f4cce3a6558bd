"""The contract of a model: messages in, a reply out. Plain data, that of no provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls", "filter"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model asks to have called.

    Attributes:
        call_id: What the answer, a message of role ``tool``, refers to.
        name: The tool's.
        arguments: By name. What is no JSON object is kept as it came: ``{"_raw": text}``.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue.

    Attributes:
        role: Who says it.
        content: What.
        tool_calls: What an assistant asked to have called.
        call_id: The call that a message of role ``tool`` answers.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may ask to have called; its parameters are a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to sample. ``None`` leaves it to the model."""

    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them.

    Attributes:
        input_tokens: Of the prompt, those from the provider's cache among them.
        output_tokens: Of the reply, hidden reasoning among them.
        cached_tokens: How many of the prompt's the provider had in its cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    @property
    def total(self) -> int:
        """All tokens, in and out."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered, and what that took.

    Attributes:
        text: What it said; may be empty where it calls tools.
        tool_calls: What it asks to have called.
        usage: What was charged for, as far as the provider says.
        cost: In US dollars; ``None`` where the price, or the tokens, are unknown.
        model: The model that answered, as its provider names it.
        finish: Why it ended: ``length`` is cut off, ``filter`` refused by the provider.
        cached: It comes from our cache: nothing was called, and it cost nothing.
        seconds: How long the call that answered took; neither waiting nor retries.
        retries: How many calls failed before it.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    cost: float | None = None
    model: str = ""
    finish: Finish = "stop"
    cached: bool = False
    seconds: float = 0.0
    retries: int = 0


class Model(Protocol):
    """A language model. It may be called from several threads at once."""

    name: str

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """The model's next message.

        Raises:
            ContextLengthError: The dialogue is longer than the model takes.
            BudgetError: The call might cost more than is left.
            ModelUnavailableError: No answer, after all retries.
            ModelError: The provider refused the request for good.
        """
