"""`intercode replay --env python`: a recorded Python run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from intercode import datasets
from intercode.cli._progress import Watcher
from intercode.cli._text import safe
from intercode.evaluate.prepare import provider_of

if TYPE_CHECKING:
    from intercode.paper.python import PythonReplayReport
    from intercode.paper.report import Progress, RegradedReport
    from intercode.paper.results import RecordedRun


def replay(
    args: argparse.Namespace, run: RecordedRun, progress: Progress | None
) -> PythonReplayReport:
    """Replay a run on the Python that InterCode runs on."""
    from intercode.paper.python import replay_python

    if args.data is not None:
        tasks = datasets.load(args.data)
    else:
        tasks = datasets.load("mbpp", root=args.upstream)
    return replay_python(
        tasks, run, provider_of("python", say=Watcher.tell), args.image, args.workers, progress
    )


def as_text(report: PythonReplayReport) -> str:
    """The same episodes under the default protocol, and what they were replayed on."""
    return f"{by_default(report)}\non Python {report.python}"


def by_default(report: RegradedReport) -> str:
    """The same episodes under the default protocol."""
    said = f"success under the default protocol: {report.success_default} of {report.episodes}"
    changes = (("lost", report.success_lost), ("gained", report.success_gained))
    for name, tasks in changes:
        if tasks:
            said += f"\n  {name}: {safe(', '.join(tasks))}"
    return said
