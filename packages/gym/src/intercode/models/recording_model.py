"""Transcripts: the recorded dialogue with a model in one episode, with its cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from intercode.errors import ModelError
from intercode.models.base import Message, Model, Reply, Settings, Tool, Usage


class RecordingModel:
    """A `Model` that records all messages to and from another model.

    Each message is recorded once, even if the message is sent repeatedly. The records of calls
    refer to messages by number.

    Args:
        model: The model that answers.
        permits: A context manager that each call enters, to limit concurrent calls. Its
            ``__enter__`` returns the seconds of waiting. None: no limit.
    """

    def __init__(self, model: Model, permits: AbstractContextManager[float] | None = None) -> None:
        self.name = model.name
        self.usage = Usage()
        self.cost: float | None = 0.0
        """The total cost in US dollars; None after a call with an unknown cost."""
        self.turn = 0
        """The number of the current turn, which the agent sets."""
        self.wait_seconds = 0.0
        """The total seconds that calls waited for their permits."""
        self._model = model
        self._permits = nullcontext(0.0) if permits is None else permits
        self._messages: list[dict[str, Any]] = []
        self._message_numbers: dict[str, int] = {}
        self._numbered_messages: dict[int, tuple[Message, int]] = {}
        """Object id → message and message number. The table saves time, because dialogues send the
        same message objects repeatedly."""
        self._calls: list[dict[str, Any]] = []
        self._tools: Sequence[Tool] = ()

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's answer, and record the call.

        Raises:
            ModelError: See `Model.complete`; the failed call is recorded, too.
        """
        call: dict[str, Any] = {"turn": self.turn, "sent": [*map(self._number_message, messages)]}
        if settings.seed is not None:
            call["seed"] = settings.seed
        self._calls.append(call)
        self._tools = tools
        try:
            with self._permits as wait_seconds:
                self.wait_seconds += wait_seconds
                reply = self._model.complete(messages, settings, tools)
        except ModelError as error:
            call["error"] = type(error).__name__
            if error.unsent:
                call["unsent"] = True
            raise
        answer = Message("assistant", reply.text, reply.tool_calls)
        call |= {
            "reply": self._number_message(answer),
            "model": reply.model,
            **asdict(reply.usage),
            "cost": reply.cost,
            "finish": reply.finish,
            "cached": reply.cached,
            "seconds": round(reply.seconds, 6),
            "retries": reply.retries,
        }
        if (trace := reply.trace) is not None:
            call |= {"prompt_token_ids": list(trace.prompt), "token_ids": list(trace.ids)}
            call |= {} if trace.logprobs is None else {"logprobs": list(trace.logprobs)}
        self.usage += reply.usage
        if self.cost is not None:
            self.cost = None if reply.cost is None else self.cost + reply.cost
        return reply

    @property
    def last_call(self) -> dict[str, Any]:
        """The record of the last call, as a mutable dictionary."""
        return self._calls[-1]

    def note(self, **facts: Any) -> None:
        """Add facts to the record of the last call, such as its thought or its plan step."""
        self.last_call.update(facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the transcript as plain JSON types, for the episode's record."""
        return {
            "name": self.name,
            **asdict(self.usage),
            "cost": self.cost,
            "messages": self._messages,
            "calls": self._calls,
            **({"tools": [asdict(tool) for tool in self._tools]} if self._tools else {}),
        }

    def _number_message(self, message: Message) -> int:
        if (entry := self._numbered_messages.get(id(message))) is not None:
            return entry[1]
        fields = compact_message(message)
        key = json.dumps(fields, sort_keys=True)
        if (message_number := self._message_numbers.get(key)) is None:
            message_number = self._message_numbers[key] = len(self._messages)
            self._messages.append(fields)
        self._numbered_messages[id(message)] = message, message_number
        return message_number


def compact_message(message: Message) -> dict[str, Any]:
    """Return a message as plain JSON types, without empty fields."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [asdict(call) for call in message.tool_calls]
    if message.call_id is not None:
        fields["call_id"] = message.call_id
    return fields
