"""A worker: a module of ours that runs in a sandbox as a fork of its process 1.

It needs nothing of the image, not even a Python, and starts in a millisecond. What `execve` does
for a program is done here by hand: a worker has no more rights, and no more of process 1's things,
than a program started beside it.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

from intercode.sandbox.native import syscalls
from intercode.sandbox.native.inside import Inside, move_up

_OURS = 3


def preloaded(module: str) -> None:
    """Check that a worker's module was loaded while there were files to load it from.

    Raises:
        LookupError: It was not.
    """
    if module not in sys.modules:
        raise LookupError(f"the worker {module!r} was not preloaded: give it to the provider")


def become(module: str, channel: int, errors: int, null: int, inside: Inside) -> NoReturn:
    """In the child: run the module's ``main(socket)``, and end whatever happens.

    Args:
        module: A preloaded module.
        channel: The socket that it talks over.
        errors: What its error output goes to.
        null: ``/dev/null``.
        inside: What process 1 has of its sandbox.
    """
    code = 1
    try:
        # First of all: nothing that comes may happen with process 1's rights.
        user = inside.user
        if inside.ids > 1:
            syscalls.become(user.uid, user.gid, user.groups)
        kept = 0 if user.uid else inside.kept
        syscalls.capset(kept, kept, kept)
        _leave_process_1(channel, errors, null)
        gc.enable()
        with socket.socket(fileno=_OURS) as own:
            sys.modules[module].main(own)
        code = 0
    except BaseException:  # noqa: BLE001 - must not unwind into process 1's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _leave_process_1(channel: int, errors: int, null: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    # Out of the way of the numbers that they are to have.
    sources = [move_up(fd) for fd in (null, null, errors, channel)]
    for number, source in enumerate(sources):
        os.dup2(source, number, inheritable=number < _OURS)
    os.closerange(_OURS + 1, 65536)
