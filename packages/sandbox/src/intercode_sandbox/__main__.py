"""``python -m intercode_sandbox``: starts the command line, and exits quietly on Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPT_EXIT_CODE = 130
"""The exit code of a process ended by Ctrl-C."""


def main() -> int:
    """Run the command line with the process's arguments.

    During imports, and after the command, Ctrl-C ends the process at once. An interrupted import
    would print a traceback. The command itself closes its sandboxes before it returns.

    Returns:
        The exit code; 130 after Ctrl-C.
    """
    initial_handler = signal.getsignal(signal.SIGINT)
    # Any handler but Python's default one means that the parent process started this process with
    # SIGINT ignored, as ``nohup`` does with SIGHUP. The signal stays ignored.
    idle_handler = _leave if initial_handler is signal.default_int_handler else initial_handler
    signal.signal(signal.SIGINT, idle_handler)
    from intercode_sandbox.command_line import main as run

    try:
        signal.signal(signal.SIGINT, initial_handler)
        return run()
    except KeyboardInterrupt:
        return _INTERRUPT_EXIT_CODE
    finally:
        signal.signal(signal.SIGINT, idle_handler)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPT_EXIT_CODE)


if __name__ == "__main__":
    sys.exit(main())
