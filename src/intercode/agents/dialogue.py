"""A dialogue with a model, kept within what the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from intercode.errors import ContextLengthError
from intercode.models.base import Message, Model, Reply, Role, Settings, Tool


@dataclass
class Dialogue:
    """Messages in their order. The first ones, up to the first reply, are always sent.

    Of the others the last `limit` are sent. If that is too long for the model the older half of
    them is left out, and so on, from then on.
    """

    model: Model
    settings: Settings = field(default_factory=Settings)
    tools: Sequence[Tool] = ()
    limit: int | None = None
    messages: list[Message] = field(default_factory=list)
    _head: int | None = None

    def say(self, role: Role, content: str, call_id: str | None = None) -> None:
        """Add a message."""
        self.messages.append(Message(role, _sendable(content), call_id=call_id))

    def keep(self) -> None:
        """Always send everything that was said so far."""
        self._head = len(self.messages)

    def ask(self) -> Reply:
        """What the model says next.

        Raises:
            ContextLengthError: Even the first messages and the last one are too long.
            ModelError: See `Model.complete`.
        """
        if self._head is None:
            self.keep()
        while True:
            sent = self._sent()
            try:
                reply = self.model.complete(sent, self.settings, self.tools)
                break
            except ContextLengthError:
                rest = len(self.messages) - (self._head or 0)
                length = rest if self.limit is None else min(rest, self.limit)
                if length <= 1:
                    raise
                self.limit = length // 2
        self.messages.append(Message("assistant", _sendable(reply.text), reply.tool_calls))
        return reply

    def _sent(self) -> list[Message]:
        head, rest = self.messages[: self._head], self.messages[self._head :]
        if self.limit is not None:
            rest = rest[-self.limit :]
            # The answer to a call that is left out would be refused.
            while rest and rest[0].role == "tool":
                del rest[0]
        return [*head, *rest]


def _sendable(text: str) -> str:
    """Without the bytes, and the half pairs, that no JSON can carry."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
