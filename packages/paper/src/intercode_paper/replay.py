"""Replay recorded runs of 2023, and print the comparison."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode import datasets
from intercode.cli.terminal import (
    LiveLine,
    duration,
    percent,
    print_json,
    safe,
    table,
    tell,
)
from intercode.errors import TaskNotFoundError, UsageError
from intercode.evaluate.prepare import provider_of
from intercode_sandbox.units import counted

if TYPE_CHECKING:
    from intercode.task import Dataset
    from intercode_paper.ctf import CtfReplayReport
    from intercode_paper.python import PythonReplayReport
    from intercode_paper.report import Progress, RegradedReport, ReplayReport
    from intercode_paper.results import RecordedRun
    from intercode_paper.sql_replay import Hardness, SqlReplayReport

_SUITES = {
    "sql": ("SQL", "spider", "spider"),
    "python": ("Python", "mbpp", "mbpp"),
    "ctf": ("CTF", "ic-ctf", "ic-ctf"),
}
"""Environment → its name, the only suite of which a run is known, and its dataset."""
_LEVELS = ("easy", "medium", "hard", "extra")
"""The order of the columns, as in the paper's table."""


def execute(args: argparse.Namespace) -> int:
    """Replay, and print the report."""
    from intercode_paper.results import in_todays_words, load_results

    _check(args)
    whole = load_results(args.results)
    tasks = _tasks(args)
    whole, reworded = in_todays_words(tasks, whole)
    if reworded:
        tell(f"intercode: {_ids(reworded)} of the data: reworded since the run, and found by id")
    recorded = _selected(whole, args)
    progress = None if args.quiet else _progress()
    replay = {"bash": _bash, "sql": _sql, "python": _python, "ctf": _ctf}[args.env]
    report, more, text = replay(args, tasks, recorded, progress)
    if args.json:
        about = {"results": str(args.results), "reworded": list(reworded)}
        print_json({**about, **more, **report.to_dict()})
    else:
        print("\n\n".join(filter(None, (_compared(report), text))))
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
    if args.env in _SUITES and args.upstream is not None:
        name, suite, _ = _SUITES[args.env]
        if args.suite not in (None, suite):
            raise UsageError(f"no {name} run of suite {args.suite!r} is known, only of {suite!r}")


def _tasks(args: argparse.Namespace) -> Dataset:
    if args.data is not None:
        return datasets.load(args.data)
    if args.env == "bash":
        return datasets.load("nl2bash", root=args.upstream, suite=args.suite)
    return datasets.load(_SUITES[args.env][2], root=args.upstream)


Found = tuple["ReplayReport", "dict[str, Any]", str]
"""A report, what its JSON object has more, and what people read after the comparison."""


def _bash(
    args: argparse.Namespace, tasks: Dataset, recorded: RecordedRun, progress: Progress | None
) -> Found:
    from intercode.datasets.nl2bash import image_for
    from intercode_paper.bash_env import recorded_elsewhere, replay_bash

    image = args.image or tasks[0].image or "nl2bash"
    elsewhere: dict[str, str] = {}
    if args.upstream is not None and args.image is None:
        elsewhere = {
            task: image_for(args.upstream.resolve(), suite)
            for task, suite in recorded_elsewhere(recorded).items()
        }
    provider = provider_of("bash", say=tell)
    for name in dict.fromkeys([image, *elsewhere.values()]):
        provider.digest(name)  # found or built before the workers start, and the clock
    report = replay_bash(tasks, recorded, provider, image, args.workers, progress, elsewhere)
    said = [
        f"{_ids([task for task in elsewhere if elsewhere[task] == other])} in {safe(other)}, where "
        "they were recorded"
        for other in dict.fromkeys(elsewhere.values())
    ]
    return report, {"image": image, "elsewhere": elsewhere}, "\n".join(said)


def _sql(
    args: argparse.Namespace, tasks: Dataset, recorded: RecordedRun, progress: Progress | None
) -> Found:
    from intercode_paper.sql_replay import replay_sql
    from intercode_paper.sql_server import open_databases, usual_engine

    place = args.databases or tasks.databases
    if place is None:
        raise UsageError(f"{args.data}: say where its databases are: --databases PATH")
    dialect = str(tasks[0].metadata.get("dialect", "mysql"))
    engine, say = args.engine or usual_engine(), None if args.quiet else tell
    with closing(open_databases(engine, Path(place), dialect, say)) as databases:
        report = replay_sql(tasks, recorded, databases, progress)
    return report, {}, _rates(report)


def _python(
    args: argparse.Namespace, tasks: Dataset, recorded: RecordedRun, progress: Progress | None
) -> Found:
    from intercode_paper.python import replay_python

    provider = provider_of("python", say=tell)
    report: PythonReplayReport = replay_python(
        tasks, recorded, provider, args.image, args.workers, progress
    )
    return report, {}, f"{_by_default(report)}\non Python {report.python}"


def _ctf(
    args: argparse.Namespace, tasks: Dataset, recorded: RecordedRun, progress: Progress | None
) -> Found:
    from intercode_paper.ctf import replay_ctf

    provider = provider_of("bash", say=tell)
    if args.image is not None:
        provider.digest(args.image)  # found or built before the workers start, and the clock
    report: CtfReplayReport = replay_ctf(
        tasks, recorded, provider, args.image, args.workers, progress
    )
    without = f"episodes without the task's files: {report.without_files} of {report.episodes}"
    return report, {}, f"{_by_default(report)}\n{without}"


def _ids(ids: Sequence[str]) -> str:
    """Return tasks' ids for people: of consecutive numbers the first and the last."""
    runs: list[list[str]] = []
    for one in ids:
        if runs and one.isdecimal() and runs[-1][-1] == str(int(one) - 1):
            runs[-1].append(one)
        else:
            runs.append([one])
    named = [one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in runs]
    return safe(f"task{'s' * (len(ids) > 1)} {', '.join(named)}")


def _selected(recorded: RecordedRun, args: argparse.Namespace) -> RecordedRun:
    """Keep only the episodes that were asked for, in their order."""
    episodes = recorded.episodes
    if args.tasks:
        wanted = set(args.tasks)
        if missing := wanted - {episode.task_id for episode in episodes}:
            raise TaskNotFoundError(f"{args.results} has no episode {', '.join(sorted(missing))}")
        episodes = tuple(episode for episode in episodes if episode.task_id in wanted)
    return with_fields(recorded, episodes=episodes[: args.limit])


def _progress() -> Progress:
    line = LiveLine()

    def show(done: int, total: int) -> None:
        text = f"{done}/{counted(total, 'episode')}"
        if done == total:
            line.say(text)
        elif line.due():
            (line.show if line.live else line.say)(text)

    return show


def _compared(report: ReplayReport) -> str:
    """Return what agrees, and how much does not."""
    rows = [
        _row("rewards equal (turns)", report.reward_equal, report.turns),
        _row("observations equal (turns)", report.observation_equal, report.turns),
        _row("success agrees (episodes)", report.success_agree, report.episodes),
        _row("success recorded", report.success_recorded, report.episodes),
        _row("success replayed", report.success_replayed, report.episodes),
    ]
    text = table(("", "count", "of", "share"), rows)
    if report.mismatches:
        differing = sum(
            abs(mismatch.reward_recorded - mismatch.reward_replayed) > 1e-9
            for mismatch in report.mismatches
        )
        turns = counted(len(report.mismatches), "turn")
        text += f"\n\nmismatches: {turns}, {differing} of them with another reward"
        text += "\n(--json lists each of them)"
    return f"{text}\n\n{counted(report.episodes, 'episode')} in {duration(report.seconds)}"


def _row(name: str, count: int, total: int) -> tuple[str, str, str, str]:
    return name, str(count), str(total), percent(count / total if total else None)


def _by_default(report: RegradedReport) -> str:
    """Return the success of the same episodes under the default protocol."""
    said = f"success under the default protocol: {report.success_default} of {report.episodes}"
    changes = (("lost", report.success_lost), ("gained", report.success_gained))
    for name, tasks in changes:
        if tasks:
            said += f"\n  {name}: {safe(', '.join(tasks))}"
    return said


def _rates(report: SqlReplayReport) -> str:
    """Return success rates as the paper's table has them, and the reward's versions."""
    known = [level for level in _LEVELS if level in report.by_hardness]
    levels = known + sorted(set(report.by_hardness) - set(known))
    rates = [report.by_hardness[level] for level in levels]
    rows = [
        ("recorded", *(_rate(one.success_recorded, one) for one in rates)),
        ("replayed", *(_rate(one.success_replayed, one) for one in rates)),
    ]
    every = (report.success_recorded, report.success_replayed)
    rows = [
        (*row, percent(count / report.episodes if report.episodes else None))
        for row, count in zip(rows, every, strict=True)
    ]
    text = table((f"success on {report.engine}", *levels, "all"), rows)
    versions = sorted({part.version for part in report.parts})
    turns = {name: sum(p.turns for p in report.parts if p.version == name) for name in versions}
    said = ", ".join(f"{name} ({counted(count, 'turn')})" for name, count in turns.items())
    return f"{text}\n\nversion of the reward, inferred from what agrees: {said}"


def _rate(count: int, of: Hardness) -> str:
    return percent(count / of.episodes if of.episodes else None)
