"""Run an agent over tasks, each in a fresh sandbox, and keep every episode.

The run is a folder: run.json says what was run, episodes.jsonl what happened. A run that was
interrupted, or has errors, is gone on with by 'intercode resume FOLDER'. One Ctrl-C waits for the
episodes in flight, a second one stops at once.

agents:
  oracle                 runs gold: checks the tasks
  noop                   submits at once: what doing nothing is worth
  random                 acts at random: what luck is worth
  replay                 does again what --recording holds (a run's folder, or JSON: task → actions)
  human                  you, at the terminal: one task after the other
  path/to/file.py:make   your own: make(task) gives an object with act(observation, history)

agents that are language models, with --model PROVIDER/NAME:
  single-turn            one reply, which is run
  try-again              sees what came of its code, until it submits
  react                  thought, action, observation; react-zero-shot without examples
  plan-solve             a plan, then its steps; plan-solve-refine goes on after them
  tool-calling           the model's own function calls
  try-again-oracle, plan-solve-refine-oracle   with the true reward of every turn, as in 2023

Examples:
  intercode run bash
  intercode run bash --agent oracle --workers 4 --limit 10 --show
  intercode run bash --data tasks.json --agent my_agent.py:make --out runs/mine
  intercode run bash --data tasks.json --json | jq .statistics
  intercode run sql --agent oracle --engine mysql
  intercode run sql --data tasks.json --databases shop.sqlite --agent my_agent.py:make
  intercode run python --data mbpp --exclude broken.json     (see 'datasets validate')
  intercode run bash --agent try-again --model openai/gpt-4o --max-cost 5 --workers 8
  intercode run sql --agent react --model vllm/NAME --base-url http://localhost:8000/v1
  intercode run --preset paper-gpt-3.5-bash-try-again --protocol paper --data nl2bash
  intercode run --locked runs/mine                           (the same again, or not at all)

exit code: 0 if every episode has a result, whatever it is; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.agents.base import AgentFactory, ChecksTasks
from intercode.cli import _agents, _ended, _environment, _locked, _options
from intercode.cli._progress import Watcher
from intercode.cli._text import safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult, evaluate
from intercode.evaluate.drift import DriftError
from intercode.evaluate.exclusion import read_exclusion
from intercode.evaluate.judged import rate_name
from intercode.evaluate.runner import not_gradable, select
from intercode.task import Dataset, Task

if TYPE_CHECKING:
    from intercode.models import Budget


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    _environment.add_name(parser)
    _agents.add_options(parser)
    add_tasks(parser)
    _locked.add_options(parser)


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """The options that do not say who acts."""
    _options.add_selection(parser)
    parser.add_argument(
        "--exclude",
        type=Path,
        metavar="FILE",
        help="tasks that are not run: a list that 'datasets validate' wrote, or lines "
        "of an id and a reason",
    )
    parser.add_argument(
        "--epochs", type=_options.positive, metavar="N", help="attempts at each task (default: 1)"
    )
    _options.add_environment(parser)
    parser.add_argument(
        "--seed",
        type=_options.natural,
        metavar="N",
        help="of the run, and of the bundled puzzles (default: 0)",
    )
    parser.add_argument(
        "--secret",
        metavar="TEXT",
        help="what the bundled puzzles' flags are made from (default: drawn for the run, and "
        "recorded)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/TIME-ENV-AGENT)"
    )
    add_how(parser)


def add_how(parser: argparse.ArgumentParser) -> None:
    """The options that may differ each time that a run is gone on with."""
    how = parser.add_argument_group("how")
    how.add_argument(
        "--workers",
        type=_options.positive,
        default=1,
        metavar="N",
        help="episodes at a time (default: 1)",
    )
    how.add_argument(
        "--max-connections",
        type=_options.positive,
        metavar="N",
        help="calls to the model at a time (default: as many as workers)",
    )
    how.add_argument(
        "--max-sandboxes",
        type=_options.positive,
        metavar="N",
        help="busy sandboxes at a time (default: twice the cores)",
    )
    how.add_argument(
        "--retries",
        type=_options.natural,
        default=2,
        metavar="N",
        help="new attempts when a sandbox fails (default: 2)",
    )
    how.add_argument("--show", action="store_true", help="print each episode as it ends")
    how.add_argument("--quiet", action="store_true", help="no progress, only the result")
    how.add_argument("--json", action="store_true", help="print the result as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Run, and print the summary."""
    return _ended.finish(args, *carry_out(args, plan(args)))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run."""

    lock: _locked.Lock
    env: str
    dataset: Dataset
    tasks: list[Task]
    exclude: Mapping[str, str]


def plan(args: argparse.Namespace) -> Plan:
    """What the options say, and the record that they are to be held to. Starts nothing."""
    _agents.apply_preset(args)
    lock = _locked.Lock(args)
    name = _environment.chosen(args)
    everything = _environment.load_all(args, args.data or name)
    exclude = _excluded(args.exclude, everything) or lock.excluded
    exclude = {**not_gradable(everything), **exclude}
    dataset = _environment.narrowed(args, name, everything)
    return Plan(lock, name, dataset, select(dataset, args.tasks, args.limit, exclude), exclude)


def carry_out(
    args: argparse.Namespace, plan: Plan, budget: Budget | None = None
) -> tuple[Path, RunResult]:
    """Run what was planned; the run's folder, and what came of it.

    Args:
        args: The options, as `plan` has filled them in.
        plan: What it made of them.
        budget: One that several runs share; default: the run's own, by the options.
    """
    budget = budget or _agents.budget_of(args)
    who = _agents.make(args, budget)
    _check(args, who.factory, plan.tasks)
    setting = _environment.prepare(args, plan.env, plan.dataset, plan.tasks, budget)
    facts = {**setting.facts, **who.asks_of_environment}
    context = {**plan.lock.context(args), **setting.context()}
    out = args.out or _default_folder(plan.env, args.agent, args.model)
    watcher = Watcher(
        show=(sys.stderr if args.json else sys.stdout) if args.show else None,
        quiet=args.quiet or args.agent == "human",  # who would type into the living line
        rate=rate_name(facts.get("judge", {}).get("model")),
    )
    try:
        result = evaluate(
            plan.dataset,
            who.agent,
            setting.make,
            workers=args.workers,
            max_connections=args.max_connections,
            max_sandboxes=args.max_sandboxes,
            out=out,
            limit=args.limit,
            tasks=args.tasks,
            exclude=plan.exclude,
            epochs=args.epochs,
            seed=args.seed,
            progress=watcher,
            max_retries=args.retries,
            settings=facts,
            agent_options=who.options,
            context=context,
            locked=plan.lock.manifest,
            accept=plan.lock.accept,
        )
    except DriftError as error:
        _locked.show(args, error)
        raise
    except KeyboardInterrupt:
        print(f"stopped; go on with: {_ended.resume(out)}", file=sys.stderr)
        raise
    finally:
        who.close()
        setting.close()
    return out, result


def _excluded(path: Path | None, dataset: Dataset) -> Mapping[str, str]:
    """The tasks that are not to be run, and why; a list of another dataset's is warned of."""
    if path is None:
        return {}
    exclusion = read_exclusion(path)
    if warning := exclusion.check(dataset):
        print(f"intercode: warning: {safe(warning)}", file=sys.stderr)
    return exclusion.tasks


def _check(args: argparse.Namespace, agent: AgentFactory, tasks: list[Task]) -> None:
    """Refuse, or warn of, what the agent cannot do, before anything starts."""
    if args.agent == "human" and args.workers > 1:
        raise UsageError("agent human does one task at a time: it takes no --workers above 1")
    if isinstance(agent, ChecksTasks):
        agent.check(tasks)
    without = [task.task_id for task in tasks if not task.gold]
    if args.agent == "oracle" and without:
        more = f" and {len(without) - 3} more" if len(without) > 3 else ""
        print(
            f"intercode: warning: no gold for {', '.join(without[:3])}{more}: "
            "there the oracle does nothing but submit",
            file=sys.stderr,
        )


def _default_folder(env: str, agent: str, model: str | None = None) -> Path:
    """A new name below ``runs/``: two runs of the same second get different ones."""
    who = "-".join([Path(agent).name if ".py:" in agent else agent, *(model or "").split("/")[1:]])
    label = re.sub(r"[^\w.-]+", "-", who)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{env}-{label}"
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
