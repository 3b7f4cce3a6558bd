"""The protocols of models and clients, and the plain data that they exchange.

A `Model` answers dialogues. A `ModelClient` makes a single call to a single provider, without
retries. `intercode.models.remote` adds cache, budget, rate limit, retries and cost, equally for all
providers. Clients are therefore small, including user-defined ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from intercode.tool_calls import Tool as Tool, ToolCall as ToolCall

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls", "filter"]

MESSAGE_OVERHEAD = 16
"""Upper bound of the tokens that a chat template adds to each message."""
TOOLS_OVERHEAD = 1024
"""Upper bound of the tokens of a provider's hidden prompt for requests with tools."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue.

    Attributes:
        role: The speaker.
        content: The text.
        tool_calls: The tool calls of an assistant's message.
        call_id: The id of the call that a message of role ``tool`` answers.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None


def tool_as_openai(tool: Tool) -> dict[str, Any]:
    """Return a tool in the format of OpenAI's chat completions."""
    function = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**function, "parameters": dict(tool.parameters)}}


def as_openai(message: Message) -> dict[str, Any]:
    """Return a message in the format of OpenAI's chat completions."""
    payload: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        payload["tool_call_id"] = message.call_id or ""
    if message.tool_calls:
        # Arguments are always serialised as JSON, because some servers refuse a dialogue in which
        # the arguments of a call are other text.
        payload["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in message.tool_calls
        ]
    return payload


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling settings; ``None`` selects the model's default.

    Attributes:
        trace: Whether requests ask for the token ids of prompt and reply, and for the
            log-probabilities. Self-hosted servers such as vLLM return them.
    """

    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    trace: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the settings in the form of records: with `trace` only if it is set."""
        fields = asdict(self)
        # Without the field, records and hashes equal those from the time before `trace` existed.
        if not self.trace:
            del fields["trace"]
        return fields


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The token ids of a call, as the server reports them.

    A second tokenisation of the texts might give other ids.

    Attributes:
        prompt: The ids of the complete prompt that the model received.
        ids: The ids of the reply that the model generated.
        logprobs: The natural logarithm of the probability of each id in `ids`, in the same order;
            None: the server reports no log-probabilities.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    @classmethod
    def parse(cls, prompt: object, ids: object, logprobs: object) -> TokenTrace | None:
        """Return the trace from a response's fields; None if prompt or reply ids are missing.

        Log-probabilities of another number than the ids are ignored.
        """
        if not (_is_list_of(int, prompt) and _is_list_of(int, ids)):
            return None
        has_logprobs = _is_list_of((int, float), logprobs) and len(logprobs) == len(ids)  # type: ignore[arg-type]
        return cls(tuple(prompt), tuple(ids), tuple(map(float, logprobs)) if has_logprobs else None)  # type: ignore[arg-type, call-overload]


def _is_list_of(kind: type | tuple[type, ...], values: object) -> bool:
    listed = isinstance(values, (list, tuple))
    return listed and all(isinstance(value, kind) for value in values)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts from the provider.

    Attributes:
        input_tokens: Tokens of the prompt, including `cached_tokens`.
        output_tokens: Tokens of the reply, including hidden reasoning.
        cached_tokens: Tokens of the prompt that the provider read from its cache.
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
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer with its cost.

    Attributes:
        text: The text; may be empty in a reply with tool calls.
        tool_calls: The tool calls of the reply.
        usage: The tokens that the provider reports for the call; zeros if none are reported. A
            cached reply has the tokens of the original call.
        cost: US dollars; ``None`` if the price or the token counts are unknown.
        model: The provider's name of the model that answered.
        finish: The reason for the end of the reply: ``length`` at the token limit, ``filter`` for a
            refusal by the provider.
        cached: Whether the reply comes from InterCode's cache; then no call was made and the cost
            is 0.
        seconds: Duration of the successful call, without waiting and retries.
        retries: The number of failed calls before the successful one.
        trace: The token ids, if they were requested and the server reports them.
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
    trace: TokenTrace | None = None


class Model(Protocol):
    """A language model, which several threads may call at once."""

    name: str

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's next message.

        Raises:
            ContextLengthError: The dialogue exceeds the model's context length.
            BudgetError: The call might cost more than the remaining budget.
            ModelUnavailableError: No try returned an answer.
            ModelError: The provider refused the request permanently.
        """


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model: dialogue, settings and tools."""

    messages: tuple[Message, ...]
    settings: Settings = field(default_factory=Settings)
    tools: tuple[Tool, ...] = ()

    def most_input_tokens(self) -> int:
        """Return an upper bound of the prompt's tokens.

        The bound counts bytes, because each token has at least one byte.
        """
        size = sum(len(message.content.encode(errors="replace")) for message in self.messages)
        size += MESSAGE_OVERHEAD * len(self.messages)
        for message in self.messages:
            size += sum(len(json.dumps([c.name, dict(c.arguments)])) for c in message.tool_calls)
        for tool in self.tools:
            size += len(json.dumps([tool.name, tool.description, dict(tool.parameters)]))
        return size + (TOOLS_OVERHEAD if self.tools else 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call; `usage` is ``None`` if the server reports no token counts."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    finish: Finish = "stop"
    trace: TokenTrace | None = None


class AttemptError(Exception):
    """A failed call that a retry may repair.

    Clients raise the error. `ModelCallLimiter` retries the call, and after the last try raises a
    `ModelError` instead, so callers of `Model.complete` never receive this error.

    Attributes:
        retry_after: Seconds that the server asks callers to wait; None: not stated.
        throttled: Whether the server refused the call for its rate limit.
        charged: Whether the model may have run. If so, the provider may charge for the call.
        unreachable: Whether no server could be reached.
    """

    def __init__(
        self,
        reason: str,
        *,
        retry_after: float | None = None,
        throttled: bool = False,
        charged: bool = False,
        unreachable: bool = False,
    ) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.throttled = throttled
        self.charged = charged
        self.unreachable = unreachable


class ModelClient(Protocol):
    """A connection to one model of one provider.

    Attributes:
        endpoint: The address and protocol of the server. The key of a cached reply includes the
            endpoint.
    """

    endpoint: str

    def send(self, request: Request) -> Answer:
        """Send one request, without retries. Several threads may call this method at once.

        Raises:
            AttemptError: The call returned no usable answer; a retry may succeed.
            ModelError: The provider refused the request permanently.
        """

    def close(self) -> None:
        """Close all connections."""


@runtime_checkable
class SupportsServerStart(Protocol):
    """A client that starts its own server on this machine."""

    weights: str
    """The SHA-256 of the model's file, in hexadecimal."""

    def start(self, calls: int = 1) -> None:
        """Start the server unless it runs; the first `send` also starts the server.

        Args:
            calls: The number of concurrent calls to expect.

        Raises:
            UsageError: The free memory is too small for the server.
            ModelAccessError: The server cannot be started.
        """


ClientFactory = Callable[..., ModelClient]
"""A function ``factory(model, *, base_url: str | None, timeout: float)`` that returns a client. The
registry `MODELS` maps each provider's name to a factory."""
