"""The contract of a client: one request, one call, no second try.

What stands around a call (cache, budget, pace, retries, cost) is `intercode.models.remote`'s and
the same for all providers, so a client is small, and so is one of a reader's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from intercode.models.base import Finish, Message, Settings, Tool, ToolCall, Usage

MESSAGE_OVERHEAD = 16
"""Tokens that a chat template puts around a message, at most."""
TOOLS_OVERHEAD = 1024
"""Tokens of the provider's own prompt where tools are offered, at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a model."""

    messages: tuple[Message, ...]
    settings: Settings = field(default_factory=Settings)
    tools: tuple[Tool, ...] = ()

    def most_input_tokens(self) -> int:
        """No tokenizer makes more of it: a token is at least one byte."""
        size = sum(_bytes(message.content) for message in self.messages)
        size += MESSAGE_OVERHEAD * len(self.messages)
        for message in self.messages:
            size += sum(len(json.dumps([c.name, dict(c.arguments)])) for c in message.tool_calls)
        for tool in self.tools:
            size += len(json.dumps([tool.name, tool.description, dict(tool.parameters)]))
        return size + (TOOLS_OVERHEAD if self.tools else 0)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call; `usage` is ``None`` where the server does not say."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    model: str = ""
    finish: Finish = "stop"


class AttemptError(Exception):
    """One call that gave no usable answer; another may. It never leaves `intercode.models`.

    Attributes:
        retry_after: Seconds that the server asks to be left alone.
        throttled: We called too often.
        charged: The model may have worked for it, and the provider may charge for that.
        unreachable: There was nobody to ask.
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
        endpoint: Where it is asked, and by which protocol; part of what a cached reply hangs on.
    """

    endpoint: str

    def send(self, request: Request) -> Answer:
        """Ask once. May be called from several threads.

        Raises:
            AttemptError: No usable answer; it may be tried again.
            ModelError: Refused for good.
        """

    def close(self) -> None:
        """Let go of connections."""


ClientFactory = Callable[..., Client]
"""``factory(model, *, base_url: str | None, timeout: float)``; registered in `MODELS`."""
