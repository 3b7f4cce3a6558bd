"""Conversion of episodes to data for the viewer, which shows episodes in the browser.

Each episode has a small row for lists, and a body with its whole content, loaded on demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from intercode.dialogues import agent_talk, find_branch
from intercode.episode import Episode
from intercode.evaluate.summary import UNKNOWN
from intercode.records import Outcome
from intercode.report.answer_pairs import answer_pairs
from intercode.report.recorded_tasks import RecordedTask
from intercode.report.reward_reasons import explain_reward

MAX_TEXT_LENGTH = 20_000
"""The maximum number of characters in a text. Of a longer text, its beginning and end remain."""
LINE = 160
"""The maximum number of characters of a query in a list."""
_TAGS = 20
_SEPARATE_FIELDS = ("model", "search", "tags", "earlier", "judge")
"""Fields of an episode's metadata that the body does not show under ``metadata``. The body shows
them separately, or they may quote gold."""

_KNOWN_FIELDS = ("task_id", "query", "tags")
"""Fields of a task that the episode's record has, too."""


class EpisodeRow(NamedTuple):
    """The facts of an episode by which the viewer's lists show, sort and filter episodes."""

    run: int
    """The number of the episode's run, counted from 0."""
    id: str
    task: str
    epoch: int
    query: str
    """The beginning of the query."""
    outcome: str
    """The outcome kind, a key of `intercode.outcomes.OUTCOMES`; ``unknown``: the record of the
    episode stops before its end."""
    success: bool
    reward: float | None
    turns: int
    seconds: float
    tokens: int | None
    """The sum of input and output tokens; None: not recorded."""
    cost: float | None
    """The cost of the model in US dollars; None: not known."""
    level: str | None
    tags: Sequence[str]
    place: str
    kinds: Sequence[str]
    """Problems of the episode: the type of its error, ``timeout``, a limit, or a failure mode."""
    started: float
    parent: str | None
    """The id of the episode from which this episode was forked; None: not forked."""


def make_row(run: int, episode: Episode, outcome: Outcome) -> EpisodeRow:
    """Return the row of an episode.

    Args:
        run: The number of the episode's run, counted from 0.
        episode: The episode.
        outcome: The summary of the episode.
    """
    tokens = None
    if outcome.tokens_in is not None and outcome.tokens_out is not None:
        tokens = outcome.tokens_in + outcome.tokens_out
    return EpisodeRow(
        run=run,
        id=episode.id,
        task=episode.task_id,
        epoch=episode.epoch,
        query=_line(episode.query),
        outcome=outcome.kind or UNKNOWN,
        success=outcome.success,
        reward=_finite_value(outcome.reward),
        turns=outcome.turns,
        seconds=round(_finite_value(outcome.seconds) or 0.0, 3),
        tokens=tokens,
        cost=_finite_value(outcome.cost),
        level=outcome.level,
        tags=outcome.tags[:_TAGS],
        place=outcome.place,
        kinds=tuple(dict.fromkeys(_kinds(episode, outcome))),
        started=round(_finite_value(episode.started) or 0.0, 3),
        parent=None if episode.fork is None else episode.fork.parent,
    )


def columns(rows: Sequence[EpisodeRow]) -> dict[str, list[Any]]:
    """Return the values of rows by column. As JSON, this form is shorter than a list of rows.

    Returns:
        Name of a column → its value in each row.
    """
    return {name: [getattr(row, name) for row in rows] for name in EpisodeRow._fields}


def make_body(
    episode: Episode,
    task: RecordedTask | None = None,
    *,
    hide_gold: bool = False,
    shown_gold: bool = False,
) -> Any:
    """Return an episode's content as plain data, in which long texts are cut.

    Args:
        episode: The episode.
        task: The episode's task, or the reason why it is missing; None: the page has no tasks.
        hide_gold: Whether to omit all texts that may quote gold.
        shown_gold: Whether the episode's agent received gold, so its actions may quote gold.
    """
    body: dict[str, Any] = {"query": episode.query, "error": episode.error, "hidden": hide_gold}
    body["metadata"] = {k: v for k, v in episode.metadata.items() if k not in _SEPARATE_FIELDS}
    if episode.score is not None:
        body["score"] = {"value": episode.score.value, "parts": dict(episode.score.parts)}
    if not hide_gold:
        body["why"] = explain_reward(episode, has_pairs=True)
        body["pairs"] = [
            pair._asdict() for pair in answer_pairs(episode, None if task is None else task.task)
        ]
        body["shown_gold"] = shown_gold
        body["task"] = None if task is None else _task_facts(task)
        body["detail"] = {} if episode.score is None else episode.score.detail
        body["judge"] = episode.metadata.get("judge")
    if hide_gold and shown_gold:
        body.update(turns=[], answer=None, metadata={})
        return _cut(body)
    body["answer"] = episode.answer
    body["turns"] = [
        {
            "action": turn.action,
            "observation": turn.observation,
            "reward": turn.reward,
            "ok": turn.ok,
            "exit": turn.exit_code,
            "seconds": turn.seconds,
            "info": turn.info,
            "changes": None if turn.changes is None else asdict(turn.changes),
        }
        for turn in episode.turns
    ]
    body["talk"] = agent_talk(episode)
    body["search"] = _search(episode)
    body["earlier"] = episode.metadata.get("earlier")
    return _cut(body)


def _task_facts(task: RecordedTask) -> dict[str, Any]:
    """Return the fields of a task that an episode lacks, and the reason for a missing task."""
    fields = {} if task.task is None else task.task.to_dict()
    return {
        "reason": task.reason,
        "command": task.command,
        "fields": {name: value for name, value in fields.items() if name not in _KNOWN_FIELDS},
    }


def iterate_texts(value: Any) -> Iterator[str]:
    """Yield every text in a body, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from iterate_texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from iterate_texts(member)


def _kinds(episode: Episode, outcome: Outcome) -> Iterator[str]:
    metadata, detail = episode.metadata, {} if episode.score is None else episode.score.detail
    if outcome.failed:
        yield str(outcome.error_type or "unknown")
    has_timeout = any(turn.info.get("timed_out") for turn in episode.turns) or detail.get(
        "timed_out"
    )
    if has_timeout or "timeout" in str(outcome.error_type or "").lower():
        yield "timeout"
    if isinstance(limit := metadata.get("ended_by"), str):
        yield f"limit: {limit}"
    if outcome.restarts:
        yield "restarted"
    if outcome.unexecuted:
        yield "no action"
    if outcome.submissions > 1:
        yield "submitted several times"
    yield from outcome.modes


def _search(episode: Episode) -> Any:
    """Return the states of a search, each with a mark whether it is on the chosen branch.

    The result is None if the agent did not search.
    """
    branch = find_branch(episode)
    if branch is None:
        return None
    names = ("parent", "action", "judgement", "lost")
    return [
        {**{name: node.get(name) for name in names}, "led": index in branch}
        for index, node in enumerate(episode.metadata["search"]["nodes"])
        if isinstance(node, Mapping)
    ]


def _cut(value: Any) -> Any:
    """Convert a value to JSON's types, and cut the long texts in it."""
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        head, tail = (
            value[: MAX_TEXT_LENGTH - MAX_TEXT_LENGTH // 3],
            value[-(MAX_TEXT_LENGTH // 3) :],
        )
        omitted_count = len(value) - len(head) - len(tail)
        return f"{head}\n… {omitted_count} characters more: see 'intercode show' …\n{tail}"
    if isinstance(value, Mapping):
        return {str(key): _cut(member) for key, member in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_cut(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _finite_value(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _line(text: str) -> str:
    """Return the beginning of a text as a single line, for a list."""
    line = " ".join(text[: 2 * LINE].split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"
