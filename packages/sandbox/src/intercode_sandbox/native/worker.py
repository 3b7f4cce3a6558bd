"""Workers: modules of InterCode in a sandbox, in forks of a Python that has loaded them."""

from __future__ import annotations

import _imp
import _thread
import ctypes
import gc
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from intercode_sandbox.native import wire
from intercode_sandbox.native.process_start import PROGRAM, SOCKET
from intercode_sandbox.native.syscalls import hide_arguments, with_line

_MAX_TRACEBACK_LENGTH = 4000
"""Maximum characters of a traceback that fit into one packet."""
_TRIAL_SECONDS = 60
"""Seconds after which a trial that hangs is killed."""
_LIBRARY = ctypes.PyDLL(None)
"""The C library, called with the interpreter's lock held."""


def main(modules: Sequence[str], caller: str = "") -> NoReturn:
    """Become the zygote of sandboxes with workers, and in its forks' forks a worker.

    In a container this process is process 1 itself. Otherwise the C program forks this process
    twice: into process 1 of a sandbox, which runs no Python, and from there into a worker, which
    does. CPython has a protocol for programs that fork by themselves (C API, "Operating System
    Utilities"; `os_fork_impl` in Modules/posixmodule.c is the model). Each part has its place:

    - Only the main thread exists, and holds the interpreter's lock throughout: `PyDLL` does not
      release it. So no other thread's state or lock is copied.
    - `PyOS_BeforeFork` runs once, in the zygote, which runs no Python afterwards. The call runs
      the hooks of `os.register_at_fork`, and takes the import lock and (from 3.13) the lock of the
      runtime's list of threads. Every fork inherits these locks with their owner, a thread whose
      identity (``pthread_self``) a fork keeps.
    - `PyOS_AfterFork_Child` runs first in a worker: it renews the locks, and releases those taken
      before. It drops other threads' states and pending signals, and calls the hooks, which reseed
      `random`. From 3.13 a release without the first call is a fatal error.
    - `PyOS_AfterFork_Parent` is never called: neither parent runs Python again.
    - The worker's own fork is the C library's, which renews its locks and its thread's number. The
      bare system call, which creates process 1, does not.
    - The collector is off, and its objects are frozen, to share the memory with forks.

    A trial with one worker decides whether this Python conforms to the protocol. If not, process 1
    calls `os.fork`, which is correct in any Python, and costs each sandbox some private memory.

    Args:
        modules: The workers' modules.
        caller: In a container, the path of the caller's socket.
    """
    if caller:
        _call(caller)
    preload(SOCKET, modules)
    with socket.socket(fileno=SOCKET) as link:
        try:
            flaw = protocol_flaw()
            hide_arguments(b"init")
        except OSError as error:
            wire.send(link, {"failed": with_line(error).strerror, "errno": error.errno})
            os._exit(1)
        wire.send(link, {"loaded": len(modules), "flaw": flaw})
        link.detach()
    sys.setrecursionlimit(10_000)
    gc.disable()
    gc.freeze()
    program = ctypes.PyDLL(PROGRAM)
    serve = program.contained if caller else program.zygote
    serve.restype = ctypes.c_char_p
    if flaw:
        module = serve(ctypes.PYFUNCTYPE(ctypes.c_int)(_fork))
    else:
        ctypes.pythonapi.PyOS_BeforeFork()
        module = serve(_LIBRARY.fork)
        ctypes.pythonapi.PyOS_AfterFork_Child()
    for signal_number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_IGN)
    run(module.decode())


def _call(path: str) -> None:
    """Connect to the caller's socket, as descriptor `SOCKET`."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(path)
    if (fd := link.detach()) != SOCKET:
        os.dup2(fd, SOCKET, inheritable=False)
    os.closerange(SOCKET + 1, 65536)


def _fork() -> int:
    """Fork by Python itself; return -1 if the kernel refuses, like C's `fork`."""
    try:
        return os.fork()
    except OSError:
        return -1


def protocol_flaw() -> str:
    """Fork one worker by the protocol, in a separate process.

    Returns:
        The worker's error output and exit code; empty if it answered.
    """
    errors = os.memfd_create("errors")
    try:
        pid = os.fork()
        if pid == 0:
            _try_protocol(errors)
        status = os.waitpid(pid, 0)[1]
        text = os.pread(errors, _MAX_TRACEBACK_LENGTH, 0).decode(errors="replace")
    finally:
        os.close(errors)
    return f"{text}\nexit code {os.waitstatus_to_exitcode(status)}" if status else ""


def _try_protocol(errors: int) -> NoReturn:
    """End this process with the exit code of its worker: 0 if the worker answers."""
    code, status = 1, ctypes.c_int()
    try:
        os.dup2(errors, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _LIBRARY.alarm(_TRIAL_SECONDS)
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = _LIBRARY.fork()
        if pid == 0:
            _LIBRARY.alarm(_TRIAL_SECONDS)  # an alarm is not inherited
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _use_interpreter()
            os._exit(0)
        # The wait is in C: before a call of PyOS_AfterFork_Parent, nothing may release the lock.
        _LIBRARY.waitpid(pid, ctypes.byref(status), 0)
        code = abs(os.waitstatus_to_exitcode(status.value))
    except BaseException:  # noqa: BLE001 - must not unwind into what it is a fork of
        traceback.print_exc()
    finally:
        os._exit(code)


def _use_interpreter() -> None:
    """Use the parts that a fork can leave broken: the import lock, the collector, threads."""
    _imp.acquire_lock()
    _imp.release_lock()
    gc.collect()
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lock.release, ())
    lock.acquire()


def preload(control: int, modules: Sequence[str]) -> None:
    """Import the workers' modules. Report an import failure to the caller and exit.

    Args:
        control: The descriptor of the caller's socket.
        modules: Their names.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - it may raise any, SystemExit too
            report = {
                "error": f"{type(error).__name__}: {error}"[:_MAX_TRACEBACK_LENGTH],
                "unloaded": name,
            }
            with socket.socket(fileno=control) as caller:
                wire.send(
                    caller, {**report, "traceback": traceback.format_exc()[-_MAX_TRACEBACK_LENGTH:]}
                )
            os._exit(1)


def run(module: str) -> NoReturn:
    """Run a module's ``main(socket)`` with the socket of descriptor 3; always exit afterwards.

    Args:
        module: A preloaded module.
    """
    code = 1
    try:
        gc.enable()
        with socket.socket(fileno=SOCKET) as connection:
            sys.modules[module].main(connection)
        code = 0
    except BaseException:  # noqa: BLE001 - must not unwind into what it is a fork of
        traceback.print_exc()
    finally:
        os._exit(code)
