"""`intercode replay --env ctf`: a recorded CTF run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from intercode import datasets
from intercode.cli._progress import Watcher
from intercode.cli._replay_python import by_default
from intercode.evaluate.prepare import provider_of

if TYPE_CHECKING:
    from intercode.paper.ctf import CtfReplayReport
    from intercode.paper.report import Progress
    from intercode.paper.results import RecordedRun


def replay(
    args: argparse.Namespace, run: RecordedRun, progress: Progress | None
) -> CtfReplayReport:
    """Replay a run in the task's own files, where they are."""
    from intercode.paper.ctf import replay_ctf

    if args.data is not None:
        tasks = datasets.load(args.data)
    else:
        tasks = datasets.load("ic-ctf", root=args.upstream)
    provider = provider_of("bash", say=Watcher.tell)
    if args.image is not None:
        provider.digest(args.image)  # found or built before the workers start, and the clock
    return replay_ctf(tasks, run, provider, args.image, args.workers, progress)


def as_text(report: CtfReplayReport) -> str:
    """The same episodes under the default protocol, and how many had to do without files."""
    files = f"episodes without the task's files: {report.without_files} of {report.episodes}"
    return f"{by_default(report)}\n{files}"
