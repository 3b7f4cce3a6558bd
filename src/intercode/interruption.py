"""Exceptions of the caller: Ctrl-C, and what the handler of another signal raises.

They can strike at any place, also where an error of a socket is expected. The idiom for an alarm is
a handler that raises `TimeoutError`, and a socket raises that as well.

A run handles Ctrl-C itself. Its `Drain` tells the calls of models that the run is to end: calls are
made deep in agents, judges and gateways, on any thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

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
            error = ModelUnavailableError("not asked, as the run was interrupted")
            error.unsent = True
            raise error

    def wait(self, seconds: float) -> None:
        """Wait, at most until an interrupt."""
        self._interrupt.wait(seconds)


_drains: list[Drain] = []
"""Drains of the runs in progress; a signal concerns the process, so calls obey the latest one."""


@contextmanager
def draining() -> Iterator[Drain]:
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


def is_callers(error: BaseException) -> bool:
    """Tell whether the caller raised an exception, and not a call of ours.

    The frame of a signal's handler is in the traceback of the exception that it raises, below the
    line that it has interrupted.

    Args:
        error: An exception that was caught around calls of InterCode's.
    """
    return not isinstance(error, Exception) or is_handlers(error)


def is_handlers(error: BaseException) -> bool:
    """Tell whether the handler of a signal raised an exception, that of Ctrl-C among them.

    Args:
        error: An exception that was caught around calls of the caller's own code, which may raise
            any other by itself.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    entry, handlers = error.__traceback__, {*_handlers()}
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            return True
        entry = entry.tb_next
    return False


def reraise_callers(error: BaseException) -> None:
    """Raise the exception of the caller that a library has turned into an error of its own.

    Args:
        error: The library's error.
    """
    context = error.__context__
    while context is not None:
        if is_callers(context):
            raise context
        context = context.__context__


def _handlers() -> Iterator[CodeType]:
    """Yield the code of each handler of a signal that is in Python."""
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # a partial
            handler = handler.func
        # Of a function or a method; or of an object that can be called.
        call = handler if hasattr(handler, "__code__") else vars(type(handler)).get("__call__")
        code = getattr(call, "__code__", None)
        if isinstance(code, CodeType):
            yield code
