"""Export of a run as a log of Inspect AI, the framework of the UK AI Security Institute.

The log is Inspect's ``EvalLog`` as JSON, version 2. The format follows ``inspect_ai`` 0.3.285, but
the export does not need that package. A metric has one of Inspect's names only if InterCode and
Inspect compute it by the same formula. The metadata of the results contain InterCode's own
statistics; the metadata of the log contain the complete ``run.json``.

Facts that the record lacks are omitted, never invented. Inspect's *events* need the time of each
event, which the record lacks, so the log has no events. Each episode is a sample of the log. The
metadata of a sample contain all turns and model calls.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from intercode.dialogues import RecordedDialogue, agent_talk, all_agent_talks
from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.evaluate.statistics import clustered_error
from intercode.evaluate.summary import Statistics, by_attempts, summarize
from intercode.records import Outcome, ending_action
from intercode.report.export import escape_values
from intercode.report.runs import DatasetCoverage, compute_coverage, find_judge, rate_name
from intercode_sandbox.host_files import sha256

VERSION = 2
"""The version of the log's format."""
NO_MODEL = "none/none"
"""The name that Inspect uses for the model of a run without a model."""
_PLACED = ("task_id", "query", "epoch", "answer", "score", "error", "started", "seconds")
"""Fields of an episode for which an Inspect sample has a field. Other fields become metadata."""
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
    episodes: Iterable[Episode], manifest: Mapping[str, Any], repeated_episodes: Iterable[Episode]
) -> Iterator[str]:
    """Yield the text of the log in pieces, so memory holds one episode at a time.

    Args:
        episodes: The episodes of the run.
        manifest: The ``run.json`` of the run.
        repeated_episodes: The same episodes again. In the log, the results precede the samples, so
            the function iterates over the episodes twice.

    Raises:
        RecordError: The record lacks the start time of the run, which Inspect requires.
    """
    eval_id = _id(manifest)
    outcomes, usage_by_model = _count_usage(episodes)
    head = _head(manifest, eval_id, outcomes, usage_by_model)
    yield json.dumps(head)[:-1] + ', "samples": ['
    limits = _model_facts(manifest).get("limits") or {}
    rate = rate_name(find_judge(manifest, outcomes))
    for episode_index, episode in enumerate(repeated_episodes):
        yield (",\n" if episode_index else "\n") + json.dumps(
            sample(episode, eval_id, limits, rate)
        )
    yield "\n]}\n"


def file_name(manifest: Mapping[str, Any]) -> str:
    """Return a file name by which Inspect finds the log in a folder: time, task and id.

    Raises:
        RecordError: The record lacks the start time of the run.
    """
    eval_id = _id(manifest)
    time = _utc(manifest["sessions"][0]["started"]).replace(":", "-")
    return f"{time}_{_task(manifest).replace('/', '-')}_{eval_id}.json"


def _id(manifest: Mapping[str, Any]) -> str:
    sessions = manifest.get("sessions") or [{}]
    if not sessions[0].get("started"):
        raise RecordError("run.json has no start time, which an Inspect log requires")
    identity_facts = (manifest.get(key) for key in ("dataset", "env", "agent", "seed"))
    return digest(*identity_facts, sessions[0])


def _task(manifest: Mapping[str, Any]) -> str:
    return f"intercode/{manifest['env'].get('env') or manifest['dataset']['name']}"


def _count_usage(episodes: Iterable[Episode]) -> tuple[list[Outcome], dict[str, dict[str, Any]]]:
    """Return the summaries of episodes, and the sums of their tokens for each model."""
    outcomes: list[Outcome] = []
    usage_by_model: dict[str, dict[str, Any]] = {}
    for episode in episodes:
        outcomes.append(Outcome.from_episode(episode))
        for name, episode_usage in usage(episode).items():
            usage_by_model[name] = (
                add_usage(usage_by_model[name], episode_usage)
                if name in usage_by_model
                else episode_usage
            )
    return outcomes, usage_by_model


def _head(
    manifest: Mapping[str, Any],
    eval_id: str,
    outcomes: list[Outcome],
    usage_by_model: Mapping[str, Any],
) -> dict[str, Any]:
    sessions = manifest["sessions"]
    coverage = compute_coverage(manifest, outcomes)
    metadata = {"intercode": dict(manifest)}
    return escape_values(
        {
            "version": VERSION,
            "status": _status(sessions[-1], coverage),
            "eval": {**_spec(manifest, eval_id, coverage, outcomes), "metadata": metadata},
            "plan": _plan(manifest),
            "results": _results(outcomes, coverage, rate_name(find_judge(manifest, outcomes))),
            "stats": {
                "started_at": _utc(sessions[0]["started"]),
                "completed_at": _utc(sessions[-1].get("finished") or ""),
                "model_usage": dict(usage_by_model),
                "role_usage": {},
                "connection_limit_history": [],
            },
            "invalidated": False,
            "tags": [],
            "metadata": metadata,
        }
    )


def _status(session: Mapping[str, Any], coverage: DatasetCoverage) -> str:
    """Return the status of the run in Inspect's words.

    The status is never "error": an error of an episode is part of the log, and the run goes on.
    """
    if not session.get("finished"):
        return "started"
    return "cancelled" if coverage.missing else "success"


def _spec(
    manifest: Mapping[str, Any], eval_id: str, coverage: DatasetCoverage, outcomes: list[Outcome]
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
        "dataset": _drop_unknown(
            name=dataset["name"],
            location=dataset.get("source"),
            samples=dataset.get("tasks"),
            sample_ids=list(dict.fromkeys(outcome.task_id for outcome in outcomes)),
        ),
        "model": _model_facts(manifest).get("model") or NO_MODEL,
        "model_generate_config": _sampling(manifest),
        "model_args": {},
        "config": _drop_unknown(
            epochs=coverage.epochs,
            limit=settings.get("limit"),
            sample_id=settings.get("tasks"),
            fail_on_error=False,
            max_samples=settings.get("workers"),
        ),
        "packages": _packages(session.get("versions", {})),
    }


def _packages(versions: Mapping[str, str]) -> dict[str, str]:
    package_versions = {
        name: v for name, v in versions.items() if name not in ("python", "code", "commit")
    }
    return {
        ("intercode-gym" if name == "intercode" else name): v
        for name, v in package_versions.items()
    }


def _plan(manifest: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(manifest["agent"].get("options") or {})
    step = {"solver": manifest["agent"]["name"], "params": options, "params_passed": options}
    return {"name": "plan", "steps": [step], "config": _sampling(manifest)}


def _model_facts(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the recorded facts of the language model; empty if the agent is not one."""
    facts = manifest["agent"].get("language_model")
    return facts if isinstance(facts, Mapping) else {}


def _sampling(manifest: Mapping[str, Any]) -> dict[str, Any]:
    settings = _model_facts(manifest).get("settings") or {}
    stop = settings.get("stop") or None
    names = ("temperature", "top_p", "max_tokens", "seed")
    return _drop_unknown(stop_seqs=stop, **{name: settings.get(name) for name in names})


def _results(outcomes: list[Outcome], coverage: DatasetCoverage, rate: str) -> dict[str, Any]:
    statistics = summarize(outcomes)
    attempts = by_attempts(outcomes)
    scored_outcomes = [outcome for outcome in outcomes if not outcome.failed]
    success = _inspect_metrics(
        "accuracy", scored_outcomes, [float(outcome.success) for outcome in scored_outcomes]
    )
    success |= _statistics_metrics(statistics, "success_rate", "success_low", "success_high")
    success |= _statistics_metrics(statistics, "clustered_low", "clustered_high")
    for attempt in attempts:
        success |= {f"pass@{attempt.k}": attempt.pass_at_k, f"pass^{attempt.k}": attempt.pass_hat_k}
    reward = _inspect_metrics(
        "mean", scored_outcomes, [outcome.reward or 0.0 for outcome in scored_outcomes]
    )
    reward |= _statistics_metrics(statistics, "mean_reward", "reward_low", "reward_high")
    count = {"scored_samples": len(scored_outcomes)} if coverage.epochs == 1 else {}
    return {
        "total_samples": coverage.planned,
        "completed_samples": len(scored_outcomes),
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
            "attempts": [asdict(attempt) for attempt in attempts],
            "coverage": asdict(coverage),
        },
    }


def _inspect_metrics(
    name: str, scored_outcomes: list[Outcome], values: list[float]
) -> dict[str, float]:
    """Return the mean and the standard error as Inspect computes them.

    Inspect first averages the attempts at each task, and then computes mean and standard error over
    the tasks. If all tasks have the same number of attempts, these are the mean of all attempts and
    the standard error clustered by task. Otherwise the result is empty.

    Args:
        name: Inspect's name of the mean, such as ``accuracy``.
        scored_outcomes: The summaries of the scored episodes.
        values: The value of each of these episodes.
    """
    tasks = [outcome.task_id for outcome in scored_outcomes]
    counts = Counter(tasks)
    if len(set(counts.values())) != 1:
        return {}
    metrics = {name: sum(values) / len(values)}
    if len(counts) > 1:
        metrics["stderr"] = clustered_error(values, tasks)
    return metrics


def _statistics_metrics(statistics: Statistics, *names: str) -> dict[str, float]:
    return _drop_unknown(**{name: getattr(statistics, name) for name in names})


def _drop_unknown(**values: Any) -> dict[str, Any]:
    """Return the values that are not None, by name."""
    return {name: value for name, value in values.items() if value is not None}


def _utc(text: str) -> str:
    """Return a recorded time in Inspect's format: ``+00:00`` replaces a ``Z`` at the end."""
    return text[:-1] + "+00:00" if text.endswith("Z") else text


def sample(
    episode: Episode, eval_id: str, limits: Mapping[str, Any], rate: str = "success"
) -> dict[str, Any]:
    """Return an episode as a sample of an Inspect log.

    Args:
        episode: An episode that has ended.
        eval_id: The id of the log.
        limits: The limits of each episode by name: ``seconds``, ``tokens``, ``cost``.
        rate: The name of the success rate, from `intercode.report.runs.rate_name`.
    """
    talk = _talk(agent_talk(episode))
    fork = () if episode.fork is None else episode.fork.branch
    uuid = digest(eval_id, episode.epoch, episode.task_id, *fork)
    messages = list(_dialogue_messages(talk) if talk.get("calls") else _episode_messages(episode))
    for message_index, message in enumerate(messages):
        message["id"] = digest(uuid, message_index)  # Inspect's own messages have ids
    replies = len(_answered_calls(talk))
    return escape_values(
        {
            "id": episode.task_id,
            "epoch": episode.epoch + 1,  # Inspect's epochs count from 1
            "input": episode.query,
            "target": "",  # the record does not contain gold
            "messages": messages,
            "output": _output(talk, messages),
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
            **_drop_unknown(limit=_limit(episode, limits)),
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
    error_facts = {
        "message": episode.error or "",
        "traceback": traceback,
        "traceback_ansi": traceback,
    }
    return {"error": error_facts}


def usage(episode: Episode) -> dict[str, dict[str, Any]]:
    """Return the tokens and costs of an episode's models, including those of lost attempts.

    InterCode repeats an attempt that a failure of the sandbox ended.

    Returns:
        Model → its usage in Inspect's form.
    """
    usage_by_model: dict[str, dict[str, Any]] = {}
    for value in all_agent_talks(episode):
        if talk := _talk(value):
            talk_usage, name = _usage(talk), talk["name"]
            usage_by_model[name] = (
                add_usage(usage_by_model[name], talk_usage)
                if name in usage_by_model
                else talk_usage
            )
    return usage_by_model


def add_usage(first_usage: Mapping[str, Any], second_usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two usages of a model. If one of them lacks a cost, the sum lacks it."""
    return {key: first_usage[key] + second_usage[key] for key in first_usage if key in second_usage}


def digest(*identity_facts: object) -> str:
    """Return an id of 22 hexadecimal digits, which depends only on the arguments.

    Every export of the same run therefore has the same ids.
    """
    return sha256(repr(identity_facts))[:22]


def _talk(talk: RecordedDialogue | None) -> Mapping[str, Any]:
    """Return a recorded dialogue with a model; empty if a field is missing that the log needs."""
    if talk is None or not talk.keys() >= _TALK:
        return {}
    return talk if all(call.keys() >= _REPLY for call in _answered_calls(talk)) else {}


def _usage(counts: Mapping[str, Any]) -> dict[str, Any]:
    input_tokens, cached_tokens = counts["input_tokens"], counts["cached_tokens"]
    usage_facts = {
        "input_tokens": input_tokens - cached_tokens,  # Inspect counts cached tokens separately
        "output_tokens": counts["output_tokens"],
        "total_tokens": input_tokens + counts["output_tokens"],
        "input_tokens_cache_read": cached_tokens,
    }
    cost = counts["cost"]
    return usage_facts if cost is None else {**usage_facts, "total_cost": cost}


def _answered_calls(talk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [call for call in talk.get("calls", ()) if "reply" in call]


def _dialogue_messages(talk: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages of the last answered call to the model, and the model's reply.

    If the model answered no call, the messages of the last call are yielded.
    """
    last_call = (_answered_calls(talk) or talk["calls"])[-1]
    message_numbers = (
        [*last_call["sent"], last_call["reply"]] if "reply" in last_call else last_call["sent"]
    )
    names: dict[str, str] = {}
    for message_number in message_numbers:
        message = talk["messages"][message_number]
        names |= {call["call_id"]: call["name"] for call in message.get("tool_calls", ())}
        yield _message(message, names)


def _message(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    role = message["role"]
    inspect_message: dict[str, Any] = {"role": role, "content": message["content"]}
    if role == "assistant":
        inspect_message["source"] = "generate"
    if calls := message.get("tool_calls"):
        inspect_message["tool_calls"] = [_call(call) for call in calls]
    if (call_id := message.get("call_id")) is not None:
        inspect_message["tool_call_id"] = call_id
        if call_id in names:
            inspect_message["function"] = names[call_id]
    return inspect_message


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    tool_call = {
        "id": call["call_id"],
        "function": call["name"],
        "arguments": dict(call["arguments"]),
        "type": "function",
    }
    if isinstance(call["arguments"].get("_raw"), str):
        tool_call["parse_error"] = "the arguments are not a JSON object"
    return tool_call


def _episode_messages(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield observations and actions as messages, for an agent that is not a language model."""
    yield {"role": "user", "content": episode.query, "source": "input"}
    for turn in episode.turns:
        yield {"role": "assistant", "content": turn.action}
        yield {"role": "user", "content": turn.observation}
    if episode.status in ("submitted", "skipped"):
        yield {"role": "assistant", "content": ending_action(episode)}


def _output(talk: Mapping[str, Any], messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not (answered_calls := _answered_calls(talk)):
        return {"model": "", "choices": [], "completion": ""}
    last_call, message = answered_calls[-1], messages[-1]
    return {
        "model": last_call["model"],
        "choices": [
            {"message": message, "stop_reason": _STOP.get(last_call["finish"], last_call["finish"])}
        ],
        "completion": message["content"],
        "usage": _usage(last_call),
        "time": last_call["seconds"],
    }


def _metadata(episode: Episode) -> dict[str, Any]:
    fields = episode.to_dict()
    # The episode's own metadata are at the top level, where Inspect searches the key of clusters,
    # as in stderr(cluster="image").
    extra_metadata = fields.pop("metadata")
    episode_fields = {key: value for key, value in fields.items() if key not in _PLACED}
    return {**extra_metadata, "intercode": episode_fields}


def _scores(episode: Episode, rate: str) -> dict[str, Any]:
    assert episode.score is not None
    score = episode.score
    scores: dict[str, Any] = {
        rate: {"value": "C" if episode.success else "I"},
        "reward": {
            "value": score.value,
            "metadata": {"parts": dict(score.parts), "detail": dict(score.detail)},
        },
    }
    for entry in scores.values():
        entry["history"] = []
        if episode.answer is not None:
            entry["answer"] = episode.answer
    return scores


def _limit(episode: Episode, limits: Mapping[str, Any]) -> dict[str, Any] | None:
    limit_name = episode.metadata.get("ended_by")
    if limit_name in _LIMITS and limits.get(limit_name) is not None:
        return {"type": _LIMITS[limit_name], "limit": float(limits[limit_name])}
    if episode.status == "truncated":
        return {"type": "custom", "limit": float(len(episode.turns)), "reason": "max_turns"}
    return None
