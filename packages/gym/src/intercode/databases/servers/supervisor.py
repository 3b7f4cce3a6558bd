"""Supervisor of a database server: a program that ends the server and removes its files.

The supervisor is a separate program, which imports only the standard library::

    python -I -S supervisor.py FOLDER UID GID MEMORY SIGNAL SERVER ARGUMENTS…

The supervisor ends the server and removes FOLDER in two cases. Its standard input closes, which
happens whenever and however the parent process ends; or the server ends by itself. The server runs
as user UID and group GID, because servers refuse to run as root. MEMORY is the most bytes of data
that each process of the server may have; 0 means no limit. SIGNAL is the number of the signal that
ends the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 10.0  # PostgreSQL kills its remaining processes itself after 5 seconds


def main(arguments: list[str]) -> int:
    """Run the server until it ends or standard input closes; return the server's exit code."""
    folder, uid, gid, memory, ending, *command = arguments
    change = int(uid) != os.geteuid()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)  # only the parent ends the server
    # Linux makes this process the parent of processes whose own parent has ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        with open(os.path.join(folder, "log"), "ab") as log:  # noqa: PTH118, PTH123 - starts fast
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TMPDIR": folder},
                start_new_session=True,
                preexec_fn=lambda: _prepare(int(memory)),
                user=int(uid) if change else None,
                group=int(gid) if change else None,
                extra_groups=[] if change else None,
            )
        _wait(server.pid)
        _end(server, int(ending))
        return server.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(memory: int) -> None:
    """Restore signals, limit memory, and end the server with the supervisor.

    The function runs in the server's process before its program starts.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(pid: int) -> None:
    """Wait until the server ends, or until standard input is closed by all its writers."""
    server_descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(0, select.POLLIN | select.POLLHUP)
        poller.register(server_descriptor, select.POLLIN)
        poller.poll()
    finally:
        os.close(server_descriptor)


def _end(server: subprocess.Popen[bytes], ending: int) -> None:
    if server.poll() is None:
        server.send_signal(ending)
    try:
        server.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _end_children()


def _end_children() -> None:
    """Kill all processes that the server started, even those in other sessions.

    Each process whose parent has ended is a child of this process. A process that still responds
    when the folder is removed would reveal missing files to an agent.
    """
    while True:
        with open("/proc/thread-self/children") as children:  # noqa: PTH123 - starts fast
            for pid in children.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # children of the ended process then become children of this process
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
