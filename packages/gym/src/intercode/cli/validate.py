"""Check tasks, and print the findings."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode import project
from intercode.cli.results import Watcher
from intercode.cli.terminal import duration, number, one_line, print_json, safe, size
from intercode.datasets import name_in
from intercode.envs.traits import Guess, environment_for
from intercode.episode import Episode
from intercode.errors import UsageError
from intercode.evaluate.checks import GARBAGE, GOLD, NOOP, guesses
from intercode.evaluate.exclusion import Exclusion, select_tasks, ungradable_tasks
from intercode.evaluate.prepare import Plan, environment, load, narrow_dataset, setting
from intercode.evaluate.validate import Validation, validate as run
from intercode.registry import DATASETS, scheme_of
from intercode.spec import (
    RunSpec,
    environments,
    from_toml,
    given,
)
from intercode.task import Dataset
from intercode_sandbox import Limits
from intercode_sandbox.units import format_count
from intercode_sandbox.user_code import is_reference

_SHOWN = 20
_SAID = {
    "gold": "gold does not solve {}",
    "free": "{} solved for free",
    "varies": "{} not always the same",
    "clock": "the clock changes {}",
    "refused": "an alternative solution of {} is refused",
    "leak": "the fix of {} can be read",
    "tests": "tests of {} are not as listed",
    "command": "gold of {} does not run",
    "error": "{} without a score",
}


class _Counts(Watcher):
    """Counts tasks that are not as they should be; a rate of success would mean nothing."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._unsolved: set[str] = set()
        self._free: set[str] = set()
        self.tried: Mapping[int, Guess] = {}
        """The guesses, by trial."""

    def episode(self, episode: Episode) -> None:
        """Count the tasks that are not as they should be."""
        guess = self.tried.get(episode.epoch)
        if guess is None and not episode.success:
            self._unsolved.add(episode.task_id)
        may = guess is None or guess.by_chance or guess.role in ("alternative", "clock")
        if not may and episode.success:
            self._free.add(episode.task_id)
        super().episode(episode)

    def result(self) -> str:
        """Return the counts so far."""
        return f"gold failed {len(self._unsolved)}  solved for free {len(self._free)}"


def execute(args: argparse.Namespace) -> int:
    """Run the checks, and print what came of them.

    Returns:
        The exit code: 1 if a task is not as it should be, 130 if it was interrupted.
    """
    watcher = _Counts(quiet=args.quiet)
    spec, everything = load(spec_of(args))
    environment(spec)
    dataset = narrow_dataset(spec, everything, watcher)
    tasks = select_tasks(dataset, spec.tasks, spec.limit, ungradable_tasks(dataset))
    watcher.tried = guesses(spec.env.name, tasks)
    where = setting(Plan(spec, dataset, tasks), watcher)
    also_on = {
        name: setting(Plan(spec.merge(sandbox=name), dataset, tasks), watcher).make
        for name in args.also_on or ()
    }
    found = run(
        dataset,
        where.make,
        timeout=spec.env.options.get("timeout", Limits().timeout),
        tasks=[task.task_id for task in tasks],
        workers=args.workers,
        progress=watcher,
        also_on=also_on,
    )
    if args.json:
        print_json(_report(spec.env.name, dataset, found))
    else:
        _print(found, has_gold=any(task.gold for task in tasks))
    if args.write_exclude is not None:
        _write(args, everything, found)
    if not found.complete:
        return 130
    return 0 if found.valid else 1


def spec_of(args: argparse.Namespace) -> RunSpec:
    """Make the spec; without an environment it is the one that the tasks look like."""
    if args.data_option is not None:
        if args.env not in (None, args.data):
            raise UsageError(f"which environment: {args.data!r} or {args.env!r}?")
        args.env, args.data = args.data, args.data_option
    options, folder = given(args), None
    if name_in(args.data) is None and Path(args.data).is_dir():
        folder = from_toml(args.data)
        options = {**folder, **options, "data": folder["data"]}
    if "env" not in options and _is_environment(args.data):
        options["env"] = options.pop("data")  # whose tasks are missing, or come with it
    if "env" not in options:
        known = args.data in environments() or scheme_of(args.data)
        options["env"] = args.data
        if not known:
            project.refuse_lone_file(args.data, "; or try the file alone, with --env ENV")
            _, tasks = load(RunSpec.of(options, {"env": ""}))
            options["env"] = environment_for(tasks)
    return RunSpec.of(options)


def _is_environment(reference: str) -> bool:
    """Tell whether a name means an environment of a user's file: one has no loader's signature."""
    if not is_reference(reference) or scheme_of(reference):
        return False
    made = DATASETS.resolve(reference)  # whose error says that there is no such dataset
    return isinstance(made, type) and hasattr(made, "step")


def _write(args: argparse.Namespace, dataset: Dataset, found: Validation) -> None:
    """Write the exclusion list of a validation that was not interrupted."""
    if not found.complete:
        print(f"interrupted: {args.write_exclude} is not written", file=sys.stderr)
        return
    Exclusion.of(dataset, found.reasons()).write(args.write_exclude)
    if not args.quiet:
        count = len(found.reasons())
        print(f"{args.write_exclude}: {format_count(count, 'task')} to leave out", file=sys.stderr)


def _report(name: str, dataset: Dataset, found: Validation) -> dict[str, Any]:
    gold, nothing, wrong = (found.statistics[trial] for trial in (GOLD, NOOP, GARBAGE))
    return {
        "dataset": dataset.name,
        "digest": dataset.digest,
        "env": name,
        "tasks": found.tasks,
        "complete": found.complete,
        "valid": found.valid,
        "oracle_successes": gold.successes,
        "noop_successes": nothing.successes,
        "noop_mean_reward": nothing.mean_reward,
        "garbage_successes": wrong.successes,
        "garbage_mean_reward": wrong.mean_reward,
        "constants": [
            {"constant": name, "solves": count} for name, count in found.constants.items()
        ],
        "solved_by_constants": found.solved_by_constants,
        "seconds": found.seconds,
        "problems": [asdict(problem) for problem in found.problems],
        "doubts": [asdict(doubt) for doubt in found.doubts],
        "slow": [asdict(slow) for slow in found.slow_tasks],
        "leaks": [asdict(leak) for leak in found.leaks],
        "usage": [asdict(used) for used in found.usage],
    }


def _print(found: Validation, *, has_gold: bool) -> None:
    for problem in found.problems[:_SHOWN]:
        print(f"{safe(problem.task_id)}: {one_line(problem.problem, 400)}")
    if len(found.problems) > _SHOWN:
        print(f"… and {len(found.problems) - _SHOWN} more (--json has them all)")
    warnings = [
        f"{safe(doubt.task_id)}: doubt: {one_line(doubt.problem, 400)}" for doubt in found.doubts
    ]
    warnings += [
        f"{safe(slow.task_id)}: slow: {slow.seconds:.1f} s of {slow.limit:g} s; "
        f"a timeout of {slow.suggested_timeout:g} would leave room"
        for slow in found.slow_tasks
    ]
    warnings += [
        f"{safe(leak.task_id)}: leak: {one_line(leak.text, 400)}"
        for leak in found.leaks
        if not leak.is_problem
    ]
    for warning in warnings[:_SHOWN]:
        print(warning)
    if len(warnings) > _SHOWN:
        print(f"… and {format_count(len(warnings) - _SHOWN, 'more warning')} (--json has them all)")
    tasks = {kind: {p.task_id for p in found.problems if p.kind == kind} for kind in _SAID}
    counts = Counter({kind: len(ids) for kind, ids in tasks.items()})
    said = [_SAID[kind].format(count) for kind, count in counts.items() if count]
    gold, nothing, wrong = (found.statistics[trial] for trial in (GOLD, NOOP, GARBAGE))
    print(
        f"mean rewards: gold {number(gold.mean_reward)}, doing nothing "
        f"{number(nothing.mean_reward)}, a wrong answer {number(wrong.mean_reward)}"
    )
    if found.constants:
        print(_constants(found))
    if has_gold:
        print(_usage(found))
    state = "" if found.complete else ", but not all were tried"
    more = f": {', '.join(said)}" if said else ""
    good = found.tasks - len(found.reasons())
    are = "task is as it" if found.tasks == 1 else "tasks are as they"
    in_doubt = len({doubt.task_id for doubt in found.doubts} - found.reasons().keys())
    doubts = f" ({in_doubt} in doubt)" if in_doubt else ""
    print(f"{good} of {found.tasks} {are} should be{doubts}{state}{more}")


def _constants(found: Validation) -> str:
    """Say how many tasks an agent can solve without looking."""
    each = [f"{name} {count}" for name, count in found.constants.items() if count]
    text = f"constants solve {found.solved_by_constants} of {format_count(found.tasks, 'task')}"
    return f"{text}: {', '.join(each)}" if each else text


def _usage(found: Validation) -> str:
    """Say what gold takes at most."""
    slowest = max(found.usage, key=lambda used: used.seconds)
    text = f"gold takes at most {duration(slowest.seconds)} ({safe(slowest.task_id)})"
    if counted := [(used.memory, used.task_id) for used in found.usage if used.memory is not None]:
        most, task_id = max(counted)
        text += f" and {size(most)} of memory ({safe(task_id)})"
    return f"{text}; a timeout of {slowest.suggested_timeout:g} s leaves room"
