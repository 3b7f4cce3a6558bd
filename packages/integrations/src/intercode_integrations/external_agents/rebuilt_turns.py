"""Turns of external agents, rebuilt from the recorded calls to their model.

An agent with tools acts by tool calls, and the next request to the model contains the results. An
agent without tools acts by the code in the model's reply, or by the text that the profile's pattern
matches. The message after the reply then contains the result. If no request contains the result of
an action, the action makes no turn, and is only in the dialogue.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intercode.agents.parser import find_code
from intercode.episode import Turn
from intercode.errors import ModelError
from intercode.models.base import Finish, Message, Reply, Settings, TokenTrace, Tool
from intercode.models.recording_model import RecordingModel
from intercode.tool_calls import ToolCall
from intercode_integrations.external_agents.profile import MEMBER, TurnExtractionRules

if TYPE_CHECKING:
    from intercode_integrations.gateway import Call

_SHELL_FLAGS = ("-c", "-lc", "-ic", "-lic")
# A profile's pattern for the exit code may match any text, and `int` refuses very long numbers.
_EXIT_CODE = re.compile(r"-?[0-9]{1,10}")
_FINISH: dict[str, Finish] = {"length": "length", "filter": "filter"}


class _ReplayModel:
    """A model that returns the recorded replies, so a `RecordingModel` can record the dialogue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call: Call | None = None

    def complete(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - frozen
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the reply of the recorded call in the attribute `call`.

        Raises:
            ModelError: The call had no complete answer.
        """
        call = self.call
        assert call is not None  # set by `rebuild_turns`
        if call.error:
            error = ModelError(call.error)
            error.unsent = call.unpaid
            raise error
        return Reply(
            call.text,
            call.tool_calls,
            call.usage,
            call.cost,
            call.model,
            _FINISH.get(call.finish, "tool_calls" if call.tool_calls else "stop"),
            call.cached,
            call.seconds,
            call.retries,
            TokenTrace.parse(call.prompt_token_ids, call.token_ids, call.logprobs),
        )


def rebuild_turns(
    model_name: str, calls: Sequence[Call], rules: TurnExtractionRules
) -> tuple[list[Turn], RecordingModel]:
    """Rebuild an episode's turns and its dialogue from the calls to the model.

    Args:
        model_name: The name of the model.
        calls: All calls of the episode, in order. Token counts are ignored.
        rules: The profile's rules for actions and observations.

    Returns:
        The turns, and the transcript.
    """
    calls = [call for call in calls if not call.is_count]
    model = _ReplayModel(model_name)
    transcript, turns = RecordingModel(model), list[Turn]()
    uses_tools = any(call.tool_calls for call in calls)
    results_by_call = {
        message.call_id: message.content
        for call in reversed(calls)  # the earliest message with a result prevails
        for message in call.messages
        if message.role == "tool" and message.call_id
    }
    for call_index, call in enumerate(calls):
        model.call, transcript.turn = call, len(turns)
        try:
            transcript.complete(call.messages)
        except ModelError:
            continue
        if not uses_tools:
            new_turns = _turns_from_text(call, calls[call_index + 1 :], rules)
            turns += new_turns
        else:
            new_turns = [
                _make_turn(read_action(tool_call, rules), results_by_call[tool_call.call_id], rules)
                for tool_call in call.tool_calls
                if tool_call.call_id in results_by_call
            ]
            turns += new_turns
        if new_turns and call.text:
            transcript.note(thought=call.text)
    return turns, transcript


def _turns_from_text(
    call: Call, later_calls: Sequence[Call], rules: TurnExtractionRules
) -> list[Turn]:
    """Return the turn for a reply with code; empty if no later request contains the result."""
    if (action := _find_action(call.text, rules)) is None:
        return []
    for later_call in later_calls:
        contents = [message.content for message in later_call.messages]
        if call.text in contents:
            start_index = len(contents) - contents[::-1].index(call.text)
            answers = [
                later_message.content
                for later_message in later_call.messages[start_index:]
                if later_message.role in ("user", "tool")
            ]
            if answers:
                return [_make_turn(action, answers[0], rules)]
    return []


def _find_action(text: str, rules: TurnExtractionRules) -> str | None:
    """Return the action in the text of a reply; None if the reply has no action."""
    if rules.reply is None:
        return find_code(text, "bash")
    matches = re.finditer(rules.reply, text, re.DOTALL)
    return "".join(_unquote_json(match[1] or "") for match in matches) or None


def _unquote_json(text: str) -> str:
    """Return the value of a JSON string, and any other text unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def read_action(call: ToolCall, rules: TurnExtractionRules) -> str:
    """Return the action that a tool call stands for, by the profile's rules."""
    arguments: Mapping[str, Any] = call.arguments
    for argument_name in rules.action:
        value = arguments.get(argument_name)
        if isinstance(value, str):
            return value
        if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
            in_shell = len(value) == 3 and value[1] in _SHELL_FLAGS
            return str(value[2]) if in_shell else shlex.join(value)
    return json.dumps({call.name: dict(arguments)}, ensure_ascii=False)


def _make_turn(action: str, result: str, rules: TurnExtractionRules) -> Turn:
    output, code_text = _select_text(rules.output, result), _select_text(rules.exit_code, result)
    exit_code = (
        int(code_text) if code_text is not None and _EXIT_CODE.fullmatch(code_text) else None
    )
    return Turn(
        action,
        result if output is None else output,
        ok=not exit_code,
        exit_code=exit_code,
    )


def _select_text(selector: str | None, text: str) -> str | None:
    """Return the part of a tool's result that a selector selects; None if nothing matches.

    Args:
        selector: ``$.NAME`` or a pattern, of the profile's table ``record``.
        text: The result.
    """
    if selector is None:
        return None
    if selector.startswith(MEMBER):
        try:
            members = json.loads(text)
        except (ValueError, RecursionError):
            return None
        value = members.get(selector.removeprefix(MEMBER)) if isinstance(members, dict) else None
        return None if value is None else str(value)
    match = re.search(selector, text, re.DOTALL)
    return match[1] if match else None
