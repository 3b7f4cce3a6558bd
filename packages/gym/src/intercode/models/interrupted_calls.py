"""Draining of model calls after Ctrl-C: running calls may finish, but no call waits or retries.

A run handles Ctrl-C itself. The run's `RunInterruptState` propagates the interrupt to model calls,
which agents, judges and gateways make on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from intercode.errors import ModelUnavailableError


class RunInterruptState:
    """The interrupt state of a run.

    After an interrupt, running model calls may still finish, but calls neither wait nor retry.

    Attributes:
        failed: Whether a call has failed since the interrupt, or would have had to wait. No call
            begins after a failure, because the next call's server may not respond either.
    """

    def __init__(self) -> None:
        self.failed = False
        self._interrupt = threading.Event()

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was interrupted."""
        return self._interrupt.is_set()

    def interrupt(self) -> None:
        """Interrupt the run, and end all waits in `wait`."""
        self._interrupt.set()

    def check(self) -> None:
        """Refuse a new call if a call has failed since the interrupt.

        Raises:
            ModelUnavailableError: A call has failed since the interrupt.
        """
        if self.failed:
            error = ModelUnavailableError("not sent: the run was interrupted")
            error.unsent = True
            raise error

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds, or until an interrupt."""
        self._interrupt.wait(seconds)


_drains: list[RunInterruptState] = []
"""The drains of the process's active runs. A signal concerns the whole process, so model calls obey
the drain of the latest run."""


@contextmanager
def run_drain() -> Iterator[RunInterruptState]:
    """Register a drain for a run, and yield the drain.

    Model calls that begin during the ``with`` block obey the drain until the calls end.
    """
    drain = RunInterruptState()
    _drains.append(drain)
    try:
        yield drain
    finally:
        _drains.remove(drain)


def current_drain() -> RunInterruptState:
    """Return the drain of the active run; without a run, a new drain without an interrupt."""
    return next(reversed(_drains), None) or RunInterruptState()
