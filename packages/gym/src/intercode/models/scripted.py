"""Scripted models for tests of agents, measurements and demonstrations.

A script is a list of rules. The reply to a dialogue is that of the first rule whose conditions
hold. The conditions concern the last message, all messages, and the number of previous replies. In
a file, each line is a rule, a JSON object::

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
from intercode.models.response_parsing import arguments
from intercode_sandbox.host_files import sha256

_KEYS = {"when", "seen", "turn", "say", "calls", "finish"}


@dataclass(frozen=True, slots=True)
class Line:
    """A reply of a scripted model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"


Script = Callable[[Sequence[Message]], Line]
"""A script as a function: the dialogue so far → the next reply."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A reply with the conditions under which the script uses it.

    Attributes:
        line: The reply.
        when: A regular expression that must match within the last message.
        turn: The required number of replies since the last message that begins with ``Task:``;
            ``None``: any number. Messages before that one may be worked examples.
        seen: A regular expression that must match within at least one message; empty: no condition.
    """

    line: Line
    when: str = ""
    turn: int | None = None
    seen: str = ""

    def fits(self, messages: Sequence[Message]) -> bool:
        """Return whether the dialogue meets all conditions."""
        starts = [n for n, message in enumerate(messages) if message.content.startswith("Task:")]
        task_messages = messages[starts[-1] if starts else 0 :]
        reply_count = sum(message.role == "assistant" for message in task_messages)
        last_content = messages[-1].content if messages else ""
        return (
            self.turn in {None, reply_count}
            and re.search(self.when, last_content) is not None
            and (not self.seen or any(re.search(self.seen, m.content) for m in messages))
        )


class ScriptedModelClient:
    """A `ModelClient` that answers from a script, without a network.

    Args:
        reply_script: The script.
        name: The model's name in answers.
        version: A version of the script. The cache keeps replies of different versions separate.
    """

    def __init__(self, reply_script: Script, name: str = "scripted", version: str = "") -> None:
        self._reply_script = reply_script
        self._name = name
        self.endpoint = f"scripted:{version}"

    def __repr__(self) -> str:
        return f"ScriptedModelClient({self._name!r})"

    def send(self, request: Request) -> Answer:
        """Return the script's answer."""
        return answer(request, self._reply_script, self._name)

    def close(self) -> None:
        """Do nothing, because the client holds no connection."""


def scripted(model: str, *, base_url: str | None, timeout: float) -> ScriptedModelClient:
    """Return the client of a model whose rules are in a file: ``scripted/rules.jsonl``.

    Raises:
        UsageError: The file cannot be read, a rule is malformed, or a base URL is given.
    """
    if base_url:
        raise UsageError("a scripted model is in a file and has no base URL")
    reply_script = read(model)
    return ScriptedModelClient(reply_script, Path(model).name, sha256(Path(model)))


def script(rules: Sequence[Rule]) -> Script:
    """Return the script that consists of rules; if no rule matches, the reply is empty."""

    def say(messages: Sequence[Message]) -> Line:
        return next((rule.line for rule in rules if rule.fits(messages)), Line())

    return say


def read(path: str | Path) -> Script:
    """Read a script from a file of rules.

    Raises:
        UsageError: The file cannot be read, or a rule is malformed.
    """
    try:
        # The method splitlines() would also split at U+2028 and similar characters, which JSON
        # permits within texts.
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the script {path} cannot be read: {error}") from error
    return script(
        [
            _rule(line, f"{path}:{line_number}")
            for line_number, line in enumerate(lines, 1)
            if line.strip()
        ]
    )


def _rule(text: str, location: str) -> Rule:
    try:
        rule: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{location}: a rule is a JSON object: {error}") from error
    if not isinstance(rule, dict) or not set(rule) <= _KEYS:
        raise UsageError(f"{location}: a rule is a JSON object with {', '.join(sorted(_KEYS))}")
    try:
        for key in ("when", "seen"):
            re.compile(rule.get(key, ""))
        calls = tuple(
            _call(call, call_number) for call_number, call in enumerate(rule.get("calls", ()))
        )
    except (re.error, TypeError, KeyError) as error:
        raise UsageError(f"{location}: {error!r}") from error
    finish: Finish = rule.get("finish", "tool_calls" if calls else "stop")
    line = Line(rule.get("say", ""), calls, finish)
    return Rule(line, rule.get("when", ""), rule.get("turn"), rule.get("seen", ""))


def _call(call: Mapping[str, Any], call_number: int) -> ToolCall:
    return ToolCall(f"call_{call_number}", call["name"], arguments(call.get("arguments")))


def answer(request: Request, reply_script: Script, model: str) -> Answer:
    """Return a script's answer to a request.

    The stop texts and the token limit of the settings truncate the answer's text, but no tool
    calls.
    """
    line = _cut(reply_script(request.messages), request.settings)
    call_tokens = sum(count(json.dumps(dict(call.arguments))) + 1 for call in line.calls)
    input_tokens = sum(count(message.content) for message in request.messages)
    usage = Usage(input_tokens, count(line.text) + call_tokens)
    return Answer(line.text, line.calls, usage, model, line.finish)


def count(text: str) -> int:
    """Return the number of words in a text, which scripted models report as the number of tokens.

    Any reader can verify this number.
    """
    return len(text.split())


def _cut(line: Line, settings: Settings) -> Line:
    text = line.text
    for stop in settings.stop:
        text = text.partition(stop)[0]
    words = list(re.finditer(r"\S+", text))
    if settings.max_tokens is None or len(words) <= settings.max_tokens:
        return replace(line, text=text)
    return replace(line, text=text[: words[settings.max_tokens].start()], finish="length")
