"""Retention: which dialogues of a seat's calls are kept in memory until its episode is recorded."""

from __future__ import annotations

from dataclasses import replace

from intercode.models.base import Message
from intercode_integrations.gateway.calls import Call

MAX_CHARACTERS = 64 * 1024**2
"""Characters of all distinct messages of a seat: each is held once, however often it is sent."""
MAX_OF_FAILED = 1024**2
"""Characters of the dialogue of a call without an answer: agents make such calls for free."""


class Dialogues:
    """The messages of a seat's calls."""

    def __init__(self) -> None:
        self._messages: dict[tuple[object, ...], Message] = {}
        self._characters = 0
        self._has_failed = False
        """Whether the last call got no answer."""

    @property
    def is_full(self) -> bool:
        """Whether no further dialogue can be retained."""
        return self._characters >= MAX_CHARACTERS

    def retain(self, call: Call, *, share: bool = True) -> Call:
        """Return a call with the messages that are retained of it.

        Of a seat that holds its calls, a row of calls without an answer keeps the dialogue of its
        first only, which tells how the last action went. A call that is only passed on to a record
        keeps its own: its messages take no memory afterwards.

        Args:
            call: The call.
            share: Whether the seat holds its calls, so that equal messages are to be one object.
        """
        if not share:
            return call
        is_repeated = self._has_failed and not call.is_answered
        self._has_failed = not call.is_answered
        if not call.is_answered and (
            is_repeated or sum(map(_characters, call.messages)) > MAX_OF_FAILED
        ):
            return replace(call, messages=())
        return replace(call, messages=tuple(map(self._shared, call.messages)))

    def _shared(self, message: Message) -> Message:
        ids = tuple(call.call_id for call in message.tool_calls)
        key = message.role, message.content, message.call_id, ids
        known = self._messages.get(key)
        if known == message:
            return known
        self._characters += _characters(message)
        self._messages[key] = message
        return message


def _characters(message: Message) -> int:
    return len(message.content) + sum(len(str(call.arguments)) for call in message.tool_calls)
