"""Run an agent over tasks, and print the summary."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from intercode.cli import results
from intercode.cli.recorded import recorded_spec, words_again
from intercode.cli.results import Watcher
from intercode.cli.terminal import duration, print_json, safe
from intercode.errors import UsageError
from intercode.evaluate import RunResult
from intercode.evaluate.drift import DriftError
from intercode.evaluate.prepare import Plan, plan, run_folder
from intercode.evaluate.runner import run
from intercode.records import MANIFEST, read_manifest
from intercode.report.runs import find_judge, rate_name
from intercode.spec import (
    Options,
    RunSpec,
    given,
)
from intercode_sandbox.units import format_count

if TYPE_CHECKING:
    from intercode.models import Budget
    from intercode.task import Dataset

TAGS = 8
"""Tags that are shown at a run's end; 'intercode report' shows all."""


def execute(args: argparse.Namespace) -> int:
    """Run, and print the summary."""
    options = given(args)
    if args.trust or options.keys() & {"agent", "preset", "locked"}:
        return run_and_print(spec_of(options, trust=args.trust))
    return _run_gold(RunSpec.of(options), _command(options))


def spec_of(options: Options, *, trust: bool = False) -> RunSpec:
    """Make the spec; options that are not given come from the record that a run is locked to.

    Raises:
        UsageError: There is trust, and no record.
    """
    if "locked" in options:
        folder = run_folder(options["locked"])
        return recorded_spec(folder, read_manifest(folder), options, trust=trust)
    if trust:
        raise UsageError("--trust is for --locked RUN: nothing else is taken from a record")
    return RunSpec.of(options)


def run_and_print(spec: RunSpec) -> int:
    """Run what a spec says, and print the summary; return the exit code."""
    spec = placed(spec)
    return finish(spec, carry_out(spec, watcher_of(spec)))


def _run_gold(spec: RunSpec, command: str) -> int:
    """Run gold, as no agent was named, and say what that is.

    Raises:
        UsageError: No task has gold.
    """
    spec = placed(spec)
    watcher = watcher_of(spec)
    asked = plan(spec, watcher)
    tasks = asked.tasks
    can_be_scored = spec.reward or any(task.verification or task.tests for task in tasks)
    if can_be_scored and not any(task.gold for task in tasks):
        raise UsageError(_no_agent(asked.dataset, command))
    code = finish(spec, carry_out(asked, watcher))
    if not (spec.how.quiet or spec.how.json):
        print(_GOLD_WAS_RUN.format(command=command))
    return code


_NO_AGENT = """\
{data}: nothing was run: no agent was named, and no task has gold, the
solution that the agent 'oracle' runs otherwise. An agent solves the tasks: it reads a task and what
came of its actions so far, and says the next action. Name one:

  {command} --agent try-again --model openai/gpt-4o
      a language model; its key is in OPENAI_API_KEY. Also anthropic/NAME, and your own server:
      --model vllm/NAME --base-url http://localhost:8000/v1
  {command} --agent my_agent.py:make
      a program of your own
  {command} --agent random
      one that acts at random
  {play}
      you, in the terminal

To see agents that solve tasks: intercode demo"""
_GOLD_WAS_RUN = """\

No agent was named: 'oracle' ran gold, the tasks' own solutions. That checks tasks and machine, and
says nothing of an agent. With a language model ('intercode run --help' lists all agents):
  {command} --agent try-again --model openai/gpt-4o"""


def _no_agent(dataset: Dataset, command: str) -> str:
    play = command.replace("run", "play", 1)
    return _NO_AGENT.format(data=dataset.source or dataset.name, command=command, play=play)


def _command(options: Options) -> str:
    """Return the beginning of a command for the same tasks."""
    words = [str(options.get("env", "ENV"))]
    words += ["--data", str(options["data"])] if "data" in options else []
    return f"intercode run {shlex.join(map(safe, words))}"


def placed(spec: RunSpec) -> RunSpec:
    """Return a spec that says where its run is kept."""
    return spec if spec.how.out is not None else spec.merge(out=_default_folder(spec))


def carry_out(asked: RunSpec | Plan, watcher: Watcher, budget: Budget | None = None) -> RunResult:
    """Carry out a spec or a plan, and say how to resume a run that was stopped.

    Args:
        asked: The spec, or the plan that was made of it.
        watcher: Shows how it goes.
        budget: One that several runs share; default: the run's own.
    """
    how = (asked if isinstance(asked, RunSpec) else asked.spec).how
    try:
        return run(asked, watcher, budget)
    except DriftError as error:
        if how.json:
            found = [asdict(difference) for difference in error.differences]
            print_json({"locked": how.locked, "differences": found})
        raise
    except KeyboardInterrupt:
        can_resume = how.out is not None and (Path(how.out) / MANIFEST).is_file()
        spec = asked if isinstance(asked, RunSpec) else asked.spec
        rest = f"; resume with: {resuming(spec)}" if can_resume else " before any episode began"
        print(f"stopped{rest}", file=sys.stderr)
        raise


def watcher_of(spec: RunSpec) -> Watcher:
    """Return the watcher that shows how a run goes."""
    return Watcher(
        show=(sys.stderr if spec.how.json else sys.stdout) if spec.how.show else None,
        # A person who types would type into the living line.
        quiet=spec.how.quiet or spec.agent.name == "human",
        rate=rate_name(spec.env.judge_model),
    )


def resuming(spec: RunSpec) -> str:
    """Return the command that resumes a run."""
    return f"intercode resume {shlex.quote(safe(str(spec.how.out)))}{words_again(spec)}"


def finish(spec: RunSpec, result: RunResult) -> int:
    """Print the result of a run; return the exit code."""
    out = Path(str(spec.how.out))
    if spec.how.json:
        _print_json(out, result)
    else:
        _print(spec.how.workers, out, result)
    if rest := _rest(spec, result):
        print(rest, file=sys.stderr if spec.how.json else sys.stdout)
    if result.cut_short:
        return 130
    return 0 if result.complete else 1


def _rest(spec: RunSpec, result: RunResult) -> str:
    """Say what is left to do, and why; empty if nothing is."""
    missing, errors = result.planned - len(result.outcomes), result.statistics.errors
    left = [f"{missing} episode{'s are' if missing > 1 else ' is'} missing"] if missing else []
    left += [f"{errors} ended in an error"] if errors else []
    if not left:
        return "" if result.ran else "nothing to do: every episode has a result"
    why = f"stopped: {safe(result.stopped)}\n" if result.stopped else ""
    why += "interrupted: " if result.cut_short else ""
    return f"{why}{', '.join(left)}\nresume with: {resuming(spec)}"


def _print_json(out: Path, result: RunResult) -> None:
    manifest = read_manifest(out)
    print_json(
        {
            "run": str(out),
            "env": manifest["env"]["env"],
            "agent": manifest["agent"]["name"],
            "dataset": manifest["dataset"],
            "excluded": manifest.get("excluded", {}),
            "planned": result.planned,
            "finished": len(result.outcomes),
            "ran": result.ran,
            "seconds": result.seconds,
            "episodes_per_second": _rate(result),
            "interrupted": result.cut_short,
            "stopped": result.stopped,
            **results.as_json(result.outcomes, find_judge(manifest, result.outcomes)),
        }
    )


def _print(workers: int, out: Path, result: RunResult) -> None:
    manifest = read_manifest(out)
    judge = find_judge(manifest, result.outcomes)
    text = results.as_text(result.outcomes, TAGS, judge, result.stopped)
    print(results.facts(manifest), text, sep="\n\n", end="\n\n")
    if bill := results.bill(result.outcomes):
        print(bill)
    if result.ran:
        pace = f"({_rate(result):.1f}/s, {format_count(workers, 'worker')})"
        print(f"{format_count(result.ran, 'episode')} in {duration(result.seconds)} {pace}")
    print(f"run: {out}")


def _rate(result: RunResult) -> float:
    return result.ran / result.seconds if result.seconds else 0.0


def _default_folder(spec: RunSpec) -> Path:
    """Return a new name below ``runs/``: two runs of the same second get different ones."""
    agent = spec.agent.name
    name = Path(agent).name if ".py:" in agent or agent.endswith(".toml") else agent
    what = spec.env.benchmark or spec.env.name
    words = "-".join([what, name, *(spec.model.name or "").split("/")[1:]])
    label = re.sub(r"[^\w.-]+", "-", words)[:80]
    return fresh_folder(f"{time.strftime('%Y%m%d-%H%M%S')}-{label}")


def fresh_folder(stem: str) -> Path:
    """Return a new name below ``runs/``, with a number at its end if there is such a folder."""
    candidates = (Path("runs") / (stem if n == 1 else f"{stem}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
