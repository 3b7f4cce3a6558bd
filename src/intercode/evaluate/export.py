"""Runs in the forms of others: dialogues to train on, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from intercode.episode import Episode
from intercode.records import Outcome, ending_of

EPISODE_COLUMNS = {
    "task_id": "VARCHAR",
    "epoch": "INTEGER",
    "env": "VARCHAR",
    "agent": "VARCHAR",
    "seed": "BIGINT",
    "status": "VARCHAR",
    "success": "BOOLEAN",
    "reward": "DOUBLE",
    "parts": "VARCHAR",
    "turns": "INTEGER",
    "solved_at": "INTEGER",
    "invalid": "INTEGER",
    "unexecuted": "INTEGER",
    "started": "DOUBLE",
    "seconds": "DOUBLE",
    "action_seconds": "DOUBLE",
    "model_seconds": "DOUBLE",
    "tokens_in": "BIGINT",
    "tokens_out": "BIGINT",
    "cost": "DOUBLE",
    "place": "VARCHAR",
    "level": "VARCHAR",
    "tags": "VARCHAR",
    "error_type": "VARCHAR",
    "error": "VARCHAR",
    "answer": "VARCHAR",
    "query": "VARCHAR",
}
"""Of a table of episodes: name and SQL type. ``parts`` and ``tags`` are JSON."""

TURN_COLUMNS = {
    "task_id": "VARCHAR",
    "epoch": "INTEGER",
    "turn": "INTEGER",
    "action": "VARCHAR",
    "observation": "VARCHAR",
    "reward": "DOUBLE",
    "ok": "BOOLEAN",
    "exit_code": "INTEGER",
    "seconds": "DOUBLE",
}
"""Of a table of turns, which count from 1."""


def to_chat(episode: Episode) -> dict[str, Any]:
    """A dialogue as fine-tuning takes it: OpenAI's messages, and what came of it.

    It is what the model was last sent, and its reply. Where no model's messages are recorded the
    query and the observations are the user's, the actions the assistant's.
    """
    model = episode.metadata.get("model")
    model = model if isinstance(model, Mapping) else {}
    messages = _recorded(model) or list(_retold(episode))
    told: dict[str, Any] = {
        "messages": messages,
        "task_id": episode.task_id,
        "epoch": episode.epoch,
        "reward": episode.reward,
        "success": episode.success,
    }
    if tools := model.get("tools"):
        told["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return cleaned(told)


def _recorded(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    every = model.get("messages", [])
    for call in reversed(model.get("calls", [])):
        if "reply" in call:
            return [_message(every[number]) for number in [*call["sent"], call["reply"]]]
    return []


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    told = {"role": message["role"], "content": message["content"]}
    if calls := message.get("tool_calls"):
        told["tool_calls"] = [
            {
                "id": call["call_id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call["arguments"])},
            }
            for call in calls
        ]
    if "call_id" in message:
        told["tool_call_id"] = message["call_id"]
    return told


def _arguments(arguments: Mapping[str, Any]) -> str:
    raw = arguments.get("_raw")
    return raw if isinstance(raw, str) else json.dumps(arguments)


def _retold(episode: Episode) -> Iterator[dict[str, Any]]:
    said = episode.query
    for turn in episode.turns:
        yield {"role": "user", "content": said}
        yield {"role": "assistant", "content": turn.action}
        said = turn.observation
    if episode.status in ("submitted", "skipped"):
        yield {"role": "user", "content": said}
        yield {"role": "assistant", "content": ending_of(episode)}


def episode_row(episode: Episode) -> dict[str, Any]:
    """An episode under `EPISODE_COLUMNS`."""
    outcome = Outcome.of(episode)
    parts = {} if episode.score is None else dict(episode.score.parts)
    special = {"parts": json.dumps(parts), "tags": json.dumps(outcome.tags)}
    row = {
        name: getattr(outcome if hasattr(outcome, name) else episode, name)
        for name in EPISODE_COLUMNS
        if name not in special
    }
    return cleaned({name: {**row, **special}[name] for name in EPISODE_COLUMNS})


def turn_rows(episode: Episode) -> Iterator[dict[str, Any]]:
    """Its turns under `TURN_COLUMNS`."""
    for number, turn in enumerate(episode.turns, 1):
        yield cleaned(
            {
                "task_id": episode.task_id,
                "epoch": episode.epoch,
                "turn": number,
                "action": turn.action,
                "observation": turn.observation,
                "reward": turn.reward,
                "ok": turn.ok,
                "exit_code": turn.exit_code,
                "seconds": turn.seconds,
            }
        )


def cleaned(values: dict[str, Any]) -> dict[str, Any]:
    """With texts that are UTF-8: what is none stands as an escape, as other programs refuse it."""
    return {name: _clean(value) for name, value in values.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return cleaned(value)
    return [_clean(inner) for inner in value] if isinstance(value, list) else value
