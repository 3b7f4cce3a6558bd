"""The end of a run after Ctrl-C, for its calls of models.

A run handles Ctrl-C itself. Its `Drain` tells the calls of models that the run is to end: calls are
made deep in agents, judges and gateways, on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from intercode.errors import ModelUnavailableError


class Drain:
    """The end of a run after an interrupt: calls of models may end, and none waits or is repeated.

    Attributes:
        failed: Whether a call has failed since the interrupt. From then on no call begins, as the
            server of the next one may be silent, too.
    """

    def __init__(self) -> None:
        self.failed = False
        self._interrupt = threading.Event()

    @property
    def is_interrupted(self) -> bool:
        """Whether there was an interrupt."""
        return self._interrupt.is_set()

    def interrupt(self) -> None:
        """Wake all that wait."""
        self._interrupt.set()

    def check(self) -> None:
        """Refuse a call.

        Raises:
            ModelUnavailableError: A call has failed since the interrupt.
        """
        if self.failed:
            error = ModelUnavailableError("not sent: the run was interrupted")
            error.unsent = True
            raise error

    def wait(self, seconds: float) -> None:
        """Wait, at most until an interrupt."""
        self._interrupt.wait(seconds)


_drains: list[Drain] = []
"""Drains of the runs in progress; a signal concerns the process, so calls obey the latest one."""


@contextmanager
def run_drain() -> Iterator[Drain]:
    """Provide the drain of a run: calls that begin meanwhile obey it to their end."""
    drain = Drain()
    _drains.append(drain)
    try:
        yield drain
    finally:
        _drains.remove(drain)


def current_drain() -> Drain:
    """Return the drain of the run in progress; without a run, one without an interrupt."""
    return next(reversed(_drains), None) or Drain()
