"""Execution of ``intercode sweep``: runs of all combinations of environment, agent and model.

A table compares the runs.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import product
from pathlib import Path

from intercode.cli import run, run_output as results_module
from intercode.cli.terminal import print_json, safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.agent_setup import actors, agent_provider, unused_model_options
from intercode.evaluate.run_setup import RunPlan, check_tasks, find_secret, plan
from intercode.evaluate.spending import make_budget
from intercode.report.runs import PairedRunComparison, RecordedRun, compare, read_runs
from intercode.report.tables import pair_tables, side_by_side_tables
from intercode.spec import RunSpec, read_arguments

NO_SKILL = "none"
"""The value of ``--skill`` for an agent without a skill."""


def execute(args: argparse.Namespace) -> int:
    """Plan all runs, execute them in sequence, and print the table that compares them.

    Returns:
        The exit code: 0 if every episode of every run has a result, 1 if not, 130 if interrupted.

    Raises:
        UsageError: Two runs would have the same folder, or an agent cannot run its tasks.
    """
    folder = args.out or str(Path("runs") / time.strftime("%Y%m%d-%H%M%S-sweep"))
    specs = list(_combinations(args, folder))
    _refuse_same_folders(specs)
    plans = _plan_runs(specs)
    for run_plan in plans:
        _check_agent(run_plan)
    budget = make_budget(RunSpec.from_layers(read_arguments(args)), specs)
    results: list[tuple[RunPlan, RunResult]] = []
    for run_number, run_plan in enumerate(plans, 1):
        if not args.quiet:
            print(
                f"{run_number}/{len(plans)} {safe(str(run_plan.spec.run_options.out))}",
                file=sys.stderr,
            )
        results.append((run_plan, run.carry_out(run_plan, run.make_watcher(run_plan.spec), budget)))
        if results[-1][1].interrupted:
            break
    _print_report(args, folder, len(plans), results)
    if len(results) == len(plans) and all(result.complete for _, result in results):
        return 0
    return 130 if any(result.interrupted for _, result in results) else 1


def _combinations(args: argparse.Namespace, folder: str) -> Iterator[RunSpec]:
    """Yield the spec of each run: of each combination of environment, agent, model and skill.

    Args:
        args: The parsed command line.
        folder: The folder for the runs' folders.

    Raises:
        UsageError: A language-model agent lacks a model. Or models or skills are given, but no
            agent uses them.
    """
    model_agents = [name for name in args.agents if agent_provider(name).calls_model]
    if model_agents and not args.models:
        raise UsageError(f"agent {model_agents[0]} needs --model PROVIDER/NAME")
    if args.models and not model_agents:
        raise UsageError(f"of {', '.join(args.agents)} none is a language model: omit --model")
    if args.skills and not any(agent_provider(name).reads_skills for name in args.agents):
        raise UsageError(f"of {', '.join(args.agents)} none reads a skill: omit --skill")
    shared_options = read_arguments(args)
    no_model = dict.fromkeys(unused_model_options(RunSpec.from_layers(shared_options)))
    for target in args.what:
        env, _, dataset_name = target.partition("=")
        for agent in args.agents:
            models: Sequence[str | None] = args.models if agent in model_agents else [None]
            for model, skill in product(models, _skills(args, agent)):
                combination_options = {
                    **{"env": env, "data": dataset_name or None, "agent": agent, "model": model},
                    "out": str(Path(folder) / _run_label(target, agent, model, skill)),
                    "skill": [] if skill in (None, NO_SKILL) else [skill],
                }
                yield RunSpec.from_layers(
                    shared_options, {} if agent in model_agents else no_model, combination_options
                )


def _plan_runs(specs: Sequence[RunSpec]) -> list[RunPlan]:
    """Plan each run. All runs have the same secret, from which the flags of puzzles are derived.

    With the same flags, the agents have the same tasks.
    """
    plans: list[RunPlan] = []
    secret = find_secret(*(spec.run_options.out for spec in specs))
    for spec in specs:
        if spec.env.secret is None and secret is not None:
            spec = spec.merge(secret=secret)
        plans.append(plan(spec, run.make_watcher(spec)))
        secret = plans[-1].spec.env.secret if secret is None else secret
    return plans


def _run_label(target: str, agent: str, model: str | None, skill: str | None) -> str:
    """Return the name of a run's folder, composed of environment, data, agent, model and skill.

    Args:
        target: The environment, or ``ENV=DATA``.
        agent: The agent's name.
        model: The model's name; None: the agent is not a language model.
        skill: The folder of a skill, or `NO_SKILL`; None: the agent reads no skills.
    """
    names = [
        *(Path(name).stem for name in target.split("=")),
        Path(agent).name if ".py:" in agent or agent.endswith(".toml") else agent,
        *(model or "").split("/")[1:],
        *_skill_words(skill),
    ]
    return re.sub(r"[^\w.-]+", "-", "-".join(names))


def _skill_words(skill: str | None) -> list[str]:
    if skill is None:
        return []
    return ["no-skill" if skill == NO_SKILL else f"with-{Path(skill).absolute().name}"]


def _skills(args: argparse.Namespace, agent: str) -> Sequence[str | None]:
    """Return the skill for each run of an agent.

    The result is a single None if the agent reads no skills, or if no skill is given.
    """
    return args.skills if args.skills and agent_provider(agent).reads_skills else [None]


def _refuse_same_folders(specs: Sequence[RunSpec]) -> None:
    folders = [str(spec.run_options.out) for spec in specs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                f"two of these runs would have the folder {Path(folder).name}: name each "
                "combination once"
            )


def _check_agent(run_plan: RunPlan) -> None:
    """Refuse an agent that cannot run the tasks of its run. The check precedes the first run."""
    with closing(actors(run_plan.spec)) as run_actors:
        check_tasks(run_plan.tasks, run_actors.factory)


def _skill_pairs(
    specs: Sequence[RunSpec], runs: Sequence[RecordedRun]
) -> list[tuple[RecordedRun, list[tuple[RecordedRun, PairedRunComparison]]]]:
    """Compare runs that differ only in the agent's skill.

    Args:
        specs: The spec of each run.
        runs: The runs, in the same order.

    Returns:
        For each group of such runs, the first run (the baseline), and a list of the other runs with
        their comparisons. A run that shares no task with the baseline is omitted.
    """
    runs_by_spec: dict[str, list[RecordedRun]] = {}
    for spec, agent_run in zip(specs, runs, strict=True):
        runs_by_spec.setdefault(str(spec.merge(skill=None, out=None)), []).append(agent_run)
    return [
        (
            first_run,
            [
                (agent_run, paired_result)
                for agent_run in other_runs
                if (
                    paired_result := compare(
                        first_run.outcomes, agent_run.outcomes, len(other_runs)
                    )
                )
            ],
        )
        for first_run, *other_runs in runs_by_spec.values()
        if other_runs
    ]


def _print_report(
    args: argparse.Namespace,
    folder: str,
    planned_count: int,
    results: Sequence[tuple[RunPlan, RunResult]],
) -> None:
    runs = read_runs([Path(str(run_plan.spec.run_options.out)) for run_plan, _ in results])
    pairs = _skill_pairs([run_plan.spec for run_plan, _ in results], runs)
    if args.json:
        run_entries = [
            {
                "run": str(agent_run.folder),
                "where": agent_run.env_label,
                "agent": agent_run.label,
                "planned": result.planned,
                "finished": len(result.outcomes),
                **results_module.as_json(agent_run.outcomes, agent_run.judge),
            }
            for agent_run, (_, result) in zip(runs, results, strict=True)
        ]
        comparison_entries = [
            {
                "run": str(agent_run.folder),
                "against": str(first_run.folder),
                **asdict(paired_result),
            }
            for first_run, other_runs in pairs
            for agent_run, paired_result in other_runs
        ]
        print_json(
            {
                "sweep": folder,
                "planned": planned_count,
                "runs": run_entries,
                "comparisons": comparison_entries,
            }
        )
        return
    tables = [
        *side_by_side_tables(runs),
        *(table for pair in pairs for table in pair_tables(*pair)),
    ]
    print("\n".join(map(results_module.table_text, tables)), end="")
    bill = results_module.bill([outcome for agent_run in runs for outcome in agent_run.outcomes])
    print(*filter(None, ("", bill, f"runs: {safe(folder)}")), sep="\n")
    for agent_run, (_, result) in zip(runs, results, strict=True):
        if result.stopped:
            print(f"{safe(agent_run.folder.name)} was stopped: {safe(result.stopped)}")
    if len(results) < planned_count or not all(result.complete for _, result in results):
        print(
            f"some episodes have no result: resume with the same command and --out {safe(folder)}"
        )
    else:
        print(f"each episode: intercode report {safe(folder)}/* --html report.html")
