"""`intercode replay --env python`: a recorded Python run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from intercode import datasets

if TYPE_CHECKING:
    from intercode.paper.python_replay import PythonReplayReport
    from intercode.paper.report import Progress
    from intercode.paper.results import RecordedRun


def replay(
    args: argparse.Namespace, run: RecordedRun, progress: Progress | None
) -> PythonReplayReport:
    """Replay a run on the Python that InterCode runs on."""
    from intercode.interpreters.python_start import provider
    from intercode.paper.python_replay import replay_python

    if args.data is not None:
        tasks = datasets.load(args.data)
    else:
        tasks = datasets.load("mbpp", root=args.upstream)
    return replay_python(tasks, run, provider(), args.image, args.workers, progress)
