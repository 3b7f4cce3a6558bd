"""A run as a log of Inspect AI (UK AI Security Institute): its `EvalLog` as JSON, version 2.

Written from `inspect_ai` 0.3.285, without needing it. A metric has one of Inspect's names only
where its formula is Inspect's; all of our own statistics are in the results' metadata, and the
whole of ``run.json`` in the log's. Facts that our record does not have are left out, never made up:
Inspect's *events* need the time of each, so there are none, and the turns and the calls of the
model stand whole in the sample's metadata.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.evaluate.statistics import clustered_error
from intercode.evaluate.summary import Statistics, by_attempts, summarize
from intercode.records import Outcome, ending_of
from intercode.report.export import cleaned
from intercode.report.runs import Coverage, covered, judge_of, rate_name
from intercode.talks import Talk, talk_of, talks_of
from intercode_sandbox.files import sha256

VERSION = 2
"""The version of the log's format."""
NO_MODEL = "none/none"
"""Inspect's name of the model where there is none."""
_PLACED = ("task_id", "query", "epoch", "answer", "score", "error", "started", "seconds")
"""Fields of an episode that have their own place; the others are metadata."""
_TALK = {
    *("name", "messages", "calls"),
    *("input_tokens", "output_tokens", "cached_tokens", "cost"),
}
_REPLY = {
    *("model", "finish", "seconds"),
    *("input_tokens", "output_tokens", "cached_tokens", "cost"),
}
_STOP = {"length": "max_tokens", "filter": "content_filter"}
_LIMITS = {"seconds": "time", "tokens": "token", "cost": "cost"}


def to_inspect(
    episodes: Iterable[Episode], manifest: Mapping[str, Any], again: Iterable[Episode]
) -> Iterator[str]:
    """Yield the log's text in pieces, so that memory stays flat.

    Args:
        episodes: The episodes of the run.
        manifest: The ``run.json`` of the run.
        again: The same episodes a second time: the results stand before the samples.

    Raises:
        RecordError: The record does not say when the run began, which Inspect must know.
    """
    eval_id = _id(manifest)
    outcomes, spent = _counted(episodes)
    head = _head(manifest, eval_id, outcomes, spent)
    yield json.dumps(head)[:-1] + ', "samples": ['
    limits = _talks(manifest).get("limits") or {}
    rate = rate_name(judge_of(manifest, outcomes))
    for number, episode in enumerate(again):
        yield (",\n" if number else "\n") + json.dumps(sample(episode, eval_id, limits, rate))
    yield "\n]}\n"


def file_name(manifest: Mapping[str, Any]) -> str:
    """Return a name by which Inspect finds the log in a folder: time, task, id.

    Raises:
        RecordError: As `to_inspect`.
    """
    eval_id = _id(manifest)
    time = _utc(manifest["sessions"][0]["started"]).replace(":", "-")
    return f"{time}_{_task(manifest).replace('/', '-')}_{eval_id}.json"


def _id(manifest: Mapping[str, Any]) -> str:
    sessions = manifest.get("sessions") or [{}]
    if not sessions[0].get("started"):
        raise RecordError(
            "run.json does not say when the run was started: Inspect's log cannot be without it"
        )
    parts = (manifest.get(key) for key in ("dataset", "env", "agent", "seed"))
    return digest(*parts, sessions[0])


def _task(manifest: Mapping[str, Any]) -> str:
    return f"intercode/{manifest['env'].get('env') or manifest['dataset']['name']}"


def _counted(episodes: Iterable[Episode]) -> tuple[list[Outcome], dict[str, dict[str, Any]]]:
    """Return the outcomes, and the tokens of each model."""
    outcomes: list[Outcome] = []
    spent: dict[str, dict[str, Any]] = {}
    for episode in episodes:
        outcomes.append(Outcome.of(episode))
        for name, one in usage(episode).items():
            spent[name] = added(spent[name], one) if name in spent else one
    return outcomes, spent


def _head(
    manifest: Mapping[str, Any],
    eval_id: str,
    outcomes: list[Outcome],
    spent: Mapping[str, Any],
) -> dict[str, Any]:
    sessions = manifest["sessions"]
    coverage = covered(manifest, outcomes)
    metadata = {"intercode": dict(manifest)}
    return cleaned(
        {
            "version": VERSION,
            "status": _status(sessions[-1], coverage),
            "eval": {**_spec(manifest, eval_id, coverage, outcomes), "metadata": metadata},
            "plan": _plan(manifest),
            "results": _results(outcomes, coverage, rate_name(judge_of(manifest, outcomes))),
            "stats": {
                "started_at": _utc(sessions[0]["started"]),
                "completed_at": _utc(sessions[-1].get("finished") or ""),
                "model_usage": dict(spent),
                "role_usage": {},
                "connection_limit_history": [],
            },
            "invalidated": False,
            "tags": [],
            "metadata": metadata,
        }
    )


def _status(session: Mapping[str, Any], coverage: Coverage) -> str:
    """Return the status in their sense: an episode with an error is in the log, and ends no run."""
    if not session.get("finished"):
        return "started"
    return "cancelled" if coverage.missing else "success"


def _spec(
    manifest: Mapping[str, Any], eval_id: str, coverage: Coverage, outcomes: list[Outcome]
) -> dict[str, Any]:
    dataset, env, session = manifest["dataset"], manifest["env"], manifest["sessions"][-1]
    settings = session.get("settings", {})
    agent, options = manifest["agent"]["name"], dict(manifest["agent"].get("options") or {})
    return {
        "eval_id": eval_id,
        "run_id": eval_id,
        "task_id": digest(dataset, env),
        "created": _utc(manifest["sessions"][0]["started"]),
        "task": _task(manifest),
        "task_version": 0,
        "task_attribs": {},
        "task_args": dict(env),
        "task_args_passed": dict(env),
        "solver": agent,
        "solver_args": options,
        "solver_args_passed": options,
        "dataset": _some(
            name=dataset["name"],
            location=dataset.get("source"),
            samples=dataset.get("tasks"),
            sample_ids=list(dict.fromkeys(outcome.task_id for outcome in outcomes)),
        ),
        "model": _talks(manifest).get("model") or NO_MODEL,
        "model_generate_config": _sampling(manifest),
        "model_args": {},
        "config": _some(
            epochs=coverage.epochs,
            limit=settings.get("limit"),
            sample_id=settings.get("tasks"),
            fail_on_error=False,
            max_samples=settings.get("workers"),
        ),
        "packages": _packages(session.get("versions", {})),
    }


def _packages(versions: Mapping[str, str]) -> dict[str, str]:
    named = {name: v for name, v in versions.items() if name not in ("python", "code", "commit")}
    return {("intercode-gym" if name == "intercode" else name): v for name, v in named.items()}


def _plan(manifest: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(manifest["agent"].get("options") or {})
    step = {"solver": manifest["agent"]["name"], "params": options, "params_passed": options}
    return {"name": "plan", "steps": [step], "config": _sampling(manifest)}


def _talks(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of the language model; empty if the agent has none."""
    found = manifest["agent"].get("language_model")
    return found if isinstance(found, Mapping) else {}


def _sampling(manifest: Mapping[str, Any]) -> dict[str, Any]:
    settings = _talks(manifest).get("settings") or {}
    stop = settings.get("stop") or None
    names = ("temperature", "top_p", "max_tokens", "seed")
    return _some(stop_seqs=stop, **{name: settings.get(name) for name in names})


def _results(outcomes: list[Outcome], coverage: Coverage, rate: str) -> dict[str, Any]:
    statistics = summarize(outcomes)
    attempts = by_attempts(outcomes)
    scored = [outcome for outcome in outcomes if not outcome.failed]
    success = _theirs("accuracy", scored, [float(outcome.success) for outcome in scored])
    success |= _ours(statistics, "success_rate", "success_low", "success_high")
    success |= _ours(statistics, "clustered_low", "clustered_high")
    for of in attempts:
        success |= {f"pass@{of.k}": of.pass_at_k, f"pass^{of.k}": of.pass_hat_k}
    reward = _theirs("mean", scored, [outcome.reward or 0.0 for outcome in scored])
    reward |= _ours(statistics, "mean_reward", "reward_low", "reward_high")
    count = {"scored_samples": len(scored)} if coverage.epochs == 1 else {}
    return {
        "total_samples": coverage.planned,
        "completed_samples": len(scored),
        "scores": [
            {
                "name": name,
                "scorer": name,
                **count,
                "params": {},
                "metrics": {
                    key: {"name": key, "value": value, "params": {}}
                    for key, value in metrics.items()
                },
            }
            for name, metrics in ((rate, success), ("reward", reward))
        ],
        "metadata": {
            "statistics": asdict(statistics),
            "attempts": [asdict(of) for of in attempts],
            "coverage": asdict(coverage),
        },
    }


def _theirs(name: str, scored: list[Outcome], values: list[float]) -> dict[str, float]:
    """Return Inspect's mean and standard error: those of the means of each task's attempts.

    Inspect's mean is our mean, with its error clustered by task, where all tasks have as many
    attempts.
    """
    tasks = [outcome.task_id for outcome in scored]
    counts = Counter(tasks)
    if len(set(counts.values())) != 1:
        return {}
    found = {name: sum(values) / len(values)}
    if len(counts) > 1:
        found["stderr"] = clustered_error(values, tasks)
    return found


def _ours(statistics: Statistics, *names: str) -> dict[str, float]:
    return _some(**{name: getattr(statistics, name) for name in names})


def _some(**values: Any) -> dict[str, Any]:
    """Return the known values."""
    return {name: value for name, value in values.items() if value is not None}


def _utc(text: str) -> str:
    """Return a time as Inspect writes it."""
    return text[:-1] + "+00:00" if text.endswith("Z") else text


def sample(
    episode: Episode, eval_id: str, limits: Mapping[str, Any], rate: str = "success"
) -> dict[str, Any]:
    """Return an episode as a sample of the log.

    Args:
        episode: An episode that has ended.
        eval_id: The id of the log.
        limits: The limits of each episode: ``seconds``, ``tokens``, ``cost``.
        rate: The name of the rate of success.
    """
    talk = _talk(talk_of(episode))
    fork = () if episode.fork is None else episode.fork.branch
    uuid = digest(eval_id, episode.epoch, episode.task_id, *fork)
    spoken = list(_spoken(talk) if talk.get("calls") else _retold(episode))
    for number, message in enumerate(spoken):
        message["id"] = digest(uuid, number)  # all of Inspect's own have one
    replies = len(_replied(talk))
    return cleaned(
        {
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
            **_times(episode),
            **({"turn_count": replies} if replies else {}),
            **_result(episode, rate),
            **_some(limit=_limit(episode, limits)),
        }
    )


def _times(episode: Episode) -> dict[str, Any]:
    if not episode.started:
        return {}
    start = datetime.fromtimestamp(episode.started, UTC)
    end = start + timedelta(seconds=episode.seconds)
    return {
        "started_at": start.isoformat(),
        "completed_at": end.isoformat(),
        "total_time": episode.seconds,
    }


def _result(episode: Episode, rate: str) -> dict[str, Any]:
    if episode.score is not None:
        return {"scores": _scores(episode, rate)}
    traceback = episode.metadata.get("traceback", "")
    told = {"message": episode.error or "", "traceback": traceback, "traceback_ansi": traceback}
    return {"error": told}


def usage(episode: Episode) -> dict[str, dict[str, Any]]:
    """Map each model to its tokens, also of attempts that a failing sandbox ended."""
    found: dict[str, dict[str, Any]] = {}
    for value in talks_of(episode):
        if talk := _talk(value):
            one, name = _usage(talk), talk["name"]
            found[name] = added(found[name], one) if name in found else one
    return found


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add two usages; a cost that one of them does not know is left out."""
    return {key: one[key] + other[key] for key in one if key in other}


def digest(*parts: object) -> str:
    """Return an id that is equal at every export."""
    return sha256(repr(parts))[:22]


def _talk(talk: Talk | None) -> Mapping[str, Any]:
    """Return the dialogue with a model; empty if the record has none, or not all of it."""
    if talk is None or not talk.keys() >= _TALK:
        return {}
    return talk if all(call.keys() >= _REPLY for call in _replied(talk)) else {}


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
    """Yield the dialogue as it was last sent, and the reply."""
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
        told["parse_error"] = "the arguments are not a JSON object"
    return told


def _retold(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the observations and actions of an agent that is not a language model."""
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
