"""Run agents with models in environments, one after the other, and print the table."""

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

from intercode.cli import results as shown, run
from intercode.cli.terminal import print_json, safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.actors import actors, agent_provider, unused_model_options
from intercode.evaluate.budget_spent import make_budget
from intercode.evaluate.prepare import Plan, check_tasks, find_secret, plan
from intercode.report.runs import PairedComparison, Run, compare, read_runs
from intercode.report.tables import pair_tables, side_by_side_tables
from intercode.spec import RunSpec, given

NO_SKILL = "none"
"""The name of an agent's skill where it has none."""


def execute(args: argparse.Namespace) -> int:
    """Run them one after the other, and print the table."""
    out = args.out or str(Path("runs") / time.strftime("%Y%m%d-%H%M%S-sweep"))
    specs = list(_combinations(args, out))
    _refuse_same_folders(specs)
    plans = _planned(specs)
    for one in plans:
        _check(one)
    budget = make_budget(RunSpec.of(given(args)), specs)
    results: list[tuple[Plan, RunResult]] = []
    for number, one in enumerate(plans, 1):
        if not args.quiet:
            print(f"{number}/{len(plans)} {safe(str(one.spec.how.out))}", file=sys.stderr)
        results.append((one, run.carry_out(one, run.watcher_of(one.spec), budget)))
        if results[-1][1].interrupted:
            break
    _print(args, out, len(plans), results)
    if len(results) == len(plans) and all(result.complete for _, result in results):
        return 0
    return 130 if any(result.interrupted for _, result in results) else 1


def _combinations(args: argparse.Namespace, out: str) -> Iterator[RunSpec]:
    """Yield the spec of each run.

    Raises:
        UsageError: Language models are asked for and no model is, or the other way round; or there
            are skills and no agent that reads them.
    """
    speaking = [name for name in args.agents if agent_provider(name).calls_model]
    if speaking and not args.models:
        raise UsageError(f"agent {speaking[0]} needs --model PROVIDER/NAME")
    if args.models and not speaking:
        raise UsageError(f"of {', '.join(args.agents)} none is a language model: leave --model")
    if args.skills and not any(agent_provider(name).reads_skills for name in args.agents):
        raise UsageError(f"of {', '.join(args.agents)} none reads a skill: leave --skill")
    shared = given(args)
    no_model = dict.fromkeys(unused_model_options(RunSpec.of(shared)))
    for what in args.what:
        env, _, data = what.partition("=")
        for agent in args.agents:
            models: Sequence[str | None] = args.models if agent in speaking else [None]
            for model, skill in product(models, _skills(args, agent)):
                own = {
                    **{"env": env, "data": data or None, "agent": agent, "model": model},
                    "out": str(Path(out) / _label(what, agent, model, skill)),
                    "skill": [] if skill in (None, NO_SKILL) else [skill],
                }
                yield RunSpec.of(shared, {} if agent in speaking else no_model, own)


def _planned(specs: Sequence[RunSpec]) -> list[Plan]:
    """Plan each run: all agents are to find the same flags."""
    plans: list[Plan] = []
    secret = find_secret(*(spec.how.out for spec in specs))
    for spec in specs:
        if spec.env.secret is None and secret is not None:
            spec = spec.merge(secret=secret)
        plans.append(plan(spec, run.watcher_of(spec)))
        secret = plans[-1].spec.env.secret if secret is None else secret
    return plans


def _label(what: str, agent: str, model: str | None, skill: str | None) -> str:
    """Return the name of a run's folder."""
    names = [
        *(Path(name).stem for name in what.split("=")),
        Path(agent).name if ".py:" in agent or agent.endswith(".toml") else agent,
        *(model or "").split("/")[1:],
        *_with(skill),
    ]
    return re.sub(r"[^\w.-]+", "-", "-".join(names))


def _with(skill: str | None) -> list[str]:
    if skill is None:
        return []
    return ["no-skill" if skill == NO_SKILL else f"with-{Path(skill).absolute().name}"]


def _skills(args: argparse.Namespace, agent: str) -> Sequence[str | None]:
    """Return the skills that an agent is run with, one at a time; None: it takes none."""
    return args.skills if args.skills and agent_provider(agent).reads_skills else [None]


def _refuse_same_folders(specs: Sequence[RunSpec]) -> None:
    folders = [str(spec.how.out) for spec in specs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"two of these runs would be {Path(folder).name}: name each only once")


def _check(asked: Plan) -> None:
    """Refuse an agent that could not run before anything does."""
    with closing(actors(asked.spec)) as who:
        check_tasks(asked.tasks, who.factory)


def _pairs(
    specs: Sequence[RunSpec], runs: Sequence[Run]
) -> list[tuple[Run, list[tuple[Run, PairedComparison]]]]:
    """Pair the first run of an agent with its others, which differ from it in the skill alone."""
    alike: dict[str, list[Run]] = {}
    for spec, one in zip(specs, runs, strict=True):
        alike.setdefault(str(spec.merge(skill=None, out=None)), []).append(one)
    return [
        (
            first,
            [
                (one, found)
                for one in others
                if (found := compare(first.outcomes, one.outcomes, len(others)))
            ],
        )
        for first, *others in alike.values()
        if others
    ]


def _print(
    args: argparse.Namespace, out: str, planned: int, results: Sequence[tuple[Plan, RunResult]]
) -> None:
    runs = read_runs([Path(str(asked.spec.how.out)) for asked, _ in results])
    pairs = _pairs([asked.spec for asked, _ in results], runs)
    if args.json:
        found = [
            {
                "run": str(one.folder),
                "where": one.env_label,
                "agent": one.label,
                "planned": result.planned,
                "finished": len(result.outcomes),
                **shown.as_json(one.outcomes, one.judge),
            }
            for one, (_, result) in zip(runs, results, strict=True)
        ]
        compared = [
            {"run": str(one.folder), "against": str(first.folder), **asdict(paired)}
            for first, others in pairs
            for one, paired in others
        ]
        print_json({"sweep": out, "planned": planned, "runs": found, "comparisons": compared})
        return
    tables = [
        *side_by_side_tables(runs),
        *(table for pair in pairs for table in pair_tables(*pair)),
    ]
    print("\n".join(map(shown.written, tables)), end="")
    bill = shown.bill([outcome for one in runs for outcome in one.outcomes])
    print(*filter(None, ("", bill, f"runs: {safe(out)}")), sep="\n")
    for one, (_, result) in zip(runs, results, strict=True):
        if result.stopped:
            print(f"{safe(one.folder.name)} was stopped: {safe(result.stopped)}")
    if len(results) < planned or not all(result.complete for _, result in results):
        print(f"not everything has a result: resume with the same command and --out {safe(out)}")
    else:
        print(f"each episode: intercode report {safe(out)}/* --html report.html")
