"""Workers: modules of ours that run in a sandbox, in forks of a Python that has loaded them."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from intercode.sandbox.native import wire
from intercode.sandbox.native.bootstrap import PROGRAM, SOCKET
from intercode.sandbox.native.syscalls import hide_arguments

_TOLD = 4000
"""Characters of a traceback that fit into one packet."""


def main(modules: Sequence[str]) -> NoReturn:
    """Be the zygote of sandboxes with workers, and in its forks' forks a worker.

    Args:
        modules: The workers' modules.
    """
    preload(SOCKET, modules)
    with socket.socket(fileno=SOCKET) as link:
        wire.send(link, {"loaded": len(modules)})
        link.detach()
    hide_arguments(b"init")
    sys.setrecursionlimit(10_000)
    # What is shared with every child should stay shared: no collector, no moved counts.
    gc.disable()
    gc.freeze()
    # It keeps the interpreter's lock, which nothing else here wants.
    program = ctypes.PyDLL(PROGRAM)
    program.zygote.restype = ctypes.c_char_p
    module = program.zygote()
    ctypes.pythonapi.PyOS_AfterFork_Child()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    run(module.decode())


def preload(control: int, modules: Sequence[str]) -> None:
    """Import the workers' modules. One that cannot be is told to the caller, and ends the process.

    Args:
        control: The descriptor of the caller's socket.
        modules: Their names.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001, PERF203 - it may raise any, SystemExit too
            said = {"error": f"{type(error).__name__}: {error}"[:_TOLD], "unloaded": name}
            with socket.socket(fileno=control) as caller:
                wire.send(caller, {**said, "traceback": traceback.format_exc()[-_TOLD:]})
            os._exit(1)


def run(module: str) -> NoReturn:
    """Run a module's ``main(socket)``, with the socket that is descriptor 3; end whatever happens.

    Args:
        module: A module that was loaded.
    """
    code = 1
    try:
        gc.enable()
        with socket.socket(fileno=SOCKET) as talk:
            sys.modules[module].main(talk)
        code = 0
    except BaseException:  # noqa: BLE001 - must not unwind into what it is a fork of
        traceback.print_exc()
    finally:
        os._exit(code)
