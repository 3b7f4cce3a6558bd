"""Run scripted agents, or a language model, on the bundled tasks."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intercode.agents.base import AgentFactory
from intercode.agents.stand_in import NAME, StandIn
from intercode.cli import results
from intercode.cli.demo_model import demonstrate
from intercode.cli.episodes import render
from intercode.cli.run import fresh_folder
from intercode.cli.terminal import duration, percent, print_json, safe
from intercode.errors import InterCodeError, SandboxUnavailableError
from intercode.evaluate import Outcome, Progress, RunResult, evaluate
from intercode.evaluate.exclusion import select_tasks
from intercode.evaluate.prepare import Plan, find_secret, load, narrow_dataset, setting
from intercode.evaluate.statistics import Estimate
from intercode.evaluate.summary import by_turn
from intercode.models import keys
from intercode.report.page import Episodes, write_page
from intercode.report.runs import Run, read_runs
from intercode.report.tables import by_agent, matrix
from intercode.spec import RunSpec
from intercode_console import INTERRUPTED
from intercode_sandbox.units import format_count

ENVS = ("bash", "sql", "python", "ctf", "swe")
STAND_IN = StandIn()
AGENTS: Mapping[str, tuple[str, str | AgentFactory]] = {
    "oracle": ("oracle", "oracle"),
    NAME: (f"{STAND_IN.name} ({NAME})", STAND_IN),
    "random": ("random", "random"),
}
"""Folder → what reports call the agent, and the agent; from the best to the worst."""
SHOWN_LINES = 6
"""Lines of each observation in the episode that is shown, the stand-in's first: with the dice of
this seed it fails once, then recovers."""
LOCAL_MODEL = "local/qwen2.5-coder-1.5b"
"""The model that is proposed where no variable names another."""
INTRODUCTION = (
    "An agent is given a task in words, acts, sees what its actions really do, and\n"
    "submits. Here is one episode, in a sandbox of its own:\n"
)
WHAT_IT_IS = (
    "'scripted' is not a language model: it knows gold, and makes random errors.\n"
    "Its rate says nothing about any model.\n"
)


def execute(args: argparse.Namespace) -> int:
    """Run all agents in all environments, or a language model, and show the results."""
    out = args.out or fresh_folder(time.strftime("demo-%Y%m%d-%H%M%S"))
    if args.model is not None:
        return demonstrate(
            args.model, out, args.limit, args.workers, quiet=args.quiet, as_json=args.json
        )
    why, command = command_for_a_model()  # refuses a malformed key before anything runs
    began = time.monotonic()
    demo = Demo(out, args.workers, args.limit, quiet=args.quiet, shows=not args.json)
    try:
        demo.run()
    except KeyboardInterrupt:
        demo.interrupted = True
    if demo.interrupted:
        limit = f" --limit {args.limit}" if args.limit else ""
        print(f"stopped; what was finished is in {out}. The rest:", file=sys.stderr)
        print(f"{_program()} demo --out {shlex.quote(str(out))}{limit}", file=sys.stderr)
        return INTERRUPTED
    if len(demo.left_out) == len(ENVS):
        reasons = "; ".join(f"{env}: {why}" for env, why in demo.left_out.items())
        raise InterCodeError(f"nothing could be run: {reasons}")
    page = out / "report.html"
    runs = _write(page, demo.folders)
    if args.json:
        seconds = time.monotonic() - began
        told = {"out": str(out), "page": str(page), "seconds": seconds, **_as_json(runs)}
        print_json({**told, "left_out": demo.left_out, "next": command})
    else:
        _print(runs, demo.left_out)
        print(f"the page with every episode, to open in a browser: {page}")
        print(f"an episode in the terminal: {_program()} show {demo.shown}")
        print(f"a real model, {why}:\n{command}")
    return 0 if demo.complete else 1


class Row(results.Watcher):
    """Show the runs in one environment: one line, which is printed when they have ended."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.title = title
        self.agent = ""
        self._ended: list[str] = []
        self._began = time.monotonic()
        self._line.show(f"{title}  preparing …")

    def begin(self, total: int, earlier: Sequence[Outcome]) -> None:
        """Count the episodes of the next agent."""
        self._total, self._done, self._errors = total, len(earlier), 0
        self._successes = sum(outcome.success for outcome in earlier)

    def end(self) -> None:
        """Keep the rate of an agent."""
        scored = self._done - self._errors
        errors = f" ({format_count(self._errors, 'error')})" if self._errors else ""
        rate = percent(self._successes / scored if scored else None)
        self._ended.append(f"{self.agent} {rate}{errors}")

    def clear(self) -> None:
        """Remove the line."""
        self._line.clear()

    def close(self) -> None:
        """Leave the line on the screen, if any run has ended."""
        self.clear()
        if self._ended and not self._quiet:
            took = duration(time.monotonic() - self._began)
            self._line.say(safe("  ".join([self.title, *self._ended, took])))

    def _refresh(self) -> None:
        counts = f"{self.agent} {self._done}/{self._total}"
        self._line.show(safe("  ".join([self.title, *self._ended, counts])))


class Demo:
    """The runs of the agents in all environments.

    Args:
        out: The folder of their folders.
        workers: Episodes at a time.
        limit: Only the first so many tasks of each environment.
        quiet: Show no progress.
        shows: Whether an episode is shown first.
    """

    def __init__(
        self, out: Path, workers: int, limit: int | None, *, quiet: bool, shows: bool
    ) -> None:
        self.interrupted = False
        self.complete = True
        """Whether every episode of those that were run has a result."""
        self.left_out: dict[str, str] = {}
        """Environment → why it could not be run in."""
        self.folders: list[Path] = []
        self.shown = ""
        """The episode that was shown, as ``intercode show`` takes it."""
        self._out, self._workers, self._limit, self._quiet = out, workers, limit, quiet
        self._shows = shows

    def run(self) -> None:
        """Run in one environment after the other.

        Raises:
            SandboxUnavailableError: This machine permits no sandbox.
            RecordError: The runs cannot be written.
        """
        for env in ENVS:
            row = Row(env, quiet=self._quiet)
            try:
                self._environment(env, row)
            finally:
                row.close()
            if self.interrupted:
                return

    def _environment(self, env: str, row: Row) -> None:
        folders = {agent: self._out / f"{env}-{agent}" for agent in AGENTS}
        try:
            asked, every = _plan(env, folders.values(), self._limit, row)
            where = setting(asked, Progress())
            context = where.context()
        except SandboxUnavailableError:
            raise
        except InterCodeError as error:
            self.left_out[env] = str(error)
            return
        some = f"{len(asked.tasks)} of " * (len(asked.tasks) < every)
        row.title = f"{env:7} {some + format_count(every, 'task'):8}"

        def run(agent: str, progress: Progress, limit: int | None) -> RunResult:
            label, factory = AGENTS[agent]
            result = evaluate(
                asked.dataset,
                factory,
                where.make,
                progress=progress,
                workers=self._workers,
                out=folders[agent],
                limit=limit,
                settings=where.facts,
                context={**_named(asked, factory, label).context(), **context},
            )
            self.interrupted = result.interrupted
            return result

        if self._shows and env == ENVS[0]:
            first = run(NAME, Progress(), 1)
            row.clear()
            self._show(first, asked.tasks[0].task_id, folders[NAME])
        for agent, (row.agent, _) in AGENTS.items():
            if not self.interrupted:
                self.complete &= run(agent, row, self._limit).complete
                self.folders.append(folders[agent])

    def _show(self, result: RunResult, task_id: str, folder: Path) -> None:
        for episode in result.episodes():
            if episode.task_id == task_id:
                self.shown = f"{shlex.quote(str(folder))} --task {task_id}"
                some = "all bundled tasks"
                if self._limit is not None:
                    some = f"the first {format_count(self._limit, 'bundled task')}"
                print(INTRODUCTION, render(episode, SHOWN_LINES), sep="\n")
                print(f"Three agents, all scripted, on {some}:\n", flush=True)
                return


def _plan(
    env: str, folders: Iterable[Path], limit: int | None, progress: Progress
) -> tuple[Plan, int]:
    """Choose the tasks of an environment; return their plan, and how many the environment has."""
    spec, everything = load(RunSpec.of({"env": env, "secret": find_secret(*folders)}))
    dataset = narrow_dataset(spec, everything, progress)
    return Plan(spec, dataset, select_tasks(dataset, None, limit)), len(everything)


def _named(plan: Plan, factory: str | AgentFactory, label: str) -> Plan:
    """Return the plan of one of the agents, for the record."""
    return replace(plan, spec=plan.spec.merge(agent=factory if isinstance(factory, str) else label))


def _write(page: Path, folders: Sequence[Path]) -> list[Run]:
    """Read the runs, and write the page."""
    episodes = Episodes()
    runs = read_runs(folders, episodes.add)
    write_page(page, runs, episodes)
    return runs


def _as_json(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "run": str(run.folder),
                "env": run.env_label,
                "agent": run.label,
                **results.as_json(run.outcomes),
            }
            for run in runs
        ],
        "turns": {name: [asdict(one) for one in curve] for name, curve in _curves(runs).items()},
    }


def _print(runs: Sequence[Run], left_out: Mapping[str, str]) -> None:
    """Print the table and the plot."""
    print(f"\n{results.written(matrix(runs))}")
    for run in runs:
        if failed := results.errors(run.outcomes):
            print(f"{safe(str(run.folder))}: {failed}")
    for env, why in left_out.items():
        print(f"{env} was left out: {safe(why)}\n")
    print("Success within so many turns, all environments together:\n")
    print(results.for_terminal(_curves(runs)))
    print(WHAT_IT_IS)


def _curves(runs: Sequence[Run]) -> dict[str, list[Estimate]]:
    """Return success against turns for each agent, up to the last turn that gains something."""
    found = by_agent(runs)
    solved = [o.solved_at for outcomes in found.values() for o in outcomes if o.solved_at]
    turns = max(solved, default=1) + 1
    return {agent: by_turn(outcomes, turns) for agent, outcomes in found.items()}


def command_for_a_model() -> tuple[str, str]:
    """Choose the command that runs a real model by the variables that are set.

    Returns:
        What proposes the command, and the command; no secret is in it.

    Raises:
        UsageError: A variable holds something that cannot be a key or a URL.
    """
    openai, anthropic = keys.find("OPENAI_API_KEY"), keys.find("ANTHROPIC_API_KEY")
    if url := keys.find("OPENAI_BASE_URL"):
        url = keys.check_url(url)
        why = "as OPENAI_BASE_URL is set (put the name that the server gives it for NAME)"
        if openai:
            return why, _run("openai/NAME", "--max-tokens 1000000")
        options = f"--base-url {shlex.quote(url)} --max-tokens 1000000"
        return why, _run("openai-compatible/NAME", options)
    # Models that cost little, whose price is known: the budget holds.
    if openai:
        return "as OPENAI_API_KEY is set", _run("openai/gpt-5-mini", "--max-cost 1")
    if anthropic:
        model = "anthropic/claude-haiku-4-5"
        return "as ANTHROPIC_API_KEY is set", _run(model, "--max-cost 1", "anthropic")
    why = "on this machine (or set OPENAI_API_KEY or ANTHROPIC_API_KEY)"
    return why, _installed(
        "xllamacpp", f"{_program()} demo --model {LOCAL_MODEL}", "'intercode-gym[local]'"
    )


def _run(model: str, options: str, package: str = "openai") -> str:
    run = f"{_program()} run bash --agent try-again --model {model} {options} --limit 20"
    return _installed(package, run, package)


def _installed(package: str, command: str, requirement: str) -> str:
    """Return a command, after the one that installs a package where it is missing."""
    missing = find_spec(package) is None
    return (
        f"{_here(sys.executable)} -m pip install {requirement} && {command}" if missing else command
    )


def _program() -> str:
    """Return how this program is called from here."""
    called = Path(sys.argv[0])
    if called.name != "intercode":
        return f"{_here(sys.executable)} -m intercode.cli"
    found = shutil.which("intercode")
    same = found is not None and Path(found).resolve() == called.resolve()
    return "intercode" if same else _here(called)


def _here(path: str | Path) -> str:
    """Return a path for a shell, as short as it can be."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a virtual environment's python is a link
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else path))
