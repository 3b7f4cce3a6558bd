"""Calls of an episode, and their dialogues, kept in memory until the episode is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from intercode.errors import ModelError
from intercode.models.base import Message
from intercode.models.limits import Budget
from intercode_integrations.gateway.calls import Call
from intercode_integrations.gateway.upstream_connections import UpstreamResponse

MAX_CHARACTERS = 64 * 1024**2
"""Characters of distinct messages after which a session refuses calls. A repeated message counts
only once."""
MAX_FAILED_CHARACTERS = 1024**2
"""Maximum characters of an unanswered call's dialogue; a longer dialogue is discarded. Unanswered
calls cost nothing, so an agent could otherwise fill the memory."""


class SessionMessages:
    """The messages of a session's calls, each stored once."""

    def __init__(self) -> None:
        self._messages: dict[tuple[object, ...], Message] = {}
        self._characters = 0
        self._has_failed = False
        """Whether the last call was unanswered."""

    @property
    def is_full(self) -> bool:
        """Whether the stored messages have reached `MAX_CHARACTERS`, the maximum of a session.

        The session must then refuse further calls.
        """
        return self._characters >= MAX_CHARACTERS

    def retain(self, call: Call, *, share: bool = True) -> Call:
        """Return a call whose messages are stored once, and share memory with equal messages.

        Of consecutive unanswered calls, only the first keeps its dialogue, and only one of up to
        `MAX_FAILED_CHARACTERS`. The dialogue of the first already contains the result of the
        agent's last action.

        Args:
            call: The call.
            share: Whether the session keeps its calls. False returns the call unchanged, because
                its messages leave the memory as soon as the call is recorded.
        """
        if not share:
            return call
        is_repeated = self._has_failed and not call.is_answered
        self._has_failed = not call.is_answered
        if not call.is_answered and (
            is_repeated or sum(map(_characters, call.messages)) > MAX_FAILED_CHARACTERS
        ):
            return replace(call, messages=())
        return replace(call, messages=tuple(map(self._intern_message, call.messages)))

    def _intern_message(self, message: Message) -> Message:
        call_ids = tuple(tool_call.call_id for tool_call in message.tool_calls)
        message_key = message.role, message.content, message.call_id, call_ids
        stored_message = self._messages.get(message_key)
        if stored_message == message:
            return stored_message
        self._characters += _characters(message)
        self._messages[message_key] = message
        return message


def _characters(message: Message) -> int:
    return len(message.content) + sum(
        len(str(tool_call.arguments)) for tool_call in message.tool_calls
    )


class PendingGatewayCall(Protocol):
    """A call that has no record yet."""

    is_answered: bool
    """Whether the server's answer has started. The call's record then follows soon."""

    def cut(self) -> None:
        """Record the call as ended by the end of its episode, unless it is already recorded."""


class EpisodeCalls:
    """The calls of an episode, running and finished.

    Args:
        budget: Limits of the episode's cost and tokens.
        record: A function that receives each finished call.
        keep: Whether `calls` keeps the finished calls.

    Attributes:
        failure: See `intercode_integrations.gateway.GatewaySession`.
    """

    def __init__(
        self, budget: Budget | None, record: Callable[[Call], None] | None, *, keep: bool
    ) -> None:
        self.budget = budget
        self.failure: ModelError | None = None
        self._calls: list[Call] = []
        self._record, self._keep = record, keep
        self._condition = threading.Condition()
        self._started_calls = self._ended_calls = 0
        self._draining = self._closed = False
        self._dialogues = SessionMessages()
        self._open: set[UpstreamResponse] = set()
        self._pending_calls: set[PendingGatewayCall] = set()

    @property
    def calls(self) -> Sequence[Call]:
        """The finished calls, in the order of their ends; empty unless the session keeps calls."""
        with self._condition:
            return tuple(self._calls)

    @property
    def is_closed(self) -> bool:
        """Whether the session has been closed, because the episode has ended."""
        return self._closed

    @property
    def pending_count(self) -> int:
        """The number of calls that are running now."""
        with self._condition:
            return self._started_calls - self._ended_calls

    def drain(self, seconds: float) -> None:
        """Refuse new calls, and wait for the running ones.

        Args:
            seconds: The maximum wait.
        """
        with self._condition:
            self._draining = True
            self._condition.wait_for(lambda: self._ended_calls >= self._started_calls, seconds)

    def note(self, call: Call, forwarded_call: PendingGatewayCall | None = None) -> None:
        """Record a finished call.

        Args:
            call: The finished call.
            forwarded_call: The pending call that `call` completes. If the session's `close` has
                already recorded the pending call, this method does nothing.

        Raises:
            OSError: The record cannot be written.
        """
        with self._condition:
            if forwarded_call is not None:
                if forwarded_call not in self._pending_calls:
                    return
                self._pending_calls.remove(forwarded_call)
            call = self._dialogues.retain(call, share=self._keep)
        try:
            if self._record is not None:
                self._record(call)
        finally:
            with self._condition:
                self._ended_calls += not call.is_count
                if self._keep:
                    self._calls.append(call)
                self._condition.notify_all()

    def hold(self, answer: UpstreamResponse) -> None:
        """Register a running response, which `GatewaySession.close` aborts; abort it if closed."""
        with self._condition:
            self._open.add(answer)
            if self._closed:
                answer.abort()

    def drop(self, answer: UpstreamResponse) -> None:
        """Remove a response that `hold` registered."""
        with self._condition:
            self._open.discard(answer)
            self._condition.notify_all()
