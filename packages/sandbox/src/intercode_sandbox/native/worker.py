"""Workers: processes in a sandbox that run a module of InterCode.

A worker descends, by forks, from a Python process that has imported the modules. So the image needs
no Python. For native sandboxes this process is the zygote, which runs outside them.
"""

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
"""Maximum characters of a traceback in a message, and maximum bytes of a trial's error output. A
message of this size fits into one packet."""
_TRIAL_SECONDS = 60
"""Seconds after which an alarm kills a trial that hangs."""
_LIBRARY = ctypes.PyDLL(None)
"""The C library. ``PyDLL`` does not release the interpreter's lock during a call."""


def main(modules: Sequence[str], caller: str = "") -> NoReturn:
    """Run the zygote of sandboxes with workers. In the workers, its forks, run their module.

    The C program forks this process twice. The first fork becomes process 1 of a sandbox, and runs
    no Python. From there the second fork becomes a worker, and runs Python. In a container this
    process is process 1 itself, and is forked only into workers.

    CPython has a protocol for programs that fork by themselves: C API, "Operating System
    Utilities". The model is ``os_fork_impl`` in Modules/posixmodule.c. The parts of the protocol:

    - Only the main thread exists, and holds the interpreter's lock throughout: ``PyDLL`` does not
      release it. So no other thread's state or lock is copied.
    - `PyOS_BeforeFork` runs once, in the zygote, which runs no Python afterwards. The call runs
      the hooks of `os.register_at_fork`, and takes the import lock and (from 3.13) the lock of the
      runtime's list of threads. Every fork inherits these locks with their owner, a thread whose
      identity (``pthread_self``) a fork keeps.
    - `PyOS_AfterFork_Child` runs first in a worker. The call renews the locks, and releases the
      locks that `PyOS_BeforeFork` has taken. The call also drops other threads' states and pending
      signals, and calls the hooks, which reseed `random`. From 3.13 the release of a lock that
      `PyOS_BeforeFork` has not taken is a fatal error.
    - ``PyOS_AfterFork_Parent`` is never called: neither parent runs Python again.
    - The fork that creates a worker is `fork` of the C library. This function renews the library's
      locks and the number of the thread. The bare system call, which creates process 1, does not.
    - The garbage collector is off, and its objects are frozen. So the forks share their memory.

    A trial with one worker decides whether this Python conforms to the protocol. Otherwise process
    1 calls `os.fork`, which is correct in any Python, but costs each sandbox some private memory.

    Args:
        modules: The names of the modules that can run as workers.
        caller: In a container, the path of the caller's socket; otherwise empty.
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
    program_library = ctypes.PyDLL(PROGRAM)
    serve = program_library.contained if caller else program_library.zygote
    serve.restype = ctypes.c_char_p
    if flaw:
        module_name = serve(ctypes.PYFUNCTYPE(ctypes.c_int)(_fork))
    else:
        ctypes.pythonapi.PyOS_BeforeFork()
        module_name = serve(_LIBRARY.fork)
        ctypes.pythonapi.PyOS_AfterFork_Child()
    for signal_number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_IGN)
    run(module_name.decode())


def _call(socket_path: str) -> None:
    """Connect to the caller's socket by descriptor `SOCKET`; close all higher descriptors."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(socket_path)
    if (fd := link.detach()) != SOCKET:
        os.dup2(fd, SOCKET, inheritable=False)
    os.closerange(SOCKET + 1, 65536)


def _fork() -> int:
    """Fork by `os.fork`; return -1 if the kernel refuses the fork, like C's ``fork``."""
    try:
        return os.fork()
    except OSError:
        return -1


def protocol_flaw() -> str:
    """Try the protocol of `main`: fork one worker by it, in a separate process.

    Returns:
        The error output and the exit code of the trial; empty if the trial succeeded.

    Raises:
        OSError: The kernel refused the separate process, or the memory file for its output.
    """
    error_fd = os.memfd_create("errors")
    try:
        pid = os.fork()
        if pid == 0:
            _try_protocol(error_fd)
        status = os.waitpid(pid, 0)[1]
        error_text = os.pread(error_fd, _MAX_TRACEBACK_LENGTH, 0).decode(errors="replace")
    finally:
        os.close(error_fd)
    return f"{error_text}\nexit code {os.waitstatus_to_exitcode(status)}" if status else ""


def _try_protocol(error_fd: int) -> NoReturn:
    """Fork a worker by the protocol, and end this process with the worker's exit code.

    The code is 0 if the worker can use the interpreter. If a signal killed the worker, the code is
    the signal's number.

    Args:
        error_fd: The descriptor to which error output is written.
    """
    exit_code, status = 1, ctypes.c_int()
    try:
        os.dup2(error_fd, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _LIBRARY.alarm(_TRIAL_SECONDS)
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = _LIBRARY.fork()
        if pid == 0:
            _LIBRARY.alarm(_TRIAL_SECONDS)  # a fork does not inherit its parent's alarm
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _use_interpreter()
            os._exit(0)
        # C waits for the worker, because os.waitpid would release the interpreter's lock. Nothing
        # may release that lock before a call of PyOS_AfterFork_Parent.
        _LIBRARY.waitpid(pid, ctypes.byref(status), 0)
        exit_code = abs(os.waitstatus_to_exitcode(status.value))
    except BaseException:  # noqa: BLE001 - a fork must not continue the code of its parent
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def _use_interpreter() -> None:
    """Use the parts of the interpreter that a fork can break.

    The parts are the import lock, the garbage collector, and threads.
    """
    _imp.acquire_lock()
    _imp.release_lock()
    gc.collect()
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lock.release, ())
    lock.acquire()


def preload(control_fd: int, modules: Sequence[str]) -> None:
    """Import the workers' modules. Report an import failure to the caller and exit.

    Args:
        control_fd: The descriptor of the caller's socket.
        modules: The names of the modules.
    """
    for module_name in modules:
        try:
            importlib.import_module(module_name)
        except BaseException as error:  # noqa: BLE001 - an import may raise any, even SystemExit
            report = {
                "error": f"{type(error).__name__}: {error}"[:_MAX_TRACEBACK_LENGTH],
                "unloaded": module_name,
            }
            with socket.socket(fileno=control_fd) as caller_socket:
                wire.send(
                    caller_socket,
                    {**report, "traceback": traceback.format_exc()[-_MAX_TRACEBACK_LENGTH:]},
                )
            os._exit(1)


def run(module: str) -> NoReturn:
    """Run ``main(socket)`` of a module, with the socket of descriptor 3, and exit.

    Args:
        module: The name of an imported module.
    """
    exit_code = 1
    try:
        gc.enable()
        with socket.socket(fileno=SOCKET) as connection:
            sys.modules[module].main(connection)
        exit_code = 0
    except BaseException:  # noqa: BLE001 - a fork must not continue the code of its parent
        traceback.print_exc()
    finally:
        os._exit(exit_code)
