"""Execution of ``intercode run``, with functions that other commands use to run a spec."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.cli import run_output
from intercode.cli.recorded_spec import recorded_spec, repeated_options
from intercode.cli.run_output import ProgressPrinter
from intercode.cli.terminal import duration, print_json, safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.manifest_diff import DriftError
from intercode.evaluate.run_setup import RunPlan, plan, run_folder
from intercode.evaluate.runner import run
from intercode.records import MANIFEST, read_manifest
from intercode.report.runs import find_judge, rate_name
from intercode.spec import (
    Options,
    RunSpec,
    read_arguments,
)
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.task import Dataset

TAGS = 8
"""The maximum number of tags in a run's summary; ``intercode report`` shows all."""


def execute(args: argparse.Namespace) -> int:
    """Run the agent that the command names, or gold if it names none, and print the summary.

    Returns:
        The exit code: 0 if every episode has a result, 1 if not, 130 if interrupted.
    """
    options = read_arguments(args)
    if args.trust or options.keys() & {"agent", "preset", "locked"}:
        return run_and_print(make_spec(options, trust=args.trust))
    return _run_gold(RunSpec.from_layers(options), _run_command(options))


def make_spec(options: Options, *, trust: bool = False) -> RunSpec:
    """Return the spec of a run from the options of a command.

    If ``locked`` names a recorded run, the record supplies all options that the command lacks.

    Args:
        options: The options of the command.
        trust: Whether code, paths and addresses may come from the record.

    Raises:
        UsageError: `trust` is true, but the options name no record.
        TrustError: The record names code, paths or addresses that `options` do not repeat, and
            that `trust` does not permit.
    """
    if "locked" in options:
        folder = run_folder(options["locked"])
        return recorded_spec(folder, read_manifest(folder), options, trust=trust)
    if trust:
        raise UsageError("--trust needs --locked RUN: otherwise no record is used")
    return RunSpec.from_layers(options)


def run_and_print(spec: RunSpec) -> int:
    """Run a spec in its folder, or in a new folder if it names none, and print the summary.

    Returns:
        The exit code: 0 if every episode has a result, 1 if not, 130 if interrupted.
    """
    spec = assign_folder(spec)
    return finish(spec, carry_out(spec, make_watcher(spec)))


def _run_gold(spec: RunSpec, command: str) -> int:
    """Run gold, because the command names no agent, and explain this in the output.

    Args:
        spec: The spec of the run.
        command: The user's command, for the explanation.

    Returns:
        The exit code: 0 if every episode has a result, 1 if not, 130 if interrupted.

    Raises:
        UsageError: No task has gold, although a reward function, a verification or tests could
            score other agents.
    """
    spec = assign_folder(spec)
    watcher = make_watcher(spec)
    run_plan = plan(spec, watcher)
    tasks = run_plan.tasks
    can_be_scored = spec.reward or any(task.verification or task.tests for task in tasks)
    if can_be_scored and not any(task.gold for task in tasks):
        raise UsageError(_no_agent(run_plan.dataset, command))
    code = finish(spec, carry_out(run_plan, watcher))
    if not (spec.run_options.quiet or spec.run_options.json):
        print(_GOLD_MESSAGE.format(command=command))
    return code


_NO_AGENT_MESSAGE = """\
{data}: nothing was run: no agent was named, and no task has a reference
solution (gold), which the default agent 'oracle' runs. An agent solves the tasks: it reads a task
and the observations so far, and chooses the next action. Name one:

  {command} --agent try-again --model openai/gpt-4o
      a language model; its key is in OPENAI_API_KEY. Also anthropic/NAME, and your own server:
      --model vllm/NAME --base-url http://localhost:8000/v1
  {command} --agent my_agent.py:make
      your own agent
  {command} --agent random
      an agent that acts at random
  {play}
      you, in the terminal

To see agents that solve tasks: intercode demo"""
_GOLD_MESSAGE = """\

No agent was named: 'oracle' ran the tasks' reference solutions (gold). This checks tasks and
machine, and evaluates no agent. With a language model ('intercode run --help' lists all agents):
  {command} --agent try-again --model openai/gpt-4o"""


def _no_agent(dataset: Dataset, command: str) -> str:
    play_command = command.replace("run", "play", 1)
    return _NO_AGENT_MESSAGE.format(
        data=dataset.source or dataset.name, command=command, play=play_command
    )


def _run_command(options: Options) -> str:
    """Return the command ``intercode run`` with the environment and the data of some options."""
    words = [str(options.get("env", "ENV"))]
    words += ["--data", str(options["data"])] if "data" in options else []
    return f"intercode run {shlex.join(map(safe, words))}"


def assign_folder(spec: RunSpec) -> RunSpec:
    """Return the spec with a folder for its run; if it names none, with a new one in ``runs/``."""
    return spec if spec.run_options.out is not None else spec.merge(out=_default_folder(spec))


def carry_out(
    spec_or_plan: RunSpec | RunPlan, watcher: ProgressPrinter, budget: Budget | None = None
) -> RunResult:
    """Run a spec or a plan; print the command that resumes an interrupted run.

    Args:
        spec_or_plan: The spec, or its plan.
        watcher: The progress.
        budget: A budget that several runs share; None: the run has its own budget.

    Raises:
        DriftError: The run is locked to a record, and differs from it. With ``--json``, the
            differences are printed.
        KeyboardInterrupt: The user interrupted the run twice, or before an episode began.
    """
    run_options = (
        spec_or_plan if isinstance(spec_or_plan, RunSpec) else spec_or_plan.spec
    ).run_options
    try:
        return run(spec_or_plan, watcher, budget)
    except DriftError as error:
        if run_options.json:
            differences = [asdict(difference) for difference in error.differences]
            print_json({"locked": run_options.locked, "differences": differences})
        raise
    except KeyboardInterrupt:
        can_resume = run_options.out is not None and (Path(run_options.out) / MANIFEST).is_file()
        spec = spec_or_plan if isinstance(spec_or_plan, RunSpec) else spec_or_plan.spec
        resume_text = (
            f"; resume with: {resume_command(spec)}" if can_resume else " before any episode began"
        )
        print(f"stopped{resume_text}", file=sys.stderr)
        raise


def make_watcher(spec: RunSpec) -> ProgressPrinter:
    """Return the progress display of a run."""
    return ProgressPrinter(
        show=(sys.stderr if spec.run_options.json else sys.stdout)
        if spec.run_options.show
        else None,
        # If a person is the agent, there is no live line, because it would mix with typed text.
        quiet=spec.run_options.quiet or spec.agent.name == "human",
        rate=rate_name(spec.env.judge_model),
    )


def resume_command(spec: RunSpec) -> str:
    """Return the command line that resumes the run of a spec."""
    return (
        f"intercode resume {shlex.quote(safe(str(spec.run_options.out)))}{repeated_options(spec)}"
    )


def finish(spec: RunSpec, result: RunResult) -> int:
    """Print the result of a run, and return the exit code.

    The exit code is 0 if every episode has a result, 1 if not, and 130 if interrupted.
    """
    output_folder = Path(str(spec.run_options.out))
    if spec.run_options.json:
        _print_json(output_folder, result)
    else:
        _print_result(spec.run_options.workers, output_folder, result)
    if remainder_text := _remainder_text(spec, result):
        print(remainder_text, file=sys.stderr if spec.run_options.json else sys.stdout)
    if result.cut_short:
        return 130
    return 0 if result.complete else 1


def _remainder_text(spec: RunSpec, result: RunResult) -> str:
    """Return text about an incomplete run.

    The text contains the number of missing episodes, the reason, and the command that resumes the
    run. If the run is complete, the text is empty, or a note that no episode was left to run.
    """
    missing_count, errors = result.planned - len(result.outcomes), result.statistics.errors
    remainder_texts = (
        [f"{missing_count} episode{'s are' if missing_count > 1 else ' is'} missing"]
        if missing_count
        else []
    )
    remainder_texts += [f"{errors} ended in an error"] if errors else []
    if not remainder_texts:
        return "" if result.ran else "nothing to do: every episode has a result"
    reason = f"stopped: {safe(result.stopped)}\n" if result.stopped else ""
    reason += "interrupted: " if result.cut_short else ""
    return f"{reason}{', '.join(remainder_texts)}\nresume with: {resume_command(spec)}"


def _print_json(output_folder: Path, result: RunResult) -> None:
    manifest = read_manifest(output_folder)
    print_json(
        {
            "run": str(output_folder),
            "env": manifest["env"]["env"],
            "agent": manifest["agent"]["name"],
            "dataset": manifest["dataset"],
            "excluded": manifest.get("excluded", {}),
            "planned": result.planned,
            "finished": len(result.outcomes),
            "ran": result.ran,
            "seconds": result.seconds,
            "episodes_per_second": _episode_rate(result),
            "interrupted": result.cut_short,
            "stopped": result.stopped,
            **run_output.as_json(result.outcomes, find_judge(manifest, result.outcomes)),
        }
    )


def _print_result(workers: int, output_folder: Path, result: RunResult) -> None:
    manifest = read_manifest(output_folder)
    judge = find_judge(manifest, result.outcomes)
    text = run_output.as_text(result.outcomes, TAGS, judge, result.stopped)
    print(run_output.facts(manifest), text, sep="\n\n", end="\n\n")
    if bill := run_output.bill(result.outcomes):
        print(bill)
    if result.ran:
        pace = f"({_episode_rate(result):.1f}/s, {format_count(workers, 'worker')})"
        print(f"{format_count(result.ran, 'episode')} in {duration(result.seconds)} {pace}")
    print(f"run: {output_folder}")


def _episode_rate(result: RunResult) -> float:
    return result.ran / result.seconds if result.seconds else 0.0


def _default_folder(spec: RunSpec) -> Path:
    """Return a new path in ``runs/``, named by time, environment, agent and model."""
    agent = spec.agent.name
    name = Path(agent).name if ".py:" in agent or agent.endswith(".toml") else agent
    environment_label = spec.env.benchmark or spec.env.name
    words = "-".join([environment_label, name, *(spec.model.name or "").split("/")[1:]])
    label = re.sub(r"[^\w.-]+", "-", words)[:80]
    return fresh_folder(f"{time.strftime('%Y%m%d-%H%M%S')}-{label}")


def fresh_folder(stem: str) -> Path:
    """Return a path in ``runs/`` that does not exist yet.

    If the name is in use, a number is appended.

    Args:
        stem: The name of the folder.
    """
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
