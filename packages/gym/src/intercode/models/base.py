"""The contracts of models and of clients, and the plain data that they exchange.

A `Model` answers dialogues. A `Client` makes a single call to a single provider, without a second
try; `intercode.models.remote` puts cache, budget, pace, retries and cost around it, the same for
all providers. So a client is small, also one of a reader's own.
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
"""Upper bound of the tokens that a chat template puts around a message."""
TOOLS_OVERHEAD = 1024
"""Upper bound of the tokens of a provider's own prompt where tools are offered."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a dialogue.

    Attributes:
        role: The speaker.
        content: The text.
        tool_calls: The calls that an assistant asked for.
        call_id: The call that a message of role ``tool`` answers.
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None


def tool_as_openai(tool: Tool) -> dict[str, Any]:
    """Return a tool as the chat completions of OpenAI have it."""
    function = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**function, "parameters": dict(tool.parameters)}}


def as_openai(message: Message) -> dict[str, Any]:
    """Return a message as the chat completions of OpenAI have it."""
    payload: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        payload["tool_call_id"] = message.call_id or ""
    if message.tool_calls:
        # Arguments that were no JSON are so now: servers that read them refuse the dialogue else.
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
    """Sampling settings. ``None`` leaves a setting to the model.

    Attributes:
        trace: Whether the server is asked for the token ids of prompt and reply, and for the
            log-probabilities. Servers of one's own tell them, as vLLM does.
    """

    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    trace: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the settings as records have them: `trace` only if it is on."""
        fields = asdict(self)
        if not self.trace:  # what was recorded before there was such a thing stays equal
            del fields["trace"]
        return fields


@dataclass(frozen=True, slots=True)
class Trace:
    """The tokens of a call as the server had them: no text was tokenized again for it.

    Attributes:
        prompt: Ids of the whole prompt, as the model saw it.
        ids: Ids of the reply, as the model made them.
        logprobs: The log-probability of each of `ids`; None if the server does not tell it.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    @classmethod
    def of(cls, prompt: object, ids: object, logprobs: object) -> Trace | None:
        """Return the tokens that an answer tells, if they are whole; else None."""
        if not (_is_list_of(int, prompt) and _is_list_of(int, ids)):
            return None
        has_logprobs = _is_list_of((int, float), logprobs) and len(logprobs) == len(ids)  # type: ignore[arg-type]
        return cls(tuple(prompt), tuple(ids), tuple(map(float, logprobs)) if has_logprobs else None)  # type: ignore[arg-type, call-overload]


def _is_list_of(kind: type | tuple[type, ...], values: object) -> bool:
    listed = isinstance(values, (list, tuple))
    return listed and all(isinstance(value, kind) for value in values)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them.

    Attributes:
        input_tokens: Tokens of the prompt, including those from the provider's cache.
        output_tokens: Tokens of the reply, including hidden reasoning.
        cached_tokens: Tokens of the prompt that the provider had in its cache.
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
    """A model's answer, and its cost.

    Attributes:
        text: The text; may be empty where the model calls tools.
        tool_calls: The calls that the model asks for.
        usage: The tokens that were charged, as far as the provider says.
        cost: US dollars; ``None`` where the price or the tokens are unknown.
        model: The model that answered, as its provider names it.
        finish: The reason why the reply ended: ``length`` is cut off, ``filter`` refused by the
            provider.
        cached: Whether the reply comes from our cache: no call was made, and it cost 0.
        seconds: Duration of the call that answered, without waiting and retries.
        retries: The number of calls that failed before it.
        trace: Its tokens, where they were asked for and the server tells them.
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
    trace: Trace | None = None


class Model(Protocol):
    """A language model. Several threads may call it at once."""

    name: str

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's next message.

        Raises:
            ContextLengthError: The dialogue is longer than the model takes.
            BudgetError: The call might cost more than is left.
            ModelUnavailableError: There was no answer, after all retries.
            ModelError: The provider refused the request for good.
        """


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a model."""

    messages: tuple[Message, ...]
    settings: Settings = field(default_factory=Settings)
    tools: tuple[Tool, ...] = ()

    def most_input_tokens(self) -> int:
        """Return an upper bound of the prompt's tokens: each token is at least one byte."""
        size = sum(len(message.content.encode(errors="replace")) for message in self.messages)
        size += MESSAGE_OVERHEAD * len(self.messages)
        for message in self.messages:
            size += sum(len(json.dumps([c.name, dict(c.arguments)])) for c in message.tool_calls)
        for tool in self.tools:
            size += len(json.dumps([tool.name, tool.description, dict(tool.parameters)]))
        return size + (TOOLS_OVERHEAD if self.tools else 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one call; `usage` is ``None`` where the server does not state it."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    finish: Finish = "stop"
    trace: Trace | None = None


class AttemptError(Exception):
    """A call without a usable answer, where another try may succeed.

    It never leaves `intercode.models`.

    Attributes:
        retry_after: Seconds that the server asks callers to wait.
        throttled: Whether the server was called too often.
        charged: Whether the model may have worked, so that the provider may charge for the call.
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


class Client(Protocol):
    """One model of one provider.

    Attributes:
        endpoint: Address and protocol of the server; part of the hash of a cached reply.
    """

    endpoint: str

    def send(self, request: Request) -> Answer:
        """Make one call. Several threads may do so at once.

        Raises:
            AttemptError: There was no usable answer; another try may succeed.
            ModelError: The provider refused the request for good.
        """

    def close(self) -> None:
        """Close all connections."""


@runtime_checkable
class SupportsStart(Protocol):
    """An ability that a client may have in addition: its server is started by us, for us."""

    weights: str
    """The SHA-256 of the model's file, in hexadecimal."""

    def start(self, calls: int = 1) -> None:
        """Start the server, unless it runs; the first call would do so, too.

        Args:
            calls: Calls that will be made at a time.

        Raises:
            UsageError: The server does not fit into the memory that is free.
            ModelAccessError: The server cannot be started.
        """


ClientFactory = Callable[..., Client]
"""``factory(model, *, base_url: str | None, timeout: float)``; registered in `MODELS`."""
