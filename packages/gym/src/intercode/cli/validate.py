"""Execution of ``intercode validate``, which checks tasks, and lists tasks to exclude from runs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode import project
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import duration, number, one_line, print_json, safe, size
from intercode.datasets import loader_name
from intercode.envs.traits import GuessedSolution, detect_environment
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.evaluate.run_setup import RunPlan, environment, load, narrow_dataset, resolve_setting
from intercode.evaluate.task_checks import GARBAGE, GOLD, NOOP, guesses, must_fail
from intercode.evaluate.task_selection import ExcludedTasks, select_tasks, ungradable_tasks
from intercode.evaluate.validate import ValidationResult, validate as run
from intercode.registry import DATASETS, parse_scheme
from intercode.spec import (
    RunSpec,
    environments,
    from_toml,
    read_arguments,
)
from intercode.task import Dataset
from intercode_sandbox import Limits
from intercode_sandbox.units import format_count
from intercode_sandbox.user_code import is_reference

_MAX_FINDINGS = 20
_PROBLEM_TEXTS = {
    "gold": "gold does not solve {}",
    "free": "{} solved by a wrong answer",
    "varies": "{} with varying results",
    "clock": "{} dependent on the clock",
    "refused": "an alternative solution of {} is refused",
    "leak": "the fix of {} can be read",
    "tests": "tests of {} are not as listed",
    "command": "gold of {} does not run",
    "error": "{} without a score",
}


class _ValidationProgress(ProgressPrinter):
    """Progress of a validation, with numbers of faulty tasks instead of a success rate.

    A success rate would have no meaning, because some trials must succeed and others must fail.
    """

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._unsolved_tasks: set[str] = set()
        self._guessed_tasks: set[str] = set()
        self.guesses_by_trial: Mapping[int, GuessedSolution] = {}
        """Number of a trial → the guess that the trial submits; the trials of gold have no guess. A
        guess is a solution that should fail, unless its role or chance permits success."""

    def episode(self, episode: Episode) -> None:
        """Count a finished trial's task as faulty if gold failed, or a wrong answer succeeded."""
        guess = self.guesses_by_trial.get(episode.epoch)
        if guess is None and not episode.success:
            self._unsolved_tasks.add(episode.task_id)
        if episode.success and must_fail(guess, [turn.observation for turn in episode.turns]):
            self._guessed_tasks.add(episode.task_id)
        super().episode(episode)

    def result(self) -> str:
        """Return the numbers of faulty tasks so far, which the progress shows as the result."""
        return (
            f"not solved by gold {len(self._unsolved_tasks)}  solved by a wrong answer "
            f"{len(self._guessed_tasks)}"
        )


def execute(args: argparse.Namespace) -> int:
    """Validate the tasks, and print the findings.

    Returns:
        The exit code: 0 if all tasks are valid, 1 if a task is not, 130 if interrupted.
    """
    watcher = _ValidationProgress(quiet=args.quiet)
    spec, full_dataset = load(make_spec(args))
    environment(spec)
    dataset = narrow_dataset(spec, full_dataset, watcher)
    tasks = select_tasks(dataset, spec.tasks, spec.limit, ungradable_tasks(dataset))
    watcher.guesses_by_trial = guesses(spec.env.name, tasks)
    task_setting = resolve_setting(RunPlan(spec, dataset, tasks), watcher)
    makes_by_sandbox = {
        name: resolve_setting(RunPlan(spec.merge(sandbox=name), dataset, tasks), watcher).make
        for name in args.also_on or ()
    }
    validation = run(
        dataset,
        task_setting.make,
        timeout=spec.env.options.get("timeout", Limits().timeout),
        tasks=[task.task_id for task in tasks],
        workers=args.workers,
        progress=watcher,
        backends=makes_by_sandbox,
    )
    if args.json:
        print_json(_report(spec.env.name, dataset, validation))
    else:
        _print_validation(validation, has_gold=any(task.gold for task in tasks))
    if args.write_exclude is not None:
        _write_exclusions(args, full_dataset, validation)
    if not validation.complete:
        return 130
    return 0 if validation.valid else 1


def make_spec(args: argparse.Namespace) -> RunSpec:
    """Return the spec of a validation or an export of tasks.

    If the command names no environment, the environment is derived from the fields of the tasks.

    Raises:
        UsageError: The command names two environments.
    """
    if args.data_option is not None:
        if args.env not in (None, args.data):
            raise UsageError(f"two environments are given: {args.data!r} and {args.env!r}")
        args.env, args.data = args.data, args.data_option
    options, folder = read_arguments(args), None
    if loader_name(args.data) is None and Path(args.data).is_dir():
        folder = from_toml(args.data)
        options = {**folder, **options, "data": folder["data"]}
    if "env" not in options and _is_environment(args.data):
        # The argument names an environment without data, so its own tasks are used.
        options["env"] = options.pop("data")
    if "env" not in options:
        is_known = args.data in environments() or parse_scheme(args.data)
        options["env"] = args.data
        if not is_known:
            project.refuse_lone_file(args.data, "; or try the file alone, with --env ENV")
            _, tasks = load(RunSpec.from_layers(options, {"env": ""}))
            options["env"] = detect_environment(tasks)
    return RunSpec.from_layers(options)


def _is_environment(reference: str) -> bool:
    """Return whether a reference to a user's code names a class of environments, not a loader.

    Args:
        reference: The reference, such as ``maze.py:Maze``.
    """
    if not is_reference(reference) or parse_scheme(reference):
        return False
    loader = DATASETS.resolve(reference)  # raises an error if the code does not exist
    return isinstance(loader, type) and hasattr(loader, "step")


def _write_exclusions(
    args: argparse.Namespace, dataset: Dataset, validation: ValidationResult
) -> None:
    """Write the list of invalid tasks for ``--exclude``, unless the validation was interrupted."""
    if not validation.complete:
        print(f"interrupted: {args.write_exclude} is not written", file=sys.stderr)
        return
    ExcludedTasks.from_tasks(dataset, validation.reasons()).write(args.write_exclude)
    if not args.quiet:
        count = len(validation.reasons())
        print(f"{args.write_exclude}: {format_count(count, 'task')} to exclude", file=sys.stderr)


def _report(name: str, dataset: Dataset, validation: ValidationResult) -> dict[str, Any]:
    gold, noop, garbage = (validation.statistics[trial] for trial in (GOLD, NOOP, GARBAGE))
    return {
        "dataset": dataset.name,
        "digest": dataset.digest,
        "env": name,
        "tasks": validation.tasks,
        "complete": validation.complete,
        "valid": validation.valid,
        "oracle_successes": gold.successes,
        "noop_successes": noop.successes,
        "noop_mean_reward": noop.mean_reward,
        "garbage_successes": garbage.successes,
        "garbage_mean_reward": garbage.mean_reward,
        "constants": [
            {"constant": name, "solves": count} for name, count in validation.constants.items()
        ],
        "solved_by_constants": validation.solved_by_constants,
        "seconds": validation.seconds,
        "problems": [asdict(problem) for problem in validation.problems],
        "doubts": [asdict(doubt) for doubt in validation.doubts],
        "slow": [asdict(slow_task) for slow_task in validation.slow_tasks],
        "leaks": [asdict(leak) for leak in validation.leaks],
        "usage": [asdict(task_usage) for task_usage in validation.usage],
    }


def _print_validation(validation: ValidationResult, *, has_gold: bool) -> None:
    for problem in validation.problems[:_MAX_FINDINGS]:
        print(f"{safe(problem.task_id)}: {one_line(problem.problem, 400)}")
    if len(validation.problems) > _MAX_FINDINGS:
        print(f"… and {len(validation.problems) - _MAX_FINDINGS} more (--json has them all)")
    warnings = [
        f"{safe(doubt.task_id)}: doubt: {one_line(doubt.problem, 400)}"
        for doubt in validation.doubts
    ]
    warnings += [
        f"{safe(slow_task.task_id)}: slow: {slow_task.seconds:.1f} s of {slow_task.limit:g} s; "
        f"a timeout of {slow_task.suggested_timeout:g} would leave room"
        for slow_task in validation.slow_tasks
    ]
    warnings += [
        f"{safe(leak.task_id)}: leak: {one_line(leak.text, 400)}"
        for leak in validation.leaks
        if not leak.is_problem
    ]
    for warning in warnings[:_MAX_FINDINGS]:
        print(warning)
    if len(warnings) > _MAX_FINDINGS:
        print(
            f"… and {format_count(len(warnings) - _MAX_FINDINGS, 'more warning')} (--json has "
            "them all)"
        )
    tasks = {
        kind: {p.task_id for p in validation.problems if p.kind == kind} for kind in _PROBLEM_TEXTS
    }
    counts = Counter({kind: len(ids) for kind, ids in tasks.items()})
    problem_texts = [_PROBLEM_TEXTS[kind].format(count) for kind, count in counts.items() if count]
    gold, noop, garbage = (validation.statistics[trial] for trial in (GOLD, NOOP, GARBAGE))
    print(
        f"mean rewards: gold {number(gold.mean_reward)}, doing nothing "
        f"{number(noop.mean_reward)}, a wrong answer {number(garbage.mean_reward)}"
    )
    if validation.constants:
        print(_constants_text(validation))
    if has_gold:
        print(_usage_text(validation))
    state = "" if validation.complete else ", but not all were tried"
    details_text = f": {', '.join(problem_texts)}" if problem_texts else ""
    valid_count = validation.tasks - len(validation.reasons())
    verb_text = "task is" if validation.tasks == 1 else "tasks are"
    doubtful_count = len(
        {doubt.task_id for doubt in validation.doubts} - validation.reasons().keys()
    )
    doubts = f" ({doubtful_count} in doubt)" if doubtful_count else ""
    print(f"{valid_count} of {validation.tasks} {verb_text} valid{doubts}{state}{details_text}")


def _constants_text(validation: ValidationResult) -> str:
    """Return text about the number of tasks that a constant answer solves, such as ``0``."""
    constant_texts = [f"{name} {count}" for name, count in validation.constants.items() if count]
    task_count = format_count(validation.tasks, "task")
    text = f"constants solve {validation.solved_by_constants} of {task_count}"
    return f"{text}: {', '.join(constant_texts)}" if constant_texts else text


def _usage_text(validation: ValidationResult) -> str:
    """Return text about gold's maximum duration and memory, with a suggested timeout."""
    slowest_usage = max(validation.usage, key=lambda task_usage: task_usage.seconds)
    text = f"gold takes at most {duration(slowest_usage.seconds)} ({safe(slowest_usage.task_id)})"
    if memory_usages := [
        (task_usage.memory, task_usage.task_id)
        for task_usage in validation.usage
        if task_usage.memory is not None
    ]:
        max_memory, task_id = max(memory_usages)
        text += f" and {size(max_memory)} of memory ({safe(task_id)})"
    return f"{text}; a timeout of {slowest_usage.suggested_timeout:g} s leaves room"
