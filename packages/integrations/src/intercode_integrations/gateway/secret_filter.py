"""A filter that hides a secret that a server repeats, even in pieces across a stream's events.

An event whose text ends like the start of the secret is held back, with the events after it, until
its text continues. All other events pass at once and unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from intercode.secrets import MIN_SECRET_LENGTH, hide_in
from intercode_integrations.gateway.streams import Event, encode_event

REPLACEMENT = "[key]"
_POSITION_FIELDS = ("item_id", "output_index", "content_index", "summary_index", "index")
"""Fields of an event that identify the text that it continues."""
_NON_TEXT_FIELDS = {"type", "role"}
_TOKEN_FIELDS = {"logprobs", "token_ids"}
"""Fields that reveal a text by its tokens: an event with a part of a secret loses them."""
Position = tuple[object, ...]


@dataclass(slots=True)
class _HeldEvent:
    """A buffered event, and the number of its texts in which the secret may have started."""

    raw_bytes: bytes
    data: dict[str, Any] | None
    is_changed: bool = False
    open_text_count: int = 0


@dataclass(slots=True)
class _TextTail:
    """The end of a text within one event, as far as it may be part of the secret."""

    event: _HeldEvent
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
    """A filter that removes the secret from the events of one stream.

    Attributes:
        secret: The secret; values shorter than `intercode.secrets.MIN_SECRET_LENGTH` are not
            hidden.
    """

    secret: str
    _held_events: deque[_HeldEvent] = field(default_factory=deque)
    _tails: dict[Position, list[_TextTail]] = field(default_factory=dict)

    def filter_events(self, events: Iterable[Event]) -> bytes:
        """Add events; return the bytes of all events that can pass."""
        if len(self.secret) < MIN_SECRET_LENGTH:
            return b"".join(event.raw_bytes for event in events)
        return b"".join(output for event in events for output in self._take(event))

    def flush(self) -> bytes:
        """Return the buffered events, at the end of the stream."""
        output = b"".join(map(self._encode_event, self._held_events))
        self._held_events.clear()
        return output

    def _take(self, event: Event) -> Iterator[bytes]:
        held_event = _HeldEvent(event.raw_bytes, event.data)
        self._held_events.append(held_event)
        if event.data is not None:
            # Escaped or literal.
            if b"\\" in event.raw_bytes or self.secret.encode() in event.raw_bytes:
                held_event.data = hide_in(event.data, self.secret)
                if held_event.data != event.data:
                    _mark_changed(held_event)
            for position, container, key in _event_texts(held_event.data or {}):
                self._extend_text(
                    position, _TextTail(held_event, container, key, len(container[key]))
                )
            if str(event.data.get("type")).endswith(("_stop", ".done")):
                self._end_texts(_position(event.data))
        while self._held_events and not self._held_events[0].open_text_count:
            yield self._encode_event(self._held_events.popleft())

    def _encode_event(self, held_event: _HeldEvent) -> bytes:
        event_bytes = (
            encode_event(held_event.raw_bytes, held_event.data)
            if held_event.is_changed
            else held_event.raw_bytes
        )
        return event_bytes.replace(self.secret.encode(), REPLACEMENT.encode())

    def _extend_text(self, position: Position, tail: _TextTail) -> None:
        """Continue a text; hide the secret that it completes."""
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
        remaining_length, pending_tails = self._partial_secret_length(text), list[_TextTail]()
        for text_tail in reversed(tails):
            if text_tail.length and remaining_length:
                text_tail.length = min(text_tail.length, remaining_length)
                text_tail.event.open_text_count += 1
                remaining_length -= text_tail.length
                pending_tails.insert(0, text_tail)
        if pending_tails:
            self._tails[position] = pending_tails

    def _partial_secret_length(self, text: str) -> int:
        """Return the length of a text's end that equals the start of the secret."""
        offset = max(0, len(text) - len(self.secret) + 1)
        while (offset := text.find(self.secret[0], offset)) >= 0:
            if self.secret.startswith(text[offset:]):
                return len(text) - offset
            offset += 1
        return 0

    def _end_texts(self, position: Position) -> None:
        """End the texts at a position: they do not continue."""
        for key in [key for key in self._tails if key[: len(position)] == position]:
            for tail in self._tails.pop(key):
                tail.event.open_text_count -= 1


def _position(data: dict[str, Any]) -> Position:
    return tuple(data.get(key) for key in _POSITION_FIELDS)


def _event_texts(data: dict[str, Any]) -> Iterator[tuple[Position, dict[str, Any], str]]:
    """Yield the texts that an event continues: position, container and key of each."""
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


def _mark_changed(held_event: _HeldEvent) -> None:
    held_event.is_changed = True
    _clear_tokens(held_event.data)


def _clear_tokens(value: Any) -> None:
    """Empty the fields that reveal a text by its tokens."""
    for key, item in value.items() if isinstance(value, dict) else ():
        if key in _TOKEN_FIELDS:
            value[key] = None if isinstance(item, dict) else type(item)()
        else:
            _clear_tokens(item)
    for item in value if isinstance(value, list) else ():
        _clear_tokens(item)
