"""Execution of ``intercode rescore``, which scores a recorded run again with another reward."""

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
from intercode.cli import run_output
from intercode.cli.recorded_spec import AGENT_OPTIONS, JUDGE_OPTIONS, recorded_spec
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import duration, number, percent, print_json, safe, table
from intercode.errors import UsageError
from intercode.evaluate.manifest_diff import DriftError
from intercode.evaluate.model_rewards import SHARED_MODEL_OPTIONS, ModelReward
from intercode.evaluate.rescore import DEFAULT, RescoredEpisode, RescoreResult, rescore
from intercode.evaluate.run_setup import (
    REQUESTABLE_OPTIONS,
    RunEnvironment,
    plan,
    resolve_setting,
    run_folder,
)
from intercode.evaluate.spending import make_budget
from intercode.evaluate.summary import summarize
from intercode.records import MANIFEST, read_manifest
from intercode.report.runs import (
    PairedRunComparison,
    add_judge,
    as_data,
    compare,
    count_judgements,
    find_judge,
)
from intercode.report.tables import format_value, group_table, judge_tables
from intercode.spec import (
    RunSpec,
    read_arguments,
    recorded_options,
)
from intercode_sandbox.units import format_count

_PROFILE_LIMITS = ("memory", "processes", "disk")
"""The limits of a sandbox that an agent's profile may change."""


def execute(args: argparse.Namespace) -> int:
    """Rescore the run, and print the changes.

    Returns:
        The exit code: 0 if every episode with a recorded score has a new one, 1 if not, 130 if
        interrupted.
    """
    manifest = read_manifest(folder := run_folder(args.run))
    spec = _rescoring_spec(args, folder, manifest)
    output_folder = Path(args.out or f"{folder}-rescored-{_reward_label(spec.reward)}")
    watcher = ProgressPrinter(quiet=spec.run_options.quiet)
    rescore_plan = plan(spec, watcher)
    # The environment keeps the options and limits that the recorded agent requested, because
    # actions may be executed again.
    env = manifest["env"]
    agent_options = {name: env[name] for name in REQUESTABLE_OPTIONS if env.get(name) is not None}
    language_model = manifest["agent"].get("language_model") or {}
    profile_limits = language_model.get("profile", {}).get("limits", {})
    # Other limits of the profile, such as capabilities, are ignored: an untrusted record must not
    # grant privileges.
    agent_options["limits"] = {
        name: profile_limits[name]
        for name in _PROFILE_LIMITS
        if profile_limits.get(name) is not None
    }

    @cache
    def get_setting() -> RunEnvironment:
        budget = (
            make_budget(spec.merge(out=str(output_folder)))
            if spec.reward == ModelReward.KIND
            else None
        )
        return resolve_setting(rescore_plan, watcher, required_options=agent_options, budget=budget)

    try:
        result = rescore(
            folder,
            rescore_plan.dataset,
            get_setting().reward if spec.reward == ModelReward.KIND else spec.reward,
            lambda: get_setting().make(),
            out=output_folder,
            workers=spec.run_options.workers,
            settings=lambda: get_setting().facts,
            progress=watcher,
            max_retries=spec.run_options.retries,
            context=lambda: get_setting().context(),
            accept=spec.run_options.accept,
            trust=args.trust,
        )
    except DriftError as error:
        if spec.run_options.json:
            differences = [asdict(run_difference) for run_difference in error.differences]
            print_json({"rescored": str(folder), "differences": differences})
        raise
    except KeyboardInterrupt:
        remainder_text = (
            f"; what was finished is in {output_folder}"
            if (output_folder / MANIFEST).is_file()
            else ""
        )
        print(f"stopped{remainder_text}", file=sys.stderr)
        raise
    _print_result(spec.run_options.json, folder, output_folder, result)
    has_failures = result.lost or len(result.outcomes) < result.planned
    return 130 if result.cut_short else int(bool(has_failures))


def _rescoring_spec(args: argparse.Namespace, folder: Path, manifest: Mapping[str, Any]) -> RunSpec:
    """Return the spec of the recorded run, in which options of the command override recorded ones.

    Raises:
        UsageError: The record has no options, because Python code made the run. Or an option of a
            judge is given without ``--reward judge``.
        TrustError: The record names code, paths or addresses that are neither repeated nor trusted.
    """
    if "options" not in (manifest.get("sessions") or [{}])[-1]:
        raise UsageError(
            f"{folder} was not written by 'intercode run': its record does not describe the "
            "environment. In Python, use intercode.evaluate.rescore"
        )
    options = {**read_arguments(args), "locked": folder}
    relevant_manifest = _relevant_manifest(manifest, options.get("reward"))
    spec = recorded_spec(folder, relevant_manifest, options, trust=args.trust)
    # Only the judge calls a model now, so the command's budget replaces the recorded budget, which
    # was for the agent.
    spec = spec.merge(max_cost=args.max_cost, max_tokens=args.max_tokens)
    if spec.reward != ModelReward.KIND:
        for name in (*JUDGE_OPTIONS, *SHARED_MODEL_OPTIONS):
            if name in options:
                raise UsageError(f"--{name.replace('_', '-')} is for --reward judge")
        # The recorded run may have had a judge; its options are removed.
        spec = spec.merge(**dict.fromkeys((*JUDGE_OPTIONS, *SHARED_MODEL_OPTIONS)))
    return spec.merge(reward=None) if spec.reward == DEFAULT else spec


def _relevant_manifest(manifest: Mapping[str, Any], reward: str | None) -> dict[str, Any]:
    """Return the record without the options that rescoring ignores.

    Rescoring does not run the agent, so its options are removed. The option ``agent`` itself stays
    if the agent has skills and is a profile. Skills are files in the sandbox, and the profile sets
    their path.

    Args:
        manifest: The run's ``run.json``.
        reward: The new reward; None: the recorded reward.
    """
    *earlier_sessions, last_session = manifest["sessions"]
    options = recorded_options(manifest)
    unused_options = [*AGENT_OPTIONS]
    if not (options.get("skill") and is_profile(options.get("agent"))):
        unused_options.append("agent")
    if (reward or options.get("reward")) != ModelReward.KIND:
        unused_options += [*JUDGE_OPTIONS, "prices"]
    retained_options = {
        name: value for name, value in options.items() if name not in unused_options
    }
    return {
        **manifest,
        "sessions": [*earlier_sessions, {**last_session, "options": retained_options}],
    }


def _reward_label(reward: str | None) -> str:
    """Return a reward's name for use in a folder's name, with other characters replaced by "-"."""
    return re.sub(r"[^\w.-]+", "-", (reward or DEFAULT).rpartition(":")[2])


# The result


_MAX_LISTED_CHANGES = 20
"""The maximum number of changed episodes in the printed table; ``--json`` lists all."""
_WAY_DESCRIPTIONS = {
    "record": "from the record alone",
    "again": "by executing the recorded actions again",
    "not reproducible": "not reproducible",
    "failed": "failed",
    "no result": "without a result, as recorded",
}


def _print_result(as_json: bool, run: Path, output_folder: Path, result: RescoreResult) -> None:
    """Print the result of a rescoring.

    The text contains a summary, a comparison of success rates, the changed episodes, errors, the
    judge's cost, and a command to continue with.
    """
    if as_json:
        print_json(_as_json(run, output_folder, result))
        return
    recorded_manifest, rescored_manifest = read_manifest(run), read_manifest(output_folder)
    rewards = [
        str(manifest["env"].get("reward", "default"))
        for manifest in (recorded_manifest, rescored_manifest)
    ]
    print(run_output.facts(rescored_manifest), end="\n\n")
    judges = (
        find_judge(recorded_manifest, result.before),
        find_judge(rescored_manifest, result.outcomes),
    )
    names = [add_judge(*pair) for pair in zip(("recorded", "rescored"), judges, strict=True)]
    rows = dict(zip(names, (summarize(result.before), result.statistics), strict=True))
    judge = judge_tables({names[1]: count_judgements(judges[1], result.outcomes)})
    print("\n".join(map(run_output.table_text, (group_table("", rows), *judge))))
    print(f"reward: recorded {safe(rewards[0])}, now {safe(rewards[1])}")
    print(
        _scoring_text(result), _comparison_text(compare(result.before, result.outcomes)), sep="\n"
    )
    for text in (_change_table(result.changes), run_output.errors(result.outcomes)):
        if text:
            print(f"\n{text}", end="")
    if recorded_manifest["env"].get("reward_every_turn"):
        print(
            "\nnote: the agent saw the recorded reward of every turn; with this reward it might "
            "have acted differently"
        )
    # The outcomes include the agent's recorded calls, which cost nothing now, so they are removed.
    if bill := run_output.bill(
        [replace(outcome, calls=0, tokens_in=None) for outcome in result.outcomes]
    ):
        print(f"\n{bill}", end="")
    print(f"\n{format_count(result.ran, 'episode')} in {duration(result.seconds)}")
    print(f"run: {output_folder}")
    if missing_count := result.planned - len(result.outcomes):
        print(
            f"interrupted: {format_count(missing_count, 'episode')} missing; the same command "
            "resumes it"
        )
    else:
        print(
            f"compare: intercode report {shlex.quote(str(run))} {shlex.quote(str(output_folder))}"
        )


def _scoring_text(result: RescoreResult) -> str:
    counts_by_way = result.ways
    count_texts = [
        f"{counts_by_way[way]} {text}"
        for way, text in _WAY_DESCRIPTIONS.items()
        if way in counts_by_way
    ]
    return "scored: " + ", ".join(count_texts) if count_texts else "scored: none"


def _comparison_text(paired_result: PairedRunComparison | None) -> str:
    """Return a line about the change of the success rate.

    Only tasks with both a recorded and a new reward count.
    """
    if paired_result is None:
        return "no task has both a recorded reward and a new one"
    difference = paired_result.difference
    text = (
        f"on {format_count(paired_result.tasks, 'task')}: success "
        f"{percent(paired_result.first)} → {percent(paired_result.second)}, "
        f"{format_value(difference.value, 'points')} points"
    )
    if math.isfinite(difference.low):
        text += f" [{100 * difference.low:.1f}, {100 * difference.high:.1f}]"
    if paired_result.test is not None:
        losses, gains = paired_result.test.only_first, paired_result.test.only_second
        text += f"; {losses} solved before only, {gains} now only, p {paired_result.test.p:.3f}"
    return text


def _change_table(changes: list[RescoredEpisode]) -> str:
    """Return a table of the episodes whose reward has changed."""
    if not changes:
        return "no reward has changed\n"
    rows = [
        [
            safe(change.after.task_id),
            str(change.after.epoch),
            number(change.before.reward),
            number(change.after.reward),
            _verdict_change(change),
        ]
        for change in changes[:_MAX_LISTED_CHANGES]
    ]
    text = table(["changed", "epoch", "recorded", "rescored", ""], rows) + "\n"
    extra_count = len(changes) - _MAX_LISTED_CHANGES
    return text + (f"… and {extra_count} more (--json has them all)\n" if extra_count > 0 else "")


def _verdict_change(change: RescoredEpisode) -> str:
    """Return "solved now" or "no longer solved"; empty if the reward's change affects neither."""
    if change.before.success == change.after.success:
        return ""
    return "solved now" if change.after.success else "no longer solved"


def _as_json(run: Path, output_folder: Path, result: RescoreResult) -> dict[str, Any]:
    paired_result = compare(result.before, result.outcomes)
    manifest = read_manifest(output_folder)
    return {
        "run": str(output_folder),
        "rescored": str(run),
        "reward": manifest["env"]["reward"],
        "ways": result.ways,
        "planned": result.planned,
        "finished": len(result.outcomes),
        "ran": result.ran,
        "seconds": result.seconds,
        "interrupted": result.cut_short,
        "before": as_data(summarize(result.before), find_judge(read_manifest(run), result.before)),
        "paired": None if paired_result is None else asdict(paired_result),
        "changes": [
            {
                "task_id": change.after.task_id,
                "epoch": change.after.epoch,
                "before": change.before.reward,
                "after": change.after.reward,
            }
            for change in result.changes
        ],
        **run_output.as_json(result.outcomes, find_judge(manifest, result.outcomes)),
    }
