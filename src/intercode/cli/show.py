"""Show the episodes of a run, turn by turn: what the model thought or said, its actions, and what
they printed; then the reward, and the reason of one below 1.0, which may quote gold. Control
characters are shown, not obeyed.

Examples:
  intercode show runs/20250101-120000-bash-oracle
  intercode show RUN --task shop-03 --full
  intercode show RUN --task shop-03 --messages    (the dialogue as the model saw it)
  intercode show RUN --failed --json
  intercode show runs                             (the runs in a folder)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from intercode.cli import results
from intercode.cli.episodes import LINES, render
from intercode.cli.terminal import print_json, safe
from intercode.errors import RecordError, TaskNotFoundError
from intercode.records import latest, read_manifest, run_folders
from intercode.spec import positive


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", type=Path, help="the run's folder, or a folder of runs")
    parser.add_argument(
        "--task", action="append", metavar="ID", dest="tasks", help="only this task"
    )
    parser.add_argument("--failed", action="store_true", help="only what was not solved")
    parser.add_argument(
        "--lines",
        type=positive,
        default=LINES,
        metavar="N",
        help="of each text (12)",
    )
    parser.add_argument("--full", action="store_true", help="every text from end to end")
    parser.add_argument(
        "--messages",
        action="store_true",
        help="the dialogue as the model saw it: system prompt, roles, tool calls, tokens",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list of episodes")


def execute(args: argparse.Namespace) -> int:
    """Print the episodes."""
    runs = run_folders([args.run])
    if runs != [args.run]:
        return _list(runs, as_json=args.json)
    read_manifest(args.run)
    episodes = list(latest(args.run, lambda episode: episode).values())
    if args.tasks:
        if missing := set(args.tasks) - {episode.task_id for episode in episodes}:
            raise TaskNotFoundError(f"{args.run} has no episode of {', '.join(sorted(missing))}")
        episodes = [episode for episode in episodes if episode.task_id in args.tasks]
    if args.failed:
        episodes = [episode for episode in episodes if not episode.success]
    if args.json:
        print_json([episode.to_dict() for episode in episodes])
        return 0
    for episode in episodes:
        lines = None if args.full else args.lines
        print(render(episode, lines, reasons=True, messages=args.messages))
    return 0


def _list(runs: Sequence[Path], *, as_json: bool) -> int:
    """Print a line for each run of a folder; a damaged one says why."""
    facts: dict[str, str] = {}
    for run in runs:
        try:
            facts[str(run)] = results.facts(read_manifest(run))
        except RecordError as error:
            facts[str(run)] = str(error)
    if as_json:
        print_json(facts)
        return 0
    for folder, text in facts.items():
        print(f"{safe(folder)}: {safe(text)}")
    return 0
