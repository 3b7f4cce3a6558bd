"""See it work: three scripted agents on the bundled tasks of all environments.

It needs no model, no key, no Docker and no network. First it shows an episode, turn by turn; then
it runs them all, and ends with a table, a plot, and the path of a page with every episode.

  oracle                 runs gold: what can be reached
  try-again (scripted)   a stand-in for a language model: it knows gold, and errs by dice
  random                 acts at random: what luck is worth

Ctrl-C waits for the episodes in flight, a second one stops at once; with the same --out the demo
goes on with the rest.

Examples:
  intercode demo
  intercode demo --limit 5 --out runs/demo
  intercode demo --json --quiet | jq .turns

An environment that needs what this machine has not, as SWE needs git, is left out, and that said.

exit code: 0 if every episode has a result, 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from intercode.cli import _first_model, _summary
from intercode.cli._board import Board
from intercode.cli._chart import for_terminal
from intercode.cli._demo_runs import AGENTS, Stage
from intercode.cli._episode import render
from intercode.cli._text import print_json, safe
from intercode.errors import InterCodeError, SandboxUnavailableError
from intercode.evaluate.matrix import by_agent, matrix
from intercode.evaluate.report import by_turn
from intercode.evaluate.report_episodes import Episodes
from intercode.evaluate.report_html import write_page
from intercode.evaluate.report_made import made_of
from intercode.evaluate.report_runs import Run, read_runs
from intercode.evaluate.report_tables import of_run, of_runs
from intercode.evaluate.statistics import Estimate
from intercode.spec import positive

ENVS = ("bash", "sql", "python", "ctf", "swe")
SHOWN = "scripted"
"""Whose first episode is shown. With the dice of this seed it is wrong, and mends that."""
SHOWN_LINES = 6
"""Of each of its observations."""
PAGE = "report.html"
MOST_WORKERS = 8
INTERRUPTED = 130
INTRODUCTION = (
    "An agent is given a task in words, acts, sees what its actions really do, and\n"
    "submits. Here is one episode, in a sandbox of its own:\n"
)
WHAT_IT_IS = (
    "'scripted' is no language model: it knows gold, and errs by the throw of dice.\n"
    "Its rate tells nothing of any model.\n"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    workers = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N tasks of each"
    )
    parser.add_argument(
        "--workers",
        type=positive,
        default=workers,
        metavar="N",
        help=f"episodes at a time (here: {workers})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the runs' folder (default: runs/demo-TIME)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Run them all, and show what came of it."""
    following = _first_model.find()  # refuses what can be no key before anything runs
    demo = Demo(args)
    try:
        demo.run()
    except KeyboardInterrupt:
        demo.interrupted = True
    if demo.interrupted:
        print(f"stopped; what was finished is in {demo.out}. The rest:", file=sys.stderr)
        print(demo.again(), file=sys.stderr)
        return INTERRUPTED
    if len(demo.left_out) == len(ENVS):
        reasons = "; ".join(f"{env}: {why}" for env, why in demo.left_out.items())
        raise InterCodeError(f"nothing could be run: {reasons}")
    runs = demo.report()
    if args.json:
        print_json({**demo.as_json(runs), "next": following.command})
    else:
        _print_result(runs, demo)
        _print_next(demo, following)
    return 0 if demo.complete else 1


class Demo:
    """Runs in all environments, and what came of them.

    Args:
        args: The command's options.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.out: Path = args.out or _fresh_folder()
        self.interrupted = False
        self.complete = True
        """Whether every episode of those that were run has a result."""
        self.left_out: dict[str, str] = {}
        """Environment → why it could not be run in."""
        self.shown = ""
        """An episode, as ``intercode show`` is to be given it."""
        self._args = args
        self._folders: list[Path] = []
        self._began = time.monotonic()

    @property
    def page(self) -> Path:
        """Has everything."""
        return self.out / PAGE

    def again(self) -> str:
        """The command that goes on with this demo."""
        limit = f" --limit {self._args.limit}" if self._args.limit else ""
        return f"{_first_model.program()} demo --out {shlex.quote(str(self.out))}{limit}"

    def run(self) -> None:
        """One environment after the other.

        Raises:
            SandboxUnavailableError: This machine permits no sandbox.
            RecordError: The runs cannot be written.
        """
        for env in ENVS:
            board = Board(env, quiet=self._args.quiet)
            try:
                self._environment(env, board)
            finally:
                board.close()
            if self.interrupted:
                return

    def report(self) -> list[Run]:
        """Read the runs, and write the page."""
        episodes = Episodes()
        runs = read_runs(self._folders, episodes.add)
        details = [(f"{run.label}: {run.where}", [*of_run(run), made_of(run)]) for run in runs]
        write_page(self.page, runs, [("Side by side", of_runs(runs))], episodes, details=details)
        return runs

    def as_json(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "out": str(self.out),
            "page": str(self.page),
            "seconds": time.monotonic() - self._began,
            "runs": [
                {
                    "run": str(run.folder),
                    "env": run.where,
                    "agent": run.label,
                    **_summary.as_json(run.outcomes),
                }
                for run in runs
            ],
            "turns": {
                agent: [asdict(point) for point in points]
                for agent, points in _curves(runs).items()
            },
            "left_out": self.left_out,
        }

    def _environment(self, env: str, board: Board) -> None:
        """The agents' runs in an environment."""
        board.preparing()
        try:
            stage = Stage(env, self.out, self._args.workers, self._args.limit)
        except SandboxUnavailableError:
            raise
        except InterCodeError as error:
            self.left_out[env] = str(error)
            return
        board.title = _title(stage)
        if env == ENVS[0] and not self._args.json:
            self._show(stage, board)
        for agent, (label, _) in AGENTS.items():
            if self.interrupted:
                return
            board.agent(label)
            result = stage.run(agent, board)
            self._folders.append(stage.folder(agent))
            self.complete &= result.complete
            self.interrupted = result.interrupted

    def _show(self, stage: Stage, board: Board) -> None:
        episode, self.interrupted = stage.first_episode(SHOWN)
        board.clear()
        if episode is not None:
            self.shown = f"{shlex.quote(str(stage.folder(SHOWN)))} --task {episode.task_id}"
            agents = f"Three agents, all scripted, {_how_many(self._args.limit)} tasks:\n"
            print(INTRODUCTION, render(episode, SHOWN_LINES), agents, sep="\n", flush=True)


def _fresh_folder() -> Path:
    """A new name below ``runs/``."""
    stem = time.strftime("demo-%Y%m%d-%H%M%S")
    names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, 10_000))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def _how_many(limit: int | None) -> str:
    return "on all bundled" if limit is None else f"on the first {limit} bundled"


def _title(stage: Stage) -> str:
    some = f" of {stage.all_tasks}" * (stage.tasks < stage.all_tasks)
    return f"{stage.env:7} {f'{stage.tasks}{some} tasks':8}"


def _print_result(runs: Sequence[Run], demo: Demo) -> None:
    """The table and the plot."""
    print(f"\n{_summary.written(matrix(runs))}")
    for run in runs:
        if failed := _summary.errors(run.outcomes):
            print(f"{safe(str(run.folder))}: {failed}")
    for env, why in demo.left_out.items():
        print(f"{env} was left out: {safe(why)}\n")
    print("Success within so many turns, all environments together:\n")
    print(for_terminal(_curves(runs)))
    print(WHAT_IT_IS)


def _curves(runs: Sequence[Run]) -> dict[str, list[Estimate]]:
    """Success against turns, for each agent, as long as something is still gained by another."""
    found = by_agent(runs)
    solved = [o.solved_at for outcomes in found.values() for o in outcomes if o.solved_at]
    turns = max(solved, default=1) + 1
    return {agent: by_turn(outcomes, turns) for agent, outcomes in found.items()}


def _print_next(demo: Demo, following: _first_model.Next) -> None:
    """Where everything is, and what to do now."""
    program = _first_model.program()
    print(f"the page with every episode, to open in a browser: {demo.page}")
    print(f"an episode in the terminal: {program} show {demo.shown}")
    print(f"a real model, {following.why}:\n{following.command}")
