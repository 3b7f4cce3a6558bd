"""Failure modes of language models: named patterns in episodes that were not solved.

`failure_modes` detects them in an episode's record by rules, without a judge. An episode can have
several failure modes, or none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from intercode.dialogues import RecordedModelCall
from intercode.episode import Episode, Turn

FAILURE_MODES: Mapping[str, str] = {
    "repeats one action": "the identical action three times in a row",
    "never submits": "no submission within the turn limit",
    "submits without an answer": "a submission although no action had succeeded",
    "never looks": "in Bash and SQL: no action that lists or reads files, or shows tables",
    "replies cut off": "a reply that reached the limit of its length",
    "no code in a reply": "a reply without an action that could be executed",
    "context overflow": "a dialogue longer than the model's context",
}
"""Name of a failure mode → its definition."""
# Actions are untrusted and may be long. No pattern may begin with a part that matches at many
# positions, such as blanks. The time of a search would then be quadratic in the action's length.
_SCHEMA_COMMAND = r"(?:\.tables|\.schema|\.fullschema|\\d|show\b|desc(?:ribe)?\b|pragma\b)"
_LOOKS: Mapping[str, re.Pattern[str]] = {
    "sql": re.compile(
        rf"(?:\A|;)\s*{_SCHEMA_COMMAND}"
        r"|\b(?:sqlite_master|sqlite_schema|pragma_table_info|information_schema|pg_catalog)\b"
        r"|\bselect\s+\*",
        re.IGNORECASE,
    ),
    "bash": re.compile(
        r"(?:\A|[;&|(\n])[ \t]*(?:ls|cat|head|tail|find|tree|file|stat|less|more|nl)\b"
    ),
}
"""Environment → pattern of actions that list or read files, or show tables."""


_ONLY_LOOKS = re.compile(
    rf"(?:(?:ls|cat|head|tail|file|stat|pwd|wc|grep)\b[^;&|<>`$\n]*"
    rf"|(?:{_SCHEMA_COMMAND}|select\b|explain\b)[^;]*;?)",
    re.IGNORECASE,
)


def is_repeat(earlier_turn: Turn, turn: Turn) -> bool:
    """Return whether a turn repeats the action of an earlier turn, word for word.

    A reply without an action repeats nothing.
    """
    return not turn.info.get("invalid") and turn.action.strip() == earlier_turn.action.strip()


def shows_schema(turn: Turn) -> bool:
    """Return whether a turn's action was a successful schema command, such as ``.tables``.

    The output of a schema command describes tables; it is never the answer to a task.
    """
    return turn.ok and re.match(_SCHEMA_COMMAND, turn.action.strip(), re.IGNORECASE) is not None


def shows_all_columns(turn: Turn) -> bool:
    """Return whether a turn's observation has shown the columns of all tables."""
    is_full_schema = turn.action.strip().rstrip("; ").lower() in (".schema", ".fullschema")
    return turn.ok and is_full_schema and bool(turn.observation.strip())


def changes_nothing(turn: Turn) -> bool:
    """Return whether a turn's action only reads files or tables."""
    return _ONLY_LOOKS.fullmatch(turn.action.strip()) is not None


def failure_modes(episode: Episode, calls: Collection[RecordedModelCall]) -> tuple[str, ...]:
    """Return the failure modes of an episode.

    Args:
        episode: The episode.
        calls: The calls to the agent's model; empty: the agent is not a language model.

    Returns:
        Names of `FAILURE_MODES`; empty for an episode that was solved, ended in an error, or had no
        language model.
    """
    if episode.success or episode.status == "error" or not calls:
        return ()
    return tuple(_modes(episode, calls))


def _modes(episode: Episode, calls: Collection[RecordedModelCall]) -> Iterator[str]:
    turns = episode.turns
    repeats = [is_repeat(previous_turn, turn) for previous_turn, turn in pairwise(turns)]
    if any(first_repeat and second_repeat for first_repeat, second_repeat in pairwise(repeats)):
        yield "repeats one action"
    if episode.status == "truncated":
        yield "never submits"
    if episode.status == "submitted" and not episode.answer and not any(t.ok for t in turns):
        yield "submits without an answer"
    looks = _LOOKS.get(episode.env)
    if looks is not None and not any(looks.search(turn.action) for turn in turns):
        yield "never looks"
    if any(call.get("finish") == "length" for call in calls):
        yield "replies cut off"
    if any(turn.info.get("executed") is False for turn in turns):
        yield "no code in a reply"
    if episode.metadata.get("ended_by") == "context":
        yield "context overflow"
