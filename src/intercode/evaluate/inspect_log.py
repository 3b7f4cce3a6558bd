"""A run as a log of Inspect AI (UK AI Security Institute): its `EvalLog` as JSON, version 2.

Written from `inspect_ai` 0.3.285, without needing it. A metric has one of Inspect's names only
where its formula is Inspect's; all of our own statistics are in the results' metadata, and the
whole of ``run.json`` in the log's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from intercode.episode import Episode
from intercode.errors import RecordError
from intercode.evaluate.coverage import Coverage, covered
from intercode.evaluate.export import cleaned
from intercode.evaluate.inspect_sample import added, digest, sample, usage
from intercode.evaluate.judged import judge_of, rate_name
from intercode.evaluate.report import Statistics, by_attempts, summarize
from intercode.evaluate.statistics import clustered_error
from intercode.records import Outcome

VERSION = 2
"""Of the log's format."""
NO_MODEL = "none/none"
"""What Inspect writes where there is no model."""


def to_inspect(
    episodes: Iterable[Episode], manifest: Mapping[str, Any], again: Iterable[Episode]
) -> Iterator[str]:
    """The log's text, in pieces, so that memory stays flat.

    Args:
        episodes: Those of the run.
        manifest: Its ``run.json``.
        again: The same episodes once more: the results stand before the samples.

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
    """A name by which Inspect finds the log in a folder: time, task, id.

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
    """What came of each, and what each model took."""
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
    """As theirs: an episode that ended in an error is in the log, and ends no run."""
    if not session.get("finished"):
        return "started"
    return "cancelled" if coverage.missing else "success"


def _spec(
    manifest: Mapping[str, Any], eval_id: str, coverage: Coverage, outcomes: list[Outcome]
) -> dict[str, Any]:
    dataset, session = manifest["dataset"], manifest["sessions"][-1]
    env = manifest["env"]
    settings, versions = session.get("settings", {}), session.get("versions", {})
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
        "packages": {
            ("intercode-gym" if name == "intercode" else name): version
            for name, version in versions.items()
            if name not in ("python", "code", "commit")
        },
    }


def _plan(manifest: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(manifest["agent"].get("options") or {})
    step = {"solver": manifest["agent"]["name"], "params": options, "params_passed": options}
    return {"name": "plan", "steps": [step], "config": _sampling(manifest)}


def _talks(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """What identifies the language model; empty if the agent is none."""
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
    """Inspect's mean and standard error: of the means of each task's attempts.

    That is our mean, with its error clustered by task, where all tasks have as many attempts.
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
    """Those that are known."""
    return {name: value for name, value in values.items() if value is not None}


def _utc(text: str) -> str:
    """A time as Inspect writes it."""
    return text[:-1] + "+00:00" if text.endswith("Z") else text
