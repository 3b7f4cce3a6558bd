"""An episode as a sample of Inspect's log; `intercode.evaluate.inspect_log` has the rest.

What our record does not know is left out, never made up: Inspect's *events* need the time of each,
so there are none, and the turns and the calls of the model stand whole in the sample's metadata.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from intercode.episode import Episode
from intercode.evaluate.export import cleaned
from intercode.records import ending_of

_PLACED = ("task_id", "query", "epoch", "answer", "score", "error", "started", "seconds")
"""Fields of an episode that have a place of their own; the others are metadata."""
_TALK = {
    *("name", "messages", "calls"),
    *("input_tokens", "output_tokens", "cached_tokens", "cost"),
}
_STOP = {"length": "max_tokens", "filter": "content_filter"}
_LIMITS = {"seconds": "time", "tokens": "token", "cost": "cost"}


def sample(
    episode: Episode, eval_id: str, limits: Mapping[str, Any], rate: str = "success"
) -> dict[str, Any]:
    """The sample.

    Args:
        episode: One that has ended.
        eval_id: Of its log.
        limits: Those of each of the run's episodes: ``seconds``, ``tokens``, ``cost``.
        rate: What the rate of success is called.
    """
    talk = _talk(episode.metadata.get("model"))
    uuid = digest(eval_id, episode.epoch, episode.task_id)
    spoken = list(_spoken(talk) if talk.get("calls") else _retold(episode))
    for number, message in enumerate(spoken):
        message["id"] = digest(uuid, number)  # all of Inspect's own have one
    told: dict[str, Any] = {
        "id": episode.task_id,
        "epoch": episode.epoch + 1,  # theirs count from 1
        "input": episode.query,
        "target": "",  # gold is not in the record
        "messages": spoken,
        "output": _output(talk, spoken),
        "metadata": _metadata(episode),
        "store": {},
        "events": [],
        "attachments": {},
        "model_usage": usage(episode),
        "role_usage": {},
        "uuid": uuid,
    }
    if episode.started:
        start = datetime.fromtimestamp(episode.started, timezone.utc)
        told["started_at"] = start.isoformat()
        told["completed_at"] = (start + timedelta(seconds=episode.seconds)).isoformat()
        told["total_time"] = episode.seconds
    if _replied(talk):
        told["turn_count"] = len(_replied(talk))
    if episode.score is not None:
        told["scores"] = _scores(episode, rate)
    else:
        traceback = episode.metadata.get("traceback", "")
        told["error"] = {
            "message": episode.error or "",
            "traceback": traceback,
            "traceback_ansi": traceback,
        }
    if limit := _limit(episode, limits):
        told["limit"] = limit
    return cleaned(told)


def usage(episode: Episode) -> dict[str, dict[str, Any]]:
    """Model → what it took, also in attempts that a failing sandbox ended."""
    found: dict[str, dict[str, Any]] = {}
    for value in (*episode.metadata.get("earlier", ()), episode.metadata.get("model")):
        if talk := _talk(value):
            one, name = _usage(talk), talk["name"]
            found[name] = added(found[name], one) if name in found else one
    return found


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two usages together; a cost that is not known of one is not known of both."""
    return {key: one[key] + other[key] for key in one if key in other}


def digest(*parts: object) -> str:
    """An id that is the same at every export."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()[:22]


def _talk(value: Any) -> Mapping[str, Any]:
    """What was said to a model and by it; empty if the record has none of ours."""
    return value if isinstance(value, Mapping) and value.keys() >= _TALK else {}


def _usage(counts: Mapping[str, Any]) -> dict[str, Any]:
    read, cached = counts["input_tokens"], counts["cached_tokens"]
    told = {
        "input_tokens": read - cached,  # theirs are without those
        "output_tokens": counts["output_tokens"],
        "total_tokens": read + counts["output_tokens"],
        "input_tokens_cache_read": cached,
    }
    cost = counts["cost"]
    return told if cost is None else {**told, "total_cost": cost}


def _replied(talk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [call for call in talk.get("calls", ()) if "reply" in call]


def _spoken(talk: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The dialogue as it was last sent, and the reply."""
    last = (_replied(talk) or talk["calls"])[-1]
    numbers = [*last["sent"], last["reply"]] if "reply" in last else last["sent"]
    names: dict[str, str] = {}
    for number in numbers:
        message = talk["messages"][number]
        names |= {call["call_id"]: call["name"] for call in message.get("tool_calls", ())}
        yield _message(message, names)


def _message(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    role = message["role"]
    told: dict[str, Any] = {"role": role, "content": message["content"]}
    if role == "assistant":
        told["source"] = "generate"
    if calls := message.get("tool_calls"):
        told["tool_calls"] = [_call(call) for call in calls]
    if (call_id := message.get("call_id")) is not None:
        told["tool_call_id"] = call_id
        if call_id in names:
            told["function"] = names[call_id]
    return told


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "id": call["call_id"],
        "function": call["name"],
        "arguments": dict(call["arguments"]),
        "type": "function",
    }
    if isinstance(call["arguments"].get("_raw"), str):
        told["parse_error"] = "the arguments are no JSON object"
    return told


def _retold(episode: Episode) -> Iterator[dict[str, Any]]:
    """Of an agent that is no language model: what it saw and what it did."""
    yield {"role": "user", "content": episode.query, "source": "input"}
    for turn in episode.turns:
        yield {"role": "assistant", "content": turn.action}
        yield {"role": "user", "content": turn.observation}
    if episode.status in ("submitted", "skipped"):
        yield {"role": "assistant", "content": ending_of(episode)}


def _output(talk: Mapping[str, Any], spoken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not (replied := _replied(talk)):
        return {"model": "", "choices": [], "completion": ""}
    last, message = replied[-1], spoken[-1]
    return {
        "model": last["model"],
        "choices": [{"message": message, "stop_reason": _STOP.get(last["finish"], last["finish"])}],
        "completion": message["content"],
        "usage": _usage(last),
        "time": last["seconds"],
    }


def _metadata(episode: Episode) -> dict[str, Any]:
    fields = episode.to_dict()
    # At the top, so that Inspect finds what to cluster by: stderr(cluster="image").
    more = fields.pop("metadata")
    own = {key: value for key, value in fields.items() if key not in _PLACED}
    return {**more, "intercode": own}


def _scores(episode: Episode, rate: str) -> dict[str, Any]:
    assert episode.score is not None
    score = episode.score
    told: dict[str, Any] = {
        rate: {"value": "C" if episode.success else "I"},
        "reward": {
            "value": score.value,
            "metadata": {"parts": dict(score.parts), "detail": dict(score.detail)},
        },
    }
    for one in told.values():
        one["history"] = []
        if episode.answer is not None:
            one["answer"] = episode.answer
    return told


def _limit(episode: Episode, limits: Mapping[str, Any]) -> dict[str, Any] | None:
    ended_by = episode.metadata.get("ended_by")
    if ended_by in _LIMITS and limits.get(ended_by) is not None:
        return {"type": _LIMITS[ended_by], "limit": float(limits[ended_by])}
    if episode.status == "truncated":
        return {"type": "custom", "limit": float(len(episode.turns)), "reason": "max_turns"}
    return None
