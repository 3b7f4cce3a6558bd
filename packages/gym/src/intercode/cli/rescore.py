"""Score a recorded run again, and print what has changed."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from intercode.agents.registry import is_profile
from intercode.cli import results
from intercode.cli.recorded import AGENT_OPTIONS, JUDGE_OPTIONS, recorded_spec
from intercode.cli.results import Watcher
from intercode.cli.terminal import duration, number, percent, print_json, safe, table
from intercode.errors import UsageError
from intercode.evaluate.budget_spent import make_budget
from intercode.evaluate.drift import DriftError
from intercode.evaluate.prepare import REQUESTABLE_OPTIONS, Setting, plan, run_folder, setting
from intercode.evaluate.rescore import DEFAULT, RescoreResult, Result, rescore
from intercode.evaluate.rewards import SHARED_MODEL_OPTIONS, ModelReward
from intercode.evaluate.summary import summarize
from intercode.records import MANIFEST, read_manifest
from intercode.report.runs import (
    PairedComparison,
    add_judge,
    as_data,
    compare,
    count_judgements,
    find_judge,
)
from intercode.report.tables import format_value, group_table, judge_tables
from intercode.spec import (
    RunSpec,
    given,
    recorded_options,
)
from intercode_sandbox.units import format_count

_NEEDS = ("memory", "processes", "disk")
"""The limits that an agent's profile may ask for."""


def execute(args: argparse.Namespace) -> int:
    """Score, and print what has changed."""
    manifest = read_manifest(folder := run_folder(args.run))
    spec = _spec(args, folder, manifest)
    out = Path(args.out or f"{folder}-rescored-{_label(spec.reward)}")
    watcher = Watcher(quiet=spec.how.quiet)
    asked = plan(spec, watcher)
    # The agent has asked for some options, which are taken over.
    env = manifest["env"]
    asks = {name: env[name] for name in REQUESTABLE_OPTIONS if env.get(name) is not None}
    actor = manifest["agent"].get("language_model") or {}
    needs = actor.get("profile", {}).get("limits", {})
    # No privilege comes from a record.
    asks["limits"] = {name: needs[name] for name in _NEEDS if needs.get(name) is not None}

    @cache
    def where() -> Setting:
        budget = make_budget(spec.merge(out=str(out))) if spec.reward == ModelReward.KIND else None
        return setting(asked, watcher, required_options=asks, budget=budget)

    try:
        result = rescore(
            folder,
            asked.dataset,
            where().reward if spec.reward == ModelReward.KIND else spec.reward,
            lambda: where().make(),
            out=out,
            workers=spec.how.workers,
            settings=lambda: where().facts,
            progress=watcher,
            max_retries=spec.how.retries,
            context=lambda: where().context(),
            accept=spec.how.accept,
            trust=args.trust,
        )
    except DriftError as error:
        if spec.how.json:
            found = [asdict(difference) for difference in error.differences]
            print_json({"rescored": str(folder), "differences": found})
        raise
    except KeyboardInterrupt:
        rest = f"; what was finished is in {out}" if (out / MANIFEST).is_file() else ""
        print(f"stopped{rest}", file=sys.stderr)
        raise
    _show(spec.how.json, folder, out, result)
    failed = result.lost or len(result.outcomes) < result.planned
    return 130 if result.cut_short else int(bool(failed))


def _spec(args: argparse.Namespace, folder: Path, manifest: Mapping[str, Any]) -> RunSpec:
    """Make the recorded run's spec, with the given options over it.

    Raises:
        UsageError: The record has none.
    """
    if "options" not in (manifest.get("sessions") or [{}])[-1]:
        raise UsageError(
            f"{folder} was not made by 'intercode run': its record does not say how to make its "
            "environment. From Python: intercode.evaluate.rescore"
        )
    options = {**given(args), "locked": folder}
    used = _used(manifest, options.get("reward"))
    spec = recorded_spec(folder, used, options, trust=args.trust)
    # What a judge may take is for this one, not for the recorded agent.
    spec = spec.merge(max_cost=args.max_cost, max_tokens=args.max_tokens)
    if spec.reward != ModelReward.KIND:
        for name in (*JUDGE_OPTIONS, *SHARED_MODEL_OPTIONS):
            if name in options:
                raise UsageError(f"--{name.replace('_', '-')} is for --reward judge")
        spec = spec.merge(
            **dict.fromkeys((*JUDGE_OPTIONS, *SHARED_MODEL_OPTIONS))
        )  # the recorded run's
    return spec.merge(reward=None) if spec.reward == DEFAULT else spec


def _used(manifest: Mapping[str, Any], reward: str | None) -> dict[str, Any]:
    """Return the record without the options that rescoring makes no use of.

    The agent does not act; but its skills, and the place where its profile puts them, are files of
    the sandbox.

    Args:
        manifest: The run's ``run.json``.
        reward: The new reward; None: the recorded one.
    """
    *others, last = manifest["sessions"]
    options = recorded_options(manifest)
    unused = [*AGENT_OPTIONS]
    if not (options.get("skill") and is_profile(options.get("agent"))):
        unused.append("agent")
    if (reward or options.get("reward")) != ModelReward.KIND:
        unused += [*JUDGE_OPTIONS, "prices"]
    kept = {name: value for name, value in options.items() if name not in unused}
    return {**manifest, "sessions": [*others, {**last, "options": kept}]}


def _label(reward: str | None) -> str:
    """Return a reward's name, as part of a folder's."""
    return re.sub(r"[^\w.-]+", "-", (reward or DEFAULT).rpartition(":")[2])


# The result


_SHOWN = 20
"""Changes that are listed; --json has all."""
_WAYS = {
    "record": "from the record alone",
    "again": "by doing the recorded actions again",
    "not reproducible": "not reproducible",
    "failed": "failed",
    "no result": "without a result, as recorded",
}


def _show(as_json: bool, run: Path, out: Path, result: RescoreResult) -> None:
    """Print it."""
    if as_json:
        print_json(_as_json(run, out, result))
        return
    before, now = read_manifest(run), read_manifest(out)
    rewards = [str(manifest["env"].get("reward", "default")) for manifest in (before, now)]
    print(results.facts(now), end="\n\n")
    judges = find_judge(before, result.before), find_judge(now, result.outcomes)
    names = [add_judge(*pair) for pair in zip(("recorded", "rescored"), judges, strict=True)]
    rows = dict(zip(names, (summarize(result.before), result.statistics), strict=True))
    judge = judge_tables({names[1]: count_judgements(judges[1], result.outcomes)})
    print("\n".join(map(results.written, (group_table("", rows), *judge))))
    print(f"reward: recorded {safe(rewards[0])}, now {safe(rewards[1])}")
    print(_ways(result), _compared(compare(result.before, result.outcomes)), sep="\n")
    for text in (_changes(result.changes), results.errors(result.outcomes)):
        if text:
            print(f"\n{text}", end="")
    if before["env"].get("reward_every_turn"):
        print(
            "\nnote: the agent was told the recorded reward of every turn; with this one it might "
            "have acted otherwise"
        )
    if bill := results.bill([replace(one, calls=0, tokens_in=None) for one in result.outcomes]):
        print(f"\n{bill}", end="")  # the judge's: the agent was not asked again
    print(f"\n{format_count(result.ran, 'episode')} in {duration(result.seconds)}")
    print(f"run: {out}")
    if missing := result.planned - len(result.outcomes):
        print(
            f"interrupted: {format_count(missing, 'episode')} missing; the same command resumes it"
        )
    else:
        print(f"compare: intercode report {shlex.quote(str(run))} {shlex.quote(str(out))}")


def _ways(result: RescoreResult) -> str:
    ways = result.ways
    found = [f"{ways[way]} {text}" for way, text in _WAYS.items() if way in ways]
    return "scored: " + ", ".join(found) if found else "scored: none"


def _compared(paired: PairedComparison | None) -> str:
    """Say how the success rate has changed, on the tasks that have both rewards."""
    if paired is None:
        return "no task has both a recorded reward and a new one"
    seen = paired.difference
    text = (
        f"on {format_count(paired.tasks, 'task')}: success "
        f"{percent(paired.first)} → {percent(paired.second)}, {format_value(seen.value, 'points')} points"
    )
    if math.isfinite(seen.low):
        text += f" [{100 * seen.low:.1f}, {100 * seen.high:.1f}]"
    if paired.test is not None:
        lost, gained = paired.test.only_first, paired.test.only_second
        text += f"; {lost} solved before only, {gained} now only, p {paired.test.p:.3f}"
    return text


def _changes(changes: list[Result]) -> str:
    """List the episodes that have another reward, and what that does to their success."""
    if not changes:
        return "no reward has changed\n"
    rows = [
        [
            safe(change.after.task_id),
            str(change.after.epoch),
            number(change.before.reward),
            number(change.after.reward),
            _verdict(change),
        ]
        for change in changes[:_SHOWN]
    ]
    text = table(["changed", "epoch", "recorded", "rescored", ""], rows) + "\n"
    more = len(changes) - _SHOWN
    return text + (f"… and {more} more (--json has them all)\n" if more > 0 else "")


def _verdict(change: Result) -> str:
    """Say what a change does to success."""
    if change.before.success == change.after.success:
        return ""
    return "solved now" if change.after.success else "no longer solved"


def _as_json(run: Path, out: Path, result: RescoreResult) -> dict[str, Any]:
    paired = compare(result.before, result.outcomes)
    manifest = read_manifest(out)
    return {
        "run": str(out),
        "rescored": str(run),
        "reward": manifest["env"]["reward"],
        "ways": result.ways,
        "planned": result.planned,
        "finished": len(result.outcomes),
        "ran": result.ran,
        "seconds": result.seconds,
        "interrupted": result.cut_short,
        "before": as_data(summarize(result.before), find_judge(read_manifest(run), result.before)),
        "paired": None if paired is None else asdict(paired),
        "changes": [
            {
                "task_id": change.after.task_id,
                "epoch": change.after.epoch,
                "before": change.before.reward,
                "after": change.after.reward,
            }
            for change in result.changes
        ],
        **results.as_json(result.outcomes, find_judge(manifest, result.outcomes)),
    }
