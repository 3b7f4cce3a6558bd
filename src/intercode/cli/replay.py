"""Do a recorded run of the 2023 paper again, under its protocol, and compare turn by turn.

Examples:
  intercode replay --upstream ../release --suite nl2bash_fs_1 --results results_fs_1.json
  intercode replay --env bash --data tasks.json --results recorded.json --image nl2bash
  intercode replay --env sql --upstream ../release --results results.json --engine mysql
  intercode replay --env python --upstream ../release --results results.json --workers 2
  intercode replay --env ctf --upstream ../release --results results.json
  intercode replay ... --workers 4 --json > report.json

exit code: 0 if the replay ran to its end, whatever it found.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING

from intercode import datasets
from intercode.cli._live import LiveLine
from intercode.cli._progress import Watcher
from intercode.cli._text import duration, percent, print_json, safe, table
from intercode.errors import TaskNotFoundError, UsageError
from intercode.evaluate.prepare import provider_of
from intercode.spec import RunSpec, add_options, options_of, positive

if TYPE_CHECKING:
    from intercode.paper.report import Progress, ReplayReport
    from intercode.paper.results import RecordedRun
    from intercode.task import Dataset


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--env", default="bash", choices=("bash", "sql", "python", "ctf"), help="default: bash"
    )
    parser.add_argument("--results", type=Path, required=True, metavar="FILE", help="the record")
    parser.add_argument("--data", type=Path, metavar="FILE", help="the tasks that were run")
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="where they were run (default: the tasks' own, or nl2bash; for Python and CTF host)",
    )
    parser.add_argument(
        "--upstream", type=Path, metavar="DIR", help="instead of --data: a copy of the release"
    )
    parser.add_argument("--suite", metavar="NAME", help="with --upstream: such as nl2bash_fs_1")
    parser.add_argument(
        "--engine",
        metavar="NAME|URL",
        help="for SQL (default: mysql where its server is installed, else sqlite)",
    )
    parser.add_argument(
        "--databases", type=Path, metavar="PATH", help="for SQL, with --data: their folder or dump"
    )
    add_options(parser, options_of(RunSpec), "limit", "tasks")
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="episodes at a time (SQL has one connection, and keeps the order)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Replay, and print the report."""
    from intercode.paper.results import load_results

    _check(args)
    recorded = _selected(load_results(args.results), args)
    progress = None if args.quiet else _progress()
    more: dict[str, str] = {}
    if args.env == "sql":
        from intercode.cli import _replay_sql

        found = _replay_sql.replay(args, recorded, progress)
        report: ReplayReport = found
        text = f"{as_text(found)}\n\n{_replay_sql.as_text(found)}"
    elif args.env == "python":
        from intercode.cli import _replay_python

        report = again = _replay_python.replay(args, recorded, progress)
        text = f"{as_text(again)}\n\n{_replay_python.as_text(again)}"
    elif args.env == "ctf":
        from intercode.cli import _replay_ctf

        report = flags = _replay_ctf.replay(args, recorded, progress)
        text = f"{as_text(flags)}\n\n{_replay_ctf.as_text(flags)}"
    else:
        report, image = _replay_bash(args, recorded, progress)
        text, more["image"] = as_text(report), image
    if args.json:
        print_json({"results": str(args.results), **more, **report.to_dict()})
    else:
        print(text)
    return 0


def _check(args: argparse.Namespace) -> None:
    if (args.data is None) == (args.upstream is None):
        raise UsageError("say which tasks were run: either --data FILE, or --upstream DIR")
    if args.env == "bash" and (args.upstream is None) != (args.suite is None):
        raise UsageError("--upstream DIR and --suite NAME belong together")
    if args.env == "sql" and args.image is not None:
        raise UsageError("--image is for bash: an SQL run has an --engine")
    if args.env != "sql" and (args.engine or args.databases):
        raise UsageError("--engine and --databases are for sql: another run has an --image")
    if args.env == "python" and args.suite not in (None, "mbpp"):
        raise UsageError(f"no Python run of suite {args.suite!r} is known, only of 'mbpp'")
    if args.env == "ctf" and args.suite not in (None, "ic-ctf"):
        raise UsageError(f"no CTF run of suite {args.suite!r} is known, only of 'ic-ctf'")


def _replay_bash(
    args: argparse.Namespace, recorded: RecordedRun, progress: Progress | None
) -> tuple[ReplayReport, str]:
    from intercode.paper.bash_env import replay_bash as replay

    tasks = _tasks(args)
    image = args.image or tasks[0].image or "nl2bash"
    provider = provider_of("bash", say=Watcher.tell)
    provider.digest(image)  # found or built before the workers start, and the clock
    return replay(tasks, recorded, provider, image, args.workers, progress), image


def _tasks(args: argparse.Namespace) -> Dataset:
    if args.data is not None:
        return datasets.load(args.data)
    return datasets.load("nl2bash", root=args.upstream, suite=args.suite)


def _selected(recorded: RecordedRun, args: argparse.Namespace) -> RecordedRun:
    """Only the episodes that were asked for, in their order."""
    episodes = recorded.episodes
    if args.tasks:
        wanted = set(args.tasks)
        if missing := wanted - {episode.task_id for episode in episodes}:
            raise TaskNotFoundError(f"{args.results} has no episode {', '.join(sorted(missing))}")
        episodes = tuple(episode for episode in episodes if episode.task_id in wanted)
    return with_fields(recorded, episodes=episodes[: args.limit])


def _progress() -> Progress:
    line = LiveLine()

    def tell(done: int, total: int) -> None:
        text = f"{done}/{total} episodes"
        if done == total:
            line.say(text)
        elif line.due():
            (line.show if line.live else line.say)(text)

    return tell


def as_text(report: ReplayReport) -> str:
    """The report for people: what agrees, and what does not by its cause."""
    rows = [
        _row("rewards equal (turns)", report.reward_equal, report.turns),
        _row("observations equal (turns)", report.observation_equal, report.turns),
        _row("success agrees (episodes)", report.success_agree, report.episodes),
        _row("success recorded", report.success_recorded, report.episodes),
        _row("success replayed", report.success_replayed, report.episodes),
    ]
    text = table(("", "count", "of", "share"), rows)
    if report.mismatches:
        every = Counter(mismatch.cause for mismatch in report.mismatches)
        rewards = Counter(
            mismatch.cause
            for mismatch in report.mismatches
            if abs(mismatch.reward_recorded - mismatch.reward_replayed) > 1e-9
        )
        causes = [
            (safe(cause), str(count), str(rewards[cause])) for cause, count in every.most_common()
        ]
        text += "\n\n" + table(("mismatches by cause", "turns", "reward differs"), causes)
        text += "\n(--json lists each of them)"
    return f"{text}\n\n{report.episodes} episodes in {duration(report.seconds)}"


def _row(name: str, count: int, total: int) -> tuple[str, str, str, str]:
    return name, str(count), str(total), percent(count / total if total else None)
