"""``intercode datasets validate``: gold solves every task, and doing nothing solves none."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from intercode.cli import _environment
from intercode.cli._progress import Watcher
from intercode.cli._text import one_line, print_json, safe
from intercode.datasets import load
from intercode.evaluate import Outcome, RunResult, evaluate
from intercode.evaluate.runner import select
from intercode.task import Dataset

_SHOWN = 20


def validate(args: argparse.Namespace) -> int:
    """Run the checks, and print what came of them.

    Returns:
        The exit code: 1 if a task is not as it should be.
    """
    args.env = args.env_option or _guess(load(args.data))
    args.env_option = None
    name, dataset = _environment.load(args)
    tasks = select(dataset, args.tasks, args.limit)
    setting = _environment.prepare(args, name, dataset, tasks)
    results = {}
    for agent in ("oracle", "noop"):
        if not args.quiet:
            print(f"{agent}: {len(tasks)} tasks", file=sys.stderr, flush=True)
        results[agent] = evaluate(
            dataset,
            agent,
            setting.make,
            workers=args.workers,
            limit=args.limit,
            tasks=args.tasks,
            progress=Watcher(quiet=args.quiet),
            settings=setting.facts,
        )
    wrong = _wrong(results)
    complete = all(len(result.outcomes) == result.planned for result in results.values())
    if args.json:
        print_json(_report(name, dataset, results, wrong, complete))
    else:
        _print(len(tasks), wrong, complete)
    return 0 if complete and not wrong else 1


def _guess(dataset: Dataset) -> str:
    return "sql" if any(task.db for task in dataset) else "bash"


def _wrong(results: dict[str, RunResult]) -> list[dict[str, Any]]:
    """The tasks that are not as they should be, each with what is the matter."""
    unscored = {outcome.task_id for outcome in results["oracle"].outcomes if outcome.failed}
    found = [_problem(outcome, "gold", outcome.success) for outcome in results["oracle"].outcomes]
    found += [
        _problem(outcome, "doing nothing", not outcome.success)
        for outcome in results["noop"].outcomes
        if outcome.task_id not in unscored  # then this says the same once more
    ]
    return [problem for problem in found if problem]


def _problem(outcome: Outcome, what: str, right: bool) -> dict[str, Any]:
    if outcome.failed:
        problem = f"{what} cannot be scored: {outcome.error}"
    elif right:
        return {}
    else:
        problem = f"{what} scores {outcome.reward:.2f}"
    return {
        "task_id": outcome.task_id,
        "problem": problem,
        "reward": outcome.reward,
        "error_type": outcome.error_type,
    }


def _report(
    name: str,
    dataset: Dataset,
    results: dict[str, RunResult],
    wrong: list[dict[str, Any]],
    complete: bool,
) -> dict[str, Any]:
    statistics = {agent: result.statistics for agent, result in results.items()}
    return {
        "dataset": dataset.name,
        "digest": dataset.digest,
        "env": name,
        "tasks": results["oracle"].planned,
        "complete": complete,
        "valid": complete and not wrong,
        "oracle_successes": statistics["oracle"].successes,
        "noop_successes": statistics["noop"].successes,
        "noop_mean_reward": statistics["noop"].mean_reward,
        "seconds": sum(result.seconds for result in results.values()),
        "problems": wrong,
    }


def _print(tasks: int, wrong: list[dict[str, Any]], complete: bool) -> None:
    for problem in wrong[:_SHOWN]:
        print(f"{safe(problem['task_id'])}: {one_line(problem['problem'], 200)}")
    if len(wrong) > _SHOWN:
        print(f"… and {len(wrong) - _SHOWN} more (--json has them all)")
    bad = len({problem["task_id"] for problem in wrong})
    state = "" if complete else ", but not all were tried"
    print(f"{tasks - bad} of {tasks} tasks are as they should be{state}")
