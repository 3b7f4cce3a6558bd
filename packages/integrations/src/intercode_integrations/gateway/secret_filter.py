"""The veil: a secret that a server repeats, hidden also where a stream brings it in pieces.

An event whose text ends as a secret begins is held back, with those that follow it, until its text
goes on. All others pass at once, as they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from intercode.known_secrets import MIN_SECRET_LENGTH, hide_in
from intercode_integrations.gateway.streams import Event, rewritten

HIDDEN = "[key]"
_PLACE = ("item_id", "output_index", "content_index", "summary_index", "index")
"""Fields of an event that tell which text it continues."""
_NO_TEXT = {"type", "role"}
_PIECES = {"logprobs", "token_ids"}
"""Fields that tell a text by its tokens: an event that has a part of a secret loses them."""
Place = tuple[object, ...]


@dataclass(slots=True)
class _Held:
    """An event, and the number of its texts in which the secret may have begun."""

    raw: bytes
    data: dict[str, Any] | None
    changed: bool = False
    waits: int = 0


@dataclass(slots=True)
class _Part:
    """The end of a text within one event, as far as the secret may have begun there."""

    event: _Held
    within: dict[str, Any]
    key: str
    length: int

    def text(self) -> str:
        found: str = self.within[self.key]
        return found[len(found) - self.length :]

    def cut(self) -> None:
        found: str = self.within[self.key]
        self.within[self.key] = found[: len(found) - self.length]


@dataclass(slots=True)
class Veil:
    """Events of one stream in, the same events without the secret out.

    Attributes:
        secret: The secret; one that is shorter than `known_secrets.SHORTEST` is none.
    """

    secret: str
    _held: deque[_Held] = field(default_factory=deque)
    _tails: dict[Place, list[_Part]] = field(default_factory=dict)

    def through(self, events: Iterable[Event]) -> bytes:
        """Take events; return those that can go on."""
        if len(self.secret) < MIN_SECRET_LENGTH:
            return b"".join(event.raw for event in events)
        return b"".join(out for event in events for out in self._take(event))

    def rest(self) -> bytes:
        """Return the events that were held back, once the stream is at its end."""
        found = b"".join(map(self._out, self._held))
        self._held.clear()
        return found

    def _take(self, event: Event) -> Iterator[bytes]:
        held = _Held(event.raw, event.data)
        self._held.append(held)
        if event.data is not None:
            if b"\\" in event.raw or self.secret.encode() in event.raw:  # by escapes, or as it is
                held.data = hide_in(event.data, self.secret)
                if held.data != event.data:
                    _change(held)
            for place, within, key in _texts(held.data or {}):
                self._continue(place, _Part(held, within, key, len(within[key])))
            if str(event.data.get("type")).endswith(("_stop", ".done")):
                self._end(_place(event.data))
        while self._held and not self._held[0].waits:
            yield self._out(self._held.popleft())

    def _out(self, held: _Held) -> bytes:
        raw = rewritten(held.raw, held.data) if held.changed else held.raw
        return raw.replace(self.secret.encode(), HIDDEN.encode())

    def _continue(self, place: Place, part: _Part) -> None:
        """Follow a text on; hide the secret that it completes."""
        parts = [*self._tails.pop(place, ()), part]
        for before in parts[:-1]:
            before.event.waits -= 1
        text = "".join(each.text() for each in parts)
        if self.secret in text:
            for each in parts:
                each.cut()
                _change(each.event)
            said, _, text = text.rpartition(self.secret)
            part.within[part.key] += said.replace(self.secret, HIDDEN) + HIDDEN + text
            part.length, parts = len(text), [part]
        left, kept = self._begun(text), list[_Part]()
        for each in reversed(parts):
            if each.length and left:
                each.length = min(each.length, left)
                each.event.waits += 1
                left -= each.length
                kept.insert(0, each)
        if kept:
            self._tails[place] = kept

    def _begun(self, text: str) -> int:
        """Return how much of a text's end is the beginning of the secret."""
        at = max(0, len(text) - len(self.secret) + 1)
        while (at := text.find(self.secret[0], at)) >= 0:
            if self.secret.startswith(text[at:]):
                return len(text) - at
            at += 1
        return 0

    def _end(self, place: Place) -> None:
        """End the texts of a place: they do not go on."""
        for key in [key for key in self._tails if key[: len(place)] == place]:
            for part in self._tails.pop(key):
                part.event.waits -= 1


def _place(data: dict[str, Any]) -> Place:
    return tuple(data.get(key) for key in _PLACE)


def _texts(data: dict[str, Any]) -> Iterator[tuple[Place, dict[str, Any], str]]:
    """Find the texts that an event continues: where each belongs, and where it stands."""
    if isinstance(choices := data.get("choices"), list):
        for choice in choices:
            if isinstance(choice, dict):
                yield from _below(choice.get("delta"), (choice.get("index"),))
    elif isinstance(data.get("delta"), str):
        yield (*_place(data), data.get("type")), data, "delta"
    else:
        yield from _below(data.get("delta"), (*_place(data), data.get("type")))


def _below(value: Any, place: Place) -> Iterator[tuple[Place, dict[str, Any], str]]:
    if isinstance(value, list):
        for number, inner in enumerate(value):
            index = inner.get("index", number) if isinstance(inner, dict) else number
            yield from _below(inner, (*place, index))
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and key not in _NO_TEXT:
                yield (*place, key), value, key
            elif isinstance(inner, (dict, list)):
                yield from _below(inner, (*place, key))


def _change(held: _Held) -> None:
    held.changed = True
    _forget(held.data)


def _forget(value: Any) -> None:
    """Empty the fields that tell a text by its tokens."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key in _PIECES:
            value[key] = None if isinstance(inner, dict) else type(inner)()
        else:
            _forget(inner)
    for inner in value if isinstance(value, list) else ():
        _forget(inner)
