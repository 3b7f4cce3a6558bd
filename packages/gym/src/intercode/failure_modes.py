"""Failure modes of language models: what went wrong in an episode that was not solved, by name.

They are read from the record, without judgement: an episode can have several of them, or none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from intercode.dialogues import Call
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
"""Name → its definition."""
# Actions are an agent's, of any length: no pattern may begin with what another place can begin with
# as well, as blanks do, or a search takes the square of an action's length.
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
"""Environment → the actions that look at what there is."""


_ONLY_LOOKS = re.compile(
    rf"(?:(?:ls|cat|head|tail|file|stat|pwd|wc|grep)\b[^;&|<>`$\n]*"
    rf"|(?:{_SCHEMA_COMMAND}|select\b|explain\b)[^;]*;?)",
    re.IGNORECASE,
)


def is_repeat(earlier_turn: Turn, turn: Turn) -> bool:
    """Tell whether a turn has the action of an earlier one, word for word.

    A reply without an action repeats nothing.
    """
    return not turn.info.get("invalid") and turn.action.strip() == earlier_turn.action.strip()


def shows_schema(turn: Turn) -> bool:
    """Tell whether a turn was a schema command, of SQL, that succeeded: it shows no answer."""
    return turn.ok and re.match(_SCHEMA_COMMAND, turn.action.strip(), re.IGNORECASE) is not None


def shows_all_columns(turn: Turn) -> bool:
    """Tell whether a turn has shown the columns of all tables."""
    is_full_schema = turn.action.strip().rstrip("; ").lower() in (".schema", ".fullschema")
    return turn.ok and is_full_schema and bool(turn.observation.strip())


def changes_nothing(turn: Turn) -> bool:
    """Tell whether a turn has only looked, at files or at tables."""
    return _ONLY_LOOKS.fullmatch(turn.action.strip()) is not None


def failure_modes(episode: Episode, calls: Collection[Call]) -> tuple[str, ...]:
    """Name the failure modes of an episode.

    Args:
        episode: The episode.
        calls: The calls to its agent's model; empty: it has none.

    Returns:
        Names of `FAILURE_MODES`; none for an episode that was solved, ended in an error, or had no
        language model.
    """
    if episode.success or episode.status == "error" or not calls:
        return ()
    return tuple(_modes(episode, calls))


def _modes(episode: Episode, calls: Collection[Call]) -> Iterator[str]:
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
