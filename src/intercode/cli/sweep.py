r"""Every agent with every model in every environment: a run of each, and one table of all.

Each is a run as 'intercode run' makes it, in a folder of its own below --out: OUT/ENV-AGENT-MODEL.
Agents that are no language models run once in each environment. What --max-cost and --max-tokens
allow is for all runs together. The same command with the same --out goes on with what is missing.

Examples:
  intercode sweep bash sql python --agent oracle noop
  intercode sweep bash sql --agent try-again react --model openai/gpt-4o openai/gpt-4o-mini \
      --max-cost 20 --workers 8 --out runs/sweep
  intercode sweep sql sql=spider ./my-benchmark --agent react --model vllm/NAME \
      --base-url http://localhost:8000/v1
  intercode report runs/sweep/* --html report.html

exit code: 0 if every episode of every run has a result; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from intercode.agents.base import ChecksTasks
from intercode.cli import _agents, _environment, _summary, run
from intercode.cli._text import print_json, safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.report_runs import read_runs
from intercode.evaluate.report_tables import of_runs


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options: those of ``run``, some of which may be given several values."""
    parser.add_argument(
        "what",
        nargs="+",
        metavar="ENV[=DATA]",
        help="an environment, on its bundled tasks or on a file or dataset; or a folder that "
        "'intercode new' made",
    )
    who = parser.add_argument_group("who")
    who.add_argument(
        "--agent", nargs="+", required=True, metavar="NAME", dest="agents", help="as for 'run'"
    )
    who.add_argument(
        "--model", nargs="+", default=[], metavar="NAME", dest="models", help="PROVIDER/NAME"
    )
    _agents.add_model(parser)
    run.add_tasks(parser)
    left_out = {"env_option": None, "data": None, "preset": None, "recording": None}
    parser.set_defaults(**left_out, locked=None, accept=None)


def execute(args: argparse.Namespace) -> int:
    """Run them one after the other, and print the table."""
    out = args.out or Path("runs") / time.strftime("%Y%m%d-%H%M%S-sweep")
    parts = list(_combinations(args, out))
    _refuse_same_folders(parts)
    plans = []
    secret = _environment.secret_of(*(part.out for part in parts))
    for part in parts:  # all agents are to find the same flags
        part.secret = secret if part.secret is None else part.secret
        plans.append(run.plan(part))
        secret = part.secret if secret is None else secret
    for part, plan in zip(parts, plans, strict=True):
        _check(argparse.Namespace(**vars(part)), plan)
    budget = _agents.budget_of(args, parts)
    results: list[tuple[Path, RunResult]] = []
    for number, (part, plan) in enumerate(zip(parts, plans, strict=True), 1):
        if not args.quiet:
            print(f"{number}/{len(parts)} {safe(str(part.out))}", file=sys.stderr)
        results.append(run.carry_out(part, plan, budget))
        if results[-1][1].interrupted:
            break
    _print(args, out, len(parts), results)
    if len(results) == len(parts) and all(result.complete for _, result in results):
        return 0
    return 130 if any(result.interrupted for _, result in results) else 1


def _combinations(args: argparse.Namespace, out: Path) -> Iterator[argparse.Namespace]:
    """The options of each run.

    Raises:
        UsageError: Language models are asked for and no model is, or the other way round.
    """
    speaking = [name for name in args.agents if _agents.strategy_of(name) is not None]
    if speaking and not args.models:
        raise UsageError(f"agent {speaking[0]} needs --model PROVIDER/NAME")
    if args.models and not speaking:
        raise UsageError(f"of {', '.join(args.agents)} none is a language model: leave --model")
    shared = {
        name: value
        for name, value in vars(args).items()
        if name not in ("what", "agents", "models")
    }
    for what in args.what:
        env, _, data = what.partition("=")
        for agent in args.agents:
            models: Sequence[str | None] = args.models if agent in speaking else [None]
            for model in models:
                no_model = dict.fromkeys(_agents.without_model(args))
                given = {**shared, **({} if agent in speaking else no_model)}
                given |= {"env": env, "data": data or None, "agent": agent, "model": model}
                yield argparse.Namespace(**{**given, "out": out / _label(what, agent, model)})


def _label(what: str, agent: str, model: str | None) -> str:
    """The name of a run's folder."""
    names = [
        *(Path(name).stem for name in what.split("=")),
        Path(agent).name if ".py:" in agent else agent,
        *(model or "").split("/")[1:],
    ]
    return re.sub(r"[^\w.-]+", "-", "-".join(names))


def _refuse_same_folders(parts: Sequence[argparse.Namespace]) -> None:
    folders = [part.out for part in parts]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"two of these runs would be {folder.name}: name each only once")


def _check(args: argparse.Namespace, plan: run.Plan) -> None:
    """Refuse an agent that could not run before anything does."""
    who = _agents.make(args)
    try:
        if isinstance(who.factory, ChecksTasks):
            who.factory.check(plan.tasks)
    finally:
        who.close()


def _print(
    args: argparse.Namespace, out: Path, planned: int, results: Sequence[tuple[Path, RunResult]]
) -> None:
    runs = read_runs([folder for folder, _ in results])
    if args.json:
        found = [
            {
                "run": str(one.folder),
                "where": one.where,
                "agent": one.label,
                "planned": result.planned,
                "finished": len(result.outcomes),
                **_summary.as_json(one.outcomes, one.judge),
            }
            for one, (_, result) in zip(runs, results, strict=True)
        ]
        print_json({"sweep": str(out), "planned": planned, "runs": found})
        return
    print("\n".join(map(_summary.written, of_runs(runs))), end="")
    print(f"\nruns: {safe(str(out))}")
    for one, (_, result) in zip(runs, results, strict=True):
        if result.stopped:
            print(f"{safe(one.folder.name)} was stopped: {safe(result.stopped)}")
    if len(results) < planned or not all(result.complete for _, result in results):
        print(f"not everything has a result: go on with the same and --out {safe(str(out))}")
    else:
        print(f"each episode: intercode report {safe(str(out))}/* --html report.html")
