"""Whether a text gives gold away: pure functions of gold and of what an agent can read."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from intercode.episode import encode

_SHORTEST_FLAG = 5
_SHORTEST = 8
_SHORTEST_LINE = 12
_PATCH = re.compile(r"^(?:diff --git |--- \S)", re.MULTILINE)
_BLANKS = b" \t\r\n\v\f"
_WRITE_UP = re.compile(
    r"(?<![a-z])(?:write[-_ ]?ups?|walk[-_ ]?throughs?|solutions?|answers?)(?![a-z])", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Leak:
    """Where a task's agent can read its gold."""

    task_id: str
    place: str
    """``query``, ``environment``, ``processes``, or a path in the sandbox."""
    text: str
    """The same for people."""


class Text:
    """What an agent can read, in the forms in which it is searched."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def spaced(self) -> bytes:
        """In lower case, any blanks as one space."""
        return b" ".join(self._data.lower().split())

    @cached_property
    def packed(self) -> bytes:
        """Without any blanks."""
        return self._data.translate(None, _BLANKS)


@dataclass(frozen=True, slots=True)
class Trace:
    """One way in which gold shows."""

    how: str
    """For people: ``as it is``, ``in base64``…"""
    is_in: Callable[[Text], bool]


def traces(golds: Sequence[str], *, flags: bool, short: bool) -> list[Trace]:
    """All ways in which some of these golds may show.

    Args:
        golds: Accepted solutions.
        flags: They are flags, which may be written backwards, in base64 or in hexadecimal.
        short: Whether short lines count, too. A task's query may hold all of gold but the short
            line that is missing; a file that holds all of its long lines says enough.
    """
    found: list[Trace] = []
    for gold in golds:
        if flags:
            found += _of_flag(gold.strip())
        elif lines := telling(gold, short=short):
            found.append(Trace("as it is", _all_in(lines)))
    return found


def telling(gold: str, *, short: bool) -> list[bytes]:
    """The lines of gold that say what to do, as they are searched for; none if it is too short.

    Of a patch these are the lines that it adds.
    """
    rows = gold.splitlines()
    if _PATCH.search(gold):
        rows = [row[1:] for row in rows if row.startswith("+") and not row.startswith("+++")]
    lines = [line for row in rows if (line := Text(encode(row)).spaced)]
    if len(lines) > 1 and not short:
        lines = [line for line in lines if len(line) >= _SHORTEST_LINE and line[:1] != b"#"]
    return lines if sum(map(len, lines)) >= _SHORTEST else []


def _all_in(lines: Sequence[bytes]) -> Callable[[Text], bool]:
    return lambda text: all(line in text.spaced for line in lines)


def is_write_up(path: str, *, flags: bool) -> bool:
    """Whether a file is named like one that tells the answer, or the way to it.

    Where golds are flags a ``README`` is, too: of a puzzle's files it often is the author's.
    """
    readme = flags and PurePosixPath(path).stem.lower() == "readme"
    return readme or _WRITE_UP.search(path) is not None


def _of_flag(gold: str) -> Iterator[Trace]:
    flag = encode(gold)
    if len(flag) < _SHORTEST_FLAG:
        return
    plain, backwards = Text(flag).spaced, Text(encode(gold[::-1])).spaced
    yield Trace("as it is", lambda text: plain in text.spaced)
    yield Trace("backwards", lambda text: backwards in text.spaced)
    coded = [part for offset in range(3) for part in _base64(flag, offset)]
    yield Trace("in base64", lambda text: any(part in text.packed for part in coded))
    digits = flag.hex().encode()
    yield Trace("in hexadecimal", lambda text: digits in text.packed.lower())


def _base64(flag: bytes, offset: int) -> Iterator[bytes]:
    """What of a flag's base64 does not depend on its neighbours, if so many bytes precede it."""
    whole = base64.b64encode(bytes(offset) + flag)
    begin = -(-offset * 4 // 3)
    end = (offset + len(flag)) * 8 // 6
    yield whole[begin:end]
    yield whole[begin:end].translate(bytes.maketrans(b"+/", b"-_"))
