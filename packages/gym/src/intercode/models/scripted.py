"""A model that speaks by a script: for tests of agents, for measurements and demonstrations.

A script is a list of rules. A rule looks at the last message, at all messages, and at how often the
model has spoken; the first rule that fits answers. In a file each line is a rule, a JSON object::

    {"when": "sql", "say": "SELECT 1"}
    {"turn": 1, "calls": [{"name": "submit", "arguments": {}}]}
    {"turn": 0, "seen": "SKILL.md", "say": "cat /skills/units/SKILL.md"}
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
from intercode.models.base import Answer, Finish, Message, Request, Settings, ToolCall, Usage
from intercode.models.wire import arguments
from intercode_sandbox.files import sha256

_KEYS = {"when", "seen", "turn", "say", "calls", "finish"}


@dataclass(frozen=True, slots=True)
class Line:
    """One message of a scripted model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"


Script = Callable[[Sequence[Message]], Line]
"""Dialogue → the next line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A line, and when to say it.

    Attributes:
        line: The line.
        when: A regular expression that must match somewhere in the last message.
        turn: How often the model must have spoken since the last message that begins with
            ``Task:``, before which may be worked examples; ``None`` is any number.
        seen: A regular expression that must match somewhere in any message.
    """

    line: Line
    when: str = ""
    turn: int | None = None
    seen: str = ""

    def fits(self, messages: Sequence[Message]) -> bool:
        """Whether the rule answers this dialogue."""
        starts = [n for n, message in enumerate(messages) if message.content.startswith("Task:")]
        task_messages = messages[starts[-1] if starts else 0 :]
        reply_count = sum(message.role == "assistant" for message in task_messages)
        last_content = messages[-1].content if messages else ""
        return (
            self.turn in {None, reply_count}
            and re.search(self.when, last_content) is not None
            and (not self.seen or any(re.search(self.seen, m.content) for m in messages))
        )


class ScriptedClient:
    """A `Client` that answers at once.

    Args:
        say: The script.
        name: The model's name for itself.
        version: Differs where the script does, so that no cache confuses two scripts.
    """

    def __init__(self, say: Script, name: str = "scripted", version: str = "") -> None:
        self._say = say
        self._name = name
        self.endpoint = f"scripted:{version}"

    def __repr__(self) -> str:
        return f"ScriptedClient({self._name!r})"

    def send(self, request: Request) -> Answer:
        """Return the script's answer."""
        return answer(request, self._say, self._name)

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


def scripted(model: str, *, base_url: str | None, timeout: float) -> ScriptedClient:
    """Make the client of a model whose rules are in a file: ``scripted/rules.jsonl``."""
    if base_url:
        raise UsageError("a scripted model is in a file and has no base URL")
    say = read(model)
    return ScriptedClient(say, Path(model).name, sha256(Path(model)))


def script(rules: Sequence[Rule]) -> Script:
    """Make a script of rules; its line is empty where none fits."""

    def say(messages: Sequence[Message]) -> Line:
        return next((rule.line for rule in rules if rule.fits(messages)), Line())

    return say


def read(path: str | Path) -> Script:
    """Read the script in a file of rules.

    Raises:
        UsageError: The file cannot be read, or a rule is malformed.
    """
    try:
        # Not splitlines(): U+2028 and its like may stand unescaped within a JSON text.
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the script {path} cannot be read: {error}") from error
    return script([_rule(s, f"{path}:{n}") for n, s in enumerate(lines, 1) if s.strip()])


def _rule(text: str, location: str) -> Rule:
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{location}: a rule is a JSON object: {error}") from error
    if not isinstance(data, dict) or not set(data) <= _KEYS:
        raise UsageError(f"{location}: a rule is a JSON object with {', '.join(sorted(_KEYS))}")
    try:
        for key in ("when", "seen"):
            re.compile(data.get(key, ""))
        calls = tuple(_call(call, number) for number, call in enumerate(data.get("calls", ())))
    except (re.error, TypeError, KeyError) as error:
        raise UsageError(f"{location}: {error!r}") from error
    finish: Finish = data.get("finish", "tool_calls" if calls else "stop")
    line = Line(data.get("say", ""), calls, finish)
    return Rule(line, data.get("when", ""), data.get("turn"), data.get("seen", ""))


def _call(data: Mapping[str, Any], number: int) -> ToolCall:
    return ToolCall(f"call_{number}", data["name"], arguments(data.get("arguments")))


def answer(request: Request, say: Script, model: str) -> Answer:
    """Return a script's answer, within the request's settings. Calls are left whole."""
    line = _cut(say(request.messages), request.settings)
    call_tokens = sum(count(json.dumps(dict(call.arguments))) + 1 for call in line.calls)
    input_tokens = sum(count(message.content) for message in request.messages)
    usage = Usage(input_tokens, count(line.text) + call_tokens)
    return Answer(line.text, line.calls, usage, model, line.finish)


def count(text: str) -> int:
    """Count the tokens of a text, by a tokenizer that any reader can check: words."""
    return len(text.split())


def _cut(line: Line, settings: Settings) -> Line:
    text = line.text
    for stop in settings.stop:
        text = text.partition(stop)[0]
    words = list(re.finditer(r"\S+", text))
    if settings.max_tokens is None or len(words) <= settings.max_tokens:
        return replace(line, text=text)
    return replace(line, text=text[: words[settings.max_tokens].start()], finish="length")
