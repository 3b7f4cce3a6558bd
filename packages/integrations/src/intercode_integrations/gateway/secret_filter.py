"""A filter that hides a secret in a server's stream, even if the secret is spread over events.

The server may repeat the API key in its answer. If the text of an event ends with the first
characters of the secret, the filter holds the event back. Later events wait behind it until the
text continues or ends. Otherwise, events pass at once, and change only if they contain the secret.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from intercode.secrets import MIN_SECRET_LENGTH, hide_in
from intercode_integrations.gateway.streams import StreamEvent, encode_event

REPLACEMENT = "[key]"
_POSITION_FIELDS = ("item_id", "output_index", "content_index", "summary_index", "index")
"""Fields of an event that identify the text that the event continues."""
_NON_TEXT_FIELDS = {"type", "role"}
_TOKEN_FIELDS = {"logprobs", "token_ids"}
"""Fields that repeat a text as tokens. The filter empties them in an event that it changes."""
Position = tuple[object, ...]


@dataclass(slots=True)
class _BufferedEvent:
    """A buffered event.

    `open_text_count` is the number of its texts that may end with the start of the secret. The
    event can pass when the number is 0.
    """

    raw_bytes: bytes
    data: dict[str, Any] | None
    is_changed: bool = False
    open_text_count: int = 0


@dataclass(slots=True)
class _EventTextTail:
    """The end of an event's text that may be a part of the secret.

    The text is the value at `key` of `container`, and the end has `length` characters.
    """

    event: _BufferedEvent
    container: dict[str, Any]
    key: str
    length: int

    def text(self) -> str:
        value: str = self.container[self.key]
        return value[len(value) - self.length :]

    def remove_text(self) -> None:
        value: str = self.container[self.key]
        self.container[self.key] = value[: len(value) - self.length]


@dataclass(slots=True)
class SecretFilter:
    """A filter that removes a secret from the events of one stream.

    Attributes:
        secret: The secret. A secret shorter than `intercode.secrets.MIN_SECRET_LENGTH` is not
            hidden.
    """

    secret: str
    _held_events: deque[_BufferedEvent] = field(default_factory=deque)
    _tails: dict[Position, list[_EventTextTail]] = field(default_factory=dict)

    def filter_events(self, events: Iterable[StreamEvent]) -> bytes:
        """Add events to the buffer; return the bytes of all events that can pass now."""
        if len(self.secret) < MIN_SECRET_LENGTH:
            return b"".join(event.raw_bytes for event in events)
        return b"".join(output for event in events for output in self._take(event))

    def flush(self) -> bytes:
        """Return the bytes of the buffered events, at the end of the stream."""
        output = b"".join(map(self._encode_event, self._held_events))
        self._held_events.clear()
        return output

    def _take(self, event: StreamEvent) -> Iterator[bytes]:
        held_event = _BufferedEvent(event.raw_bytes, event.data)
        self._held_events.append(held_event)
        if event.data is not None:
            # `hide_in` finds a complete secret, literal or in JSON escapes, within this event.
            if b"\\" in event.raw_bytes or self.secret.encode() in event.raw_bytes:
                held_event.data = hide_in(event.data, self.secret)
                if held_event.data != event.data:
                    _mark_changed(held_event)
            for position, container, key in _event_texts(held_event.data or {}):
                self._extend_text(
                    position, _EventTextTail(held_event, container, key, len(container[key]))
                )
            if str(event.data.get("type")).endswith(("_stop", ".done")):
                self._end_texts(_position(event.data))
        while self._held_events and not self._held_events[0].open_text_count:
            yield self._encode_event(self._held_events.popleft())

    def _encode_event(self, held_event: _BufferedEvent) -> bytes:
        event_bytes = (
            encode_event(held_event.raw_bytes, held_event.data)
            if held_event.is_changed
            else held_event.raw_bytes
        )
        return event_bytes.replace(self.secret.encode(), REPLACEMENT.encode())

    def _extend_text(self, position: Position, tail: _EventTextTail) -> None:
        """Append an event's text to the text at a position, and hide the secret if it is complete.

        Then mark the events that the end of the text holds back.
        """
        tails = [*self._tails.pop(position, ()), tail]
        for previous_tail in tails[:-1]:
            previous_tail.event.open_text_count -= 1
        text = "".join(text_tail.text() for text_tail in tails)
        if self.secret in text:
            for text_tail in tails:
                text_tail.remove_text()
                _mark_changed(text_tail.event)
            prefix, _, text = text.rpartition(self.secret)
            tail.container[tail.key] += (
                prefix.replace(self.secret, REPLACEMENT) + REPLACEMENT + text
            )
            tail.length, tails = len(text), [tail]
        remaining_length, pending_tails = self._partial_secret_length(text), list[_EventTextTail]()
        for text_tail in reversed(tails):
            if text_tail.length and remaining_length:
                text_tail.length = min(text_tail.length, remaining_length)
                text_tail.event.open_text_count += 1
                remaining_length -= text_tail.length
                pending_tails.insert(0, text_tail)
        if pending_tails:
            self._tails[position] = pending_tails

    def _partial_secret_length(self, text: str) -> int:
        """Return the length of the longest end of a text that equals a start of the secret."""
        offset = max(0, len(text) - len(self.secret) + 1)
        while (offset := text.find(self.secret[0], offset)) >= 0:
            if self.secret.startswith(text[offset:]):
                return len(text) - offset
            offset += 1
        return 0

    def _end_texts(self, position: Position) -> None:
        """End the texts at a position: no later event continues them, so their events can pass."""
        for tail_position in [
            tail_position
            for tail_position in self._tails
            if tail_position[: len(position)] == position
        ]:
            for tail in self._tails.pop(tail_position):
                tail.event.open_text_count -= 1


def _position(event_data: dict[str, Any]) -> Position:
    return tuple(event_data.get(key) for key in _POSITION_FIELDS)


def _event_texts(data: dict[str, Any]) -> Iterator[tuple[Position, dict[str, Any], str]]:
    """Yield each text that an event continues: position, containing object, and key in it."""
    if isinstance(choices := data.get("choices"), list):
        for choice in choices:
            if isinstance(choice, dict):
                yield from _walk_texts(choice.get("delta"), (choice.get("index"),))
    elif isinstance(data.get("delta"), str):
        yield (*_position(data), data.get("type")), data, "delta"
    else:
        yield from _walk_texts(data.get("delta"), (*_position(data), data.get("type")))


def _walk_texts(value: Any, position: Position) -> Iterator[tuple[Position, dict[str, Any], str]]:
    if isinstance(value, list):
        for list_index, item in enumerate(value):
            index = item.get("index", list_index) if isinstance(item, dict) else list_index
            yield from _walk_texts(item, (*position, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and key not in _NON_TEXT_FIELDS:
                yield (*position, key), value, key
            elif isinstance(item, (dict, list)):
                yield from _walk_texts(item, (*position, key))


def _mark_changed(held_event: _BufferedEvent) -> None:
    held_event.is_changed = True
    _clear_tokens(held_event.data)


def _clear_tokens(value: Any) -> None:
    """Empty all fields that repeat a text as tokens."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if key in _TOKEN_FIELDS:
            value[key] = None if isinstance(item, dict) else type(item)()
        else:
            _clear_tokens(item)
    for item in value if isinstance(value, list) else ():
        _clear_tokens(item)
