"""What a scripted model says: rules, and no weights.

A rule looks at the last message and at how often the model has spoken; the first that fits
answers. In a file it is a JSON object, one a line::

    {"when": "sql", "say": "SELECT 1"}
    {"turn": 1, "calls": [{"name": "submit", "arguments": {}}]}
    {"say": "submit"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from intercode.errors import UsageError
from intercode.models.base import Finish, Message, Settings, ToolCall, Usage
from intercode.models.client import Answer, Request
from intercode.models.decoding import arguments

_KEYS = {"when", "turn", "say", "calls", "finish"}


@dataclass(frozen=True, slots=True)
class Line:
    """What a scripted model says at one point."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"


Script = Callable[[Sequence[Message]], Line]
"""Dialogue → the next line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When to say what.

    Attributes:
        line: What.
        when: A regular expression that the last message must match somewhere.
        turn: How often the model must have spoken; ``None`` is any number.
    """

    line: Line
    when: str = ""
    turn: int | None = None

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether it is for this point of a dialogue."""
        spoken = sum(message.role == "assistant" for message in messages)
        last = messages[-1].content if messages else ""
        return self.turn in {None, spoken} and re.search(self.when, last) is not None


def script(rules: Sequence[Rule]) -> Script:
    """The script that these rules are; it says nothing where none fits."""

    def say(messages: Sequence[Message]) -> Line:
        return next((rule.line for rule in rules if rule.fits(messages)), Line())

    return say


def read(path: str | Path) -> Script:
    """The script in a file of rules.

    Raises:
        UsageError: It cannot be read, or a rule is malformed.
    """
    try:
        # Not splitlines(): U+2028 and its like may stand unescaped within a JSON text.
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the script {path} cannot be read: {error}") from error
    return script([_rule(s, f"{path}:{n}") for n, s in enumerate(lines, 1) if s.strip()])


def _rule(text: str, where: str) -> Rule:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: a rule is a JSON object: {error}") from error
    if not isinstance(data, dict) or not set(data) <= _KEYS:
        raise UsageError(f"{where}: a rule is a JSON object with {', '.join(sorted(_KEYS))}")
    try:
        re.compile(data.get("when", ""))
        calls = tuple(_call(call, number) for number, call in enumerate(data.get("calls", ())))
    except (re.error, TypeError, KeyError) as error:
        raise UsageError(f"{where}: {error!r}") from error
    finish: Finish = data.get("finish", "tool_calls" if calls else "stop")
    return Rule(Line(data.get("say", ""), calls, finish), data.get("when", ""), data.get("turn"))


def _call(data: Mapping[str, Any], number: int) -> ToolCall:
    return ToolCall(f"call_{number}", data["name"], arguments(data.get("arguments")))


def count(text: str) -> int:
    """Tokens of a text, by a tokenizer that anybody can check: words."""
    return len(text.split())


def usage(messages: Sequence[Message], line: Line) -> Usage:
    """What a line takes."""
    called = sum(count(json.dumps(dict(call.arguments))) + 1 for call in line.calls)
    return Usage(sum(count(m.content) for m in messages), count(line.text) + called)


def cut(line: Line, settings: Settings) -> Line:
    """A line up to where it is to stop, and no longer than asked for. Calls are left whole."""
    text = line.text
    for stop in settings.stop:
        text = text.partition(stop)[0]
    words = list(re.finditer(r"\S+", text))
    if settings.max_tokens is None or len(words) <= settings.max_tokens:
        return replace(line, text=text)
    return replace(line, text=text[: words[settings.max_tokens].start()], finish="length")


def answer(request: Request, say: Script, model: str) -> Answer:
    """What a scripted model answers."""
    line = cut(say(request.messages), request.settings)
    return Answer(line.text, line.calls, usage(request.messages, line), model, line.finish)
