"""How process 1 of a container begins: it calls, is told what to be, and gives up rights.

It runs on the caller's own Python, which is mounted into the container with its libraries and its
loader: an image need not have any. All that it is to import it imports before the first program
starts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from intercode.capabilities import mask
from intercode.rights import permitted
from intercode.sandbox.docker.inside.init import Init
from intercode.sandbox.native import seccomp, wire
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.worker import preload as load_all

_HARD_OPEN_FILES = 4096
_GREETING_SECONDS = 120.0


def main(control: socket.socket, preload: str) -> None:
    """Serve the caller at the other end of `control` until it goes away."""
    load_all(control.fileno(), json.loads(preload))
    sc.hide_arguments(b"init")
    wire.send(control, {"up": os.getpid()})
    control.settimeout(_GREETING_SECONDS)
    hello, [owner] = wire.receive(control)
    control.settimeout(None)
    _become(control, hello, owner).run()


def _become(control: socket.socket, hello: dict[str, Any], owner: int) -> Init:
    limits = hello["limits"]
    kept = mask(limits["capabilities"])
    rights = permitted()
    os.setgroups([])
    os.umask(0o022)
    sys.setrecursionlimit(10_000)
    _limit(resource.RLIMIT_CORE, 0)
    # How many processes there are is for the engine: by user id, the machine's would count.
    _limit_each(limits, max(limits["open_files"], _HARD_OPEN_FILES))
    init = Init(control, rights, kept, hello, owner)
    _drop_rights(rights, kept)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    chroot = "sys_chroot" in limits["capabilities"]
    sc.set_seccomp(seccomp.build(limits["debugger"], chroot))
    return init


def _limit_each(limits: dict[str, Any], open_files: int) -> None:
    """Limit what this process, and each that it starts, may use.

    Args:
        limits: The sandbox's.
        open_files: The hard limit of descriptors.
    """
    _limit(resource.RLIMIT_DATA, limits["memory"])
    _limit(resource.RLIMIT_MEMLOCK, 1 << 20)
    _limit(resource.RLIMIT_MSGQUEUE, 1 << 20)
    _limit(resource.RLIMIT_SIGPENDING, 4096)
    _limit(resource.RLIMIT_FSIZE, limits["disk"])
    hard = _at_most_hard(resource.RLIMIT_NOFILE, open_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits["open_files"], hard), hard))


def _limit(which: int, value: int) -> None:
    """Set a resource's soft and hard limit, as far as the hard one permits."""
    value = _at_most_hard(which, value)
    resource.setrlimit(which, (value, value))


def _at_most_hard(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _drop_rights(rights: int, kept: int) -> None:
    """Give programs started from here no capability but those in `kept`; keep `rights` oneself."""
    sc.drop_bounding_set(kept)
    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)
    sc.capset(rights, rights, kept)
    for bit in range(kept.bit_length()):
        if kept >> bit & 1:
            sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_RAISE, bit)
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)  # or programs of the same user id could trace it
