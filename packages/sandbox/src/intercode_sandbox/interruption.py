"""Exceptions of the caller: Ctrl-C, and exceptions raised by handlers of other signals.

The exceptions can strike anywhere, even during a call whose socket error is expected. The idiom for
an alarm is a handler that raises `TimeoutError`, which a socket raises, too.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType
from typing import Any


def is_callers(error: BaseException) -> bool:
    """Return whether the caller raised an exception, not a call inside InterCode.

    The traceback of an exception raised by a signal's handler contains the handler's frame, below
    the interrupted line.

    Args:
        error: An exception caught around calls inside InterCode.
    """
    return not isinstance(error, Exception) or is_handlers(error)


def is_handlers(error: BaseException) -> bool:
    """Return whether a signal's handler raised an exception, Ctrl-C included.

    Args:
        error: An exception caught around calls of the caller's code, which may raise any other
            exception by itself.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    entry, handlers = error.__traceback__, {*_handler_codes()}
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            return True
        entry = entry.tb_next
    return False


def reraise_callers(error: BaseException) -> None:
    """Raise the caller's exception that a library has converted into its own error.

    Args:
        error: The library's error.
    """
    context = error.__context__
    while context is not None:
        if is_callers(context):
            raise context
        context = context.__context__


def _handler_codes() -> Iterator[CodeType]:
    """Yield the code object of each signal handler written in Python."""
    for signal_number in signal.valid_signals():
        handler: Any = signal.getsignal(signal_number)
        while hasattr(handler, "func"):  # a partial
            handler = handler.func
        # The code of a function or method, or of a callable object.
        call = handler if hasattr(handler, "__code__") else vars(type(handler)).get("__call__")
        code = getattr(call, "__code__", None)
        if isinstance(code, CodeType):
            yield code
