"""Work in a forked process, as a trainer's workers do it."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Callable
from typing import Any

from intercode.errors import InterCodeError
from waiting import PATIENCE


def in_a_fork(work: Callable[[], object]) -> str:
    """What a forked process says to some work: its error, or ``done``. It ends as programs do."""

    def report(end: Any) -> None:
        try:
            work()
            said = "done"
        except InterCodeError as error:
            said = f"{type(error).__name__}: {error}"
        atexit._run_exitfuncs()
        end.send(said)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=report, args=(theirs,))
    child.start()
    theirs.close()
    assert ours.poll(PATIENCE)
    said = str(ours.recv())
    child.join()
    return said
