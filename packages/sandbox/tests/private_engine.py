"""A Docker engine for the tests alone: its own socket, folders, mounts and processes.

It runs in a mount and a process namespace of its own, so that nothing of it outlives it: when its
first process ends, by whatever signal, the kernel ends the others and lets go of the mounts. It has
no bridge, touches no firewall rule, and pulls no image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from intercode_sandbox.docker.mounted_runtime import SHARED_ROOT
from waiting import PATIENCE, eventually

_CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
_REMAP = """
chmod o+x $0; printf '%%s:%d:65536\\n' nobody nogroup > $0/ids
mount --bind $0/ids /etc/subuid && mount --bind $0/ids /etc/subgid
exec "$@" --userns-remap=nobody:nogroup
"""
REMAPPED = 1_610_612_736
"""Which id of this machine's a container's 0 is, where the engine remaps them."""
_PLAIN = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false")


class PrivateEngine:
    """Started on entering, gone on leaving.

    Args:
        folder: An empty folder for all that it keeps.
        remap: Whether containers have ids of their own.
    """

    def __init__(self, folder: Path, remap: bool = False) -> None:
        self.folder = folder
        self.remap = remap
        self.url = f"unix://{folder}/socket"
        self._group = f"/intercode-tests-{os.getpid()}-{folder.name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = pytest.MonkeyPatch()

    def __enter__(self) -> PrivateEngine:
        if not self.remap:
            self._environment.setenv(SHARED_ROOT, "1")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.undo()
        self.stop()
        for hierarchy in Path("/sys/fs/cgroup").glob("*"):
            for place in (hierarchy, hierarchy.parent):
                group = Path(f"{place}{self._group}")
                # Of containers that were killed with it, it has not removed its folders.
                for folder in (*group.glob("*/"), group):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        (self.folder / "socket").unlink(missing_ok=True)
        (self.folder / "pid").unlink(missing_ok=True)
        # A killed one leaves the pid of its containerd there. In the new namespace that small
        # number is soon some thread's: dockerd would take that for its containerd, and wait.
        shutil.rmtree(self.folder / "exec", ignore_errors=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *_CONTAINED,
                    *(("sh", "-c", _REMAP % REMAPPED, str(self.folder)) if self.remap else ()),
                    *("dockerd", f"--host={self.url}", f"--data-root={self.folder}/data"),
                    *(f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"),
                    *(f"--cgroup-parent={self._group}", *_PLAIN),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"},
            )
        process = self._process
        eventually(lambda: self._answers() or process.poll() is not None)
        if process.poll() is not None or not self._answers():
            raise RuntimeError("dockerd did not start:\n" + self.log()[-3000:])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end, or with SIGKILL end it; with it goes all that it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        daemon = self._daemon(process)
        if daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(daemon, number)
        try:
            process.wait(2 * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def log(self) -> str:
        """What it said."""
        return (self.folder / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(self.folder / "socket"))
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in client.recv(100)
        return False

    @staticmethod
    def _daemon(process: subprocess.Popen[bytes]) -> int | None:
        """The pid of dockerd, as seen here: the child of what contains it."""
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            return int(children[0]) if children else None
        return None
