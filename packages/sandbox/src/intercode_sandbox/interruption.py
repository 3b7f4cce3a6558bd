"""Exceptions of the caller: Ctrl-C, and what the handler of another signal raises.

They can strike at any place, also where an error of a socket is expected. The idiom for an alarm is
a handler that raises `TimeoutError`, and a socket raises that as well.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType
from typing import Any


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
