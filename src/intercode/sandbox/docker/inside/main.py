"""How process 1 of a container begins: it calls, is told what to be, and gives up rights.

It runs on the caller's own Python, which is mounted into the container with its libraries and its
loader: an image need not have any. All that it is to import it imports before the first program
starts.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from intercode.rights import permitted
from intercode.sandbox.docker.inside.init import ContainerInit
from intercode.sandbox.native import seccomp, wire
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.launch import CAPABILITY_BITS

_HARD_OPEN_FILES = 4096
_GREETING_SECONDS = 120.0


def main(control: socket.socket, preload: str) -> None:
    """Serve the caller at the other end of `control` until it goes away."""
    for module in json.loads(preload):
        importlib.import_module(module)
    sc.hide_arguments(b"init")
    wire.send(control, {"up": os.getpid()})
    control.settimeout(_GREETING_SECONDS)
    hello, [owner] = wire.receive(control)
    control.settimeout(None)
    _become(control, hello, owner).run()


def _become(control: socket.socket, hello: dict[str, Any], owner: int) -> ContainerInit:
    limits = hello["limits"]
    kept = sum(1 << CAPABILITY_BITS[name] for name in limits["capabilities"])
    rights = permitted()
    os.setgroups([])
    os.umask(0o022)
    sys.setrecursionlimit(10_000)
    _limit(limits)
    init = ContainerInit(control, rights, kept, hello, owner)
    _drop_rights(rights, kept)
    sc.set_seccomp(seccomp.build(limits["debugger"]))
    return init


def _limit(limits: dict[str, Any]) -> None:
    """Per process. How many there are is for the engine: by user id, the machine's would count."""

    def both(which: int, value: int) -> None:
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))

    both(resource.RLIMIT_CORE, 0)
    both(resource.RLIMIT_DATA, limits["memory"])
    both(resource.RLIMIT_MEMLOCK, 1 << 20)
    both(resource.RLIMIT_MSGQUEUE, 1 << 20)
    both(resource.RLIMIT_SIGPENDING, 4096)
    both(resource.RLIMIT_FSIZE, limits["disk"])
    hard = max(limits["open_files"], _HARD_OPEN_FILES)
    hard = min(hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits["open_files"], hard), hard))


def _drop_rights(rights: int, kept: int) -> None:
    """See to it that no program started from here has a capability, but those in `kept`."""
    sc.drop_bounding_set(kept)
    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)
    sc.capset(rights, rights, kept)
    for bit in CAPABILITY_BITS.values():
        if kept >> bit & 1:
            sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_RAISE, bit)
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)  # programs here have the same user id
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
