"""Execution of ``intercode show``, which prints the episodes of a run, or the runs in a folder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from intercode.cli import run_output
from intercode.cli.episode_rendering import render
from intercode.cli.terminal import print_json, print_message, safe
from intercode.errors import RecordError, TaskNotFoundError
from intercode.records import read_latest, read_manifest, run_folders


def execute(args: argparse.Namespace) -> int:
    """Print the selected episodes of a run, or the runs in a folder; return the exit code 0.

    Raises:
        RecordError: The run cannot be read.
        TaskNotFoundError: A selected task has no episode.
    """
    runs = run_folders([args.run])
    if runs != [args.run]:
        return _list(runs, as_json=args.json)
    read_manifest(args.run)
    episodes = list(read_latest(args.run, lambda episode: episode).values())
    if args.tasks:
        if missing_ids := set(args.tasks) - {episode.task_id for episode in episodes}:
            raise TaskNotFoundError(
                f"{args.run} has no episode of {', '.join(sorted(missing_ids))}"
            )
        episodes = [episode for episode in episodes if episode.task_id in args.tasks]
    if args.failed:
        episodes = [episode for episode in episodes if not episode.success]
    if args.json:
        print_json([episode.to_dict() for episode in episodes])
        return 0
    if not episodes:
        print_message(
            f"{args.run} has no {'episode without success' if args.failed else 'episode yet'}"
        )
    for episode in episodes:
        lines = None if args.full else args.lines
        print(render(episode, lines, reasons=True, messages=args.messages))
    return 0


def _list(runs: Sequence[Path], *, as_json: bool) -> int:
    """Print a line for each run in a folder; return the exit code 0.

    The line of a run has its facts, or an error if its record is damaged.
    """
    facts: dict[str, str] = {}
    for run in runs:
        try:
            facts[str(run)] = run_output.facts(read_manifest(run))
        except RecordError as error:
            facts[str(run)] = str(error)
    if as_json:
        print_json(facts)
        return 0
    for folder, text in facts.items():
        print(f"{safe(folder)}: {safe(text)}")
    return 0
