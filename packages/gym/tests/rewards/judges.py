"""Judges' models by script: what they are asked, taken apart, and what they say to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intercode.models import Message
from intercode.models.scripted import Line, Script

_ASKED = re.compile(
    r"The random word is (?P<word>\w+)\.\n"
    r"<question (?P=word)>\n(?P<question>.*)\n</question (?P=word)>\n"
    r"<output A (?P=word)>\n(?P<first>.*)\n</output A (?P=word)>\n"
    r"<output B (?P=word)>\n(?P<second>.*)\n</output B (?P=word)>"
)


@dataclass(frozen=True)
class Asked:
    """What a judge was asked."""

    word: str
    question: str
    first: str
    second: str

    @classmethod
    def from_query(cls, text: str) -> Asked:
        match = _ASKED.fullmatch(text)
        assert match is not None, text
        parts = match.groupdict()
        return cls(parts.pop("word"), **{name: json.loads(part) for name, part in parts.items()})

    def reply(self, same: bool) -> str:
        return f'I compared them.\n{{"id": "{self.word}", "same": {json.dumps(same)}}}'


def judged_by(same: Callable[[Asked], bool | str]) -> Script:
    """A script that says whether they are the same, in the right form; or a text as it is."""

    def say(messages: Sequence[Message]) -> Line:
        asked = Asked.from_query(messages[-1].content)
        said = same(asked)
        return Line(said if isinstance(said, str) else asked.reply(said))

    return say


def numbers(asked: Asked) -> bool:
    """An honest judge: the same if both have the same numbers."""
    return re.findall(r"\d+", asked.first) == re.findall(r"\d+", asked.second)
