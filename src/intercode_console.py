"""The console script ``intercode``, beside the package: it begins before the package is imported.

Until a command begins, and once it has ended, Ctrl-C ends the process at once and says nothing. An
interrupted import would print a traceback, and there is nothing to clean up.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of what Ctrl-C has ended."""


def main() -> int:
    """Run the command line with the process's arguments."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _leave)
    from intercode.cli.main import main as run

    return run()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at Ctrl-C while the block runs, also within `main`."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
