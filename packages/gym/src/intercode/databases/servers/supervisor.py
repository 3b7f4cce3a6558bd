"""Supervisor of a database server, which ends the server and leaves nothing behind.

The supervisor is a separate program, with the standard library only::

    python -I -S supervisor.py FOLDER UID GID MEMORY SIGNAL SERVER ARGUMENTS…

The supervisor ends the server and removes the folder as soon as its standard input closes, which
happens however its parent ends, or as soon as the server itself has ended. The server runs as UID
and GID, because servers refuse to run as root. MEMORY is the number of bytes of data that each of
its processes may have, if not 0. SIGNAL ends the server.
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
_GRACE_SECONDS = 10.0  # PostgreSQL itself kills its remaining processes after 5


def main(arguments: list[str]) -> int:
    """Run the server until the standard input closes; return the server's exit code."""
    folder, uid, gid, memory, ending, *command = arguments
    change = int(uid) != os.geteuid()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)  # the parent decides, by closing the pipe
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # this process adopts orphans
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
    """Prepare the server's process, after the change of user."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_DFL)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(pid: int) -> None:
    """Wait until the server ends or no process holds the other end of the standard input."""
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
    """End the processes that the server started, in any session: this process has adopted them.

    A process that still responds when the folder vanishes would reveal missing files to an agent.
    """
    while True:
        with open("/proc/thread-self/children") as children:  # noqa: PTH123 - starts fast
            for pid in children.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # its children then become children of this process, too
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
