"""Recognition of exceptions of the caller: Ctrl-C, and exceptions raised by signal handlers.

Such an exception can be raised at any line, even in a call whose socket errors InterCode handles.
The type does not distinguish the caller's exceptions: handlers of alarms often raise
`TimeoutError`, which a socket raises, too. Therefore this module examines the traceback.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType
from typing import Any


def is_callers(error: BaseException) -> bool:
    """Return whether an exception is the caller's, rather than an error of a call in InterCode.

    The caller's exceptions are of two kinds. The first are exceptions outside `Exception`, such as
    Ctrl-C and `SystemExit`. The second are all that a signal handler raises: their traceback
    contains the handler's frame, below the interrupted line.

    Args:
        error: An exception caught around calls inside InterCode.
    """
    return not isinstance(error, Exception) or is_handlers(error)


def is_handlers(error: BaseException) -> bool:
    """Return whether a signal handler raised an exception; True also for Ctrl-C.

    Args:
        error: An exception caught around a call of the caller's code. Such code may raise any
            exception without a signal.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    traceback_entry, handler_codes = error.__traceback__, {*_handler_codes()}
    while traceback_entry is not None:
        if traceback_entry.tb_frame.f_code in handler_codes:
            return True
        traceback_entry = traceback_entry.tb_next
    return False


def reraise_callers(error: BaseException) -> None:
    """Raise the caller's exception that a library has replaced by an error of the library.

    Return if none of the exceptions before the library's error was the caller's.

    Args:
        error: The library's error. Its ``__context__`` leads to the replaced exceptions.
    """
    replaced_error = error.__context__
    while replaced_error is not None:
        if is_callers(replaced_error):
            raise replaced_error
        replaced_error = replaced_error.__context__


def _handler_codes() -> Iterator[CodeType]:
    """Yield the code object of each signal handler written in Python."""
    for signal_number in signal.valid_signals():
        handler: Any = signal.getsignal(signal_number)
        while hasattr(handler, "func"):  # a `functools.partial`
            handler = handler.func
        # A handler is a function, a method, or an object with a method __call__.
        handler_function = (
            handler if hasattr(handler, "__code__") else vars(type(handler)).get("__call__")
        )
        code = getattr(handler_function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
