"""Failure modes of language models: what went wrong in an episode that was not solved, by name.

They are read from the record, without judgement: an episode can have several of them, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from intercode.episode import Episode, Turn
from intercode.talks import talk_of

FAILURE_MODES: Mapping[str, str] = {
    "repeats one action": "an action was taken three times in a row, word for word",
    "never submits": "the turns ran out",
    "submits without an answer": "it was handed in before any action succeeded",
    "never looks": "no action looked at tables or files before it was handed in, or turns ran out",
    "replies cut off": "a reply was longer than a reply may be",
    "no code in a reply": "a reply had no action that could be executed",
    "context overflow": "the dialogue became longer than the model's context",
}
"""Name → its definition."""
_LOOKS: Mapping[str, re.Pattern[str]] = {
    "sql": re.compile(
        r"\s*(?:\.tables|\.schema|\.fullschema|\\d|show\b|desc(?:ribe)?\b|pragma\b)"
        r"|\b(?:sqlite_master|sqlite_schema|pragma_table_info|information_schema|pg_catalog)\b"
        r"|\bselect\s+\*",
        re.IGNORECASE,
    ),
    "bash": re.compile(r"(?:^|[;&|(]\s*)(?:ls|cat|head|tail|find|tree|file|stat|less|more|nl)\b"),
}
"""Environment → the actions that look at what there is."""


def is_repeat(turns: Sequence[Turn]) -> bool:
    """Tell whether the last action is the one before, word for word.

    Replies without an action are not compared.
    """
    if len(turns) < 2 or turns[-1].info.get("invalid"):
        return False
    return turns[-1].action.strip() == turns[-2].action.strip()


def failure_modes(episode: Episode) -> tuple[str, ...]:
    """Name the failure modes of an episode; none if it was solved, or has no language model."""
    if episode.success or episode.status == "error" or talk_of(episode) is None:
        return ()
    return tuple(_modes(episode))


def _modes(episode: Episode) -> Iterator[str]:
    turns, talk = episode.turns, talk_of(episode)
    repeats = [is_repeat(pair) for pair in pairwise(turns)]
    if any(first and second for first, second in pairwise(repeats)):
        yield "repeats one action"
    if episode.status == "truncated":
        yield "never submits"
    if episode.status == "submitted" and not episode.answer and not any(t.ok for t in turns):
        yield "submits without an answer"
    looks = _LOOKS.get(episode.env)
    if looks is not None and not any(looks.search(turn.action) for turn in turns):
        yield "never looks"
    calls = [] if talk is None else talk.get("calls", [])
    if any(call.get("finish") == "length" for call in calls):
        yield "replies cut off"
    if any(turn.info.get("executed") is False for turn in turns):
        yield "no code in a reply"
    if episode.metadata.get("ended_by") == "context":
        yield "context overflow"
