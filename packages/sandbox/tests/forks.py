"""Work in a forked process, as a trainer's workers do it."""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from intercode_sandbox.errors import InterCodeError
from waiting import PATIENCE


def in_a_fork(work: Callable[[], object]) -> str:
    """What a forked process says to some work: its error, or ``done``. It ends as programs do."""

    def report(end: Any) -> None:
        try:
            work()
            said = "done"
        except InterCodeError as error:
            said = f"{type(error).__name__}: {error}"
        _keep_folders_of_tests()
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


def _keep_folders_of_tests() -> None:
    """Have this fork's end remove no temporary folder: fixtures of the parent work in theirs."""
    for end in weakref.finalize._registry:
        held = end.peek()
        if held is not None and held[1] == tempfile.TemporaryDirectory._cleanup:
            end.atexit = False
