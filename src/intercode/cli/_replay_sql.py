"""`intercode replay --env sql`: a recorded SQL run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from intercode import datasets
from intercode.cli._text import percent, table
from intercode.errors import UsageError

if TYPE_CHECKING:
    from intercode.paper.report import Progress
    from intercode.paper.results import RecordedRun
    from intercode.paper.sql_replay import Hardness, SqlReplayReport
    from intercode.task import Dataset

_LEVELS = ("easy", "medium", "hard", "extra")
"""As the paper's table has them."""


def replay(
    args: argparse.Namespace, run: RecordedRun, progress: Progress | None
) -> SqlReplayReport:
    """Replay a run on the engine that was asked for."""
    from intercode.paper.sql_replay import replay_sql
    from intercode.paper.sql_server import open_databases, usual_engine

    tasks = _tasks(args)
    place = args.databases or tasks.databases
    if place is None:
        raise UsageError(f"{args.data}: say where its databases are: --databases PATH")
    dialect = str(tasks[0].metadata.get("dialect", "mysql"))
    engine = args.engine or usual_engine()
    with closing(open_databases(engine, Path(place), dialect, _tell(args))) as databases:
        return replay_sql(tasks, run, databases, progress)


def as_text(report: SqlReplayReport) -> str:
    """Success rates as the paper's table has them, and the reward's versions."""
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
    said = ", ".join(f"{name} ({count} turns)" for name, count in turns.items())
    return f"{text}\n\nversion of the reward, inferred from what agrees: {said}"


def _rate(count: int, of: Hardness) -> str:
    return percent(count / of.episodes if of.episodes else None)


def _tasks(args: argparse.Namespace) -> Dataset:
    if args.data is not None:
        return datasets.load(args.data)
    if args.suite not in (None, "spider"):
        raise UsageError(f"no SQL run of suite {args.suite!r} is known, only of 'spider'")
    return datasets.load("spider", root=args.upstream)


def _tell(args: argparse.Namespace) -> Callable[[str], None] | None:
    if args.quiet:
        return None
    return lambda text: print(text, file=sys.stderr, flush=True)
