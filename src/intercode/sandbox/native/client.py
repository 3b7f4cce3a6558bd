"""The caller's end of the spawner: starts the process, asks it for sandboxes, restarts it."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from intercode.errors import SandboxError, SandboxTimeoutError, SandboxUnavailableError
from intercode.sandbox.fault import Evidence
from intercode.sandbox.native import cgroup, lease, wire
from intercode.sandbox.ownership import disown_in_forks

_START_SECONDS = 30.0
_END_SECONDS = 120.0
_EVIDENCE_SECONDS = 5.0
_OPEN_FILES = 65_536
_FEWEST_OPEN_FILES = 1024
# The packages' own __init__ is stood in for: it imports Gymnasium, which a spawner has no use for.
_BOOTSTRAP = """
import importlib, json, os, signal, sys, types
# What its caller ignores or blocks, it would ignore or block. Python itself ignores two of them.
kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
for number in signal.valid_signals() - kept:
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:
        pass  # the C library has it for itself
signal.pthread_sigmask(signal.SIG_SETMASK, ())
root, setup = sys.argv[1], json.loads(sys.argv[2])
for package in setup["packages"]:
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [root + package[len("intercode"):].replace(".", "/")]
sys.path += setup["path"]
for module in setup["preload"]:
    importlib.import_module(module)
from intercode.sandbox.native.spawner import main
main(*setup["fds"], setup["name"])
os._exit(0)  # without the last words that a library may have
"""
_PACKAGES = ("intercode", "intercode.sandbox", "intercode.sandbox.native")


class Spawner:
    """A running spawner process. It ends when this is closed, or this process does.

    Args:
        preload: Modules that it loads for its sandboxes' workers.
        path: Folders in which these find what is not Python's own.
    """

    def __init__(self, preload: Sequence[str] = (), path: Sequence[str] = ()) -> None:
        _raise_open_files()
        package = str(Path(__file__).parents[2])
        self.name = lease.name()
        ours, theirs = wire.pair()
        owner = os.pidfd_open(os.getpid())
        try:
            fds = [theirs.fileno(), owner]
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOTSTRAP),
                    *(package, _setup(preload, path, fds, self.name)),
                ],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(owner)
        self.socket = ours
        disown_in_forks(self)
        ours.settimeout(_START_SECONDS)
        try:
            self.facts, _ = wire.receive(ours)
        except (EOFError, OSError) as error:
            self.close()
            raise SandboxError(f"the sandbox spawner did not start: {error}") from error
        if "failed" in self.facts:
            self.close()
            raise unavailable(self.facts)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def launch(self, spec: dict[str, Any]) -> tuple[socket.socket, ProcessOne]:
        """Start a sandbox; its control socket and its process 1, once that is ready.

        Raises:
            SandboxUnavailableError: The machine does not permit it.
            SandboxError: The spawner died.
        """
        ours, theirs = wire.pair()
        ours.settimeout(_START_SECONDS)
        try:
            with theirs:
                wire.send(self.socket, spec, [theirs.fileno()])
            reply: dict[str, Any] = {}
            process = None
            while "ready" not in reply:
                reply, fds = wire.receive(ours)
                if "failed" in reply:
                    raise unavailable(reply)
                # The spawner says who it will be; where that has died, there comes another.
                if fds:
                    process = ProcessOne(fds[0], partial(self.evidence, reply["name"]))
            if process is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except (EOFError, OSError) as error:
            ours.close()
            raise SandboxError(f"a sandbox did not start: {error or 'its process died'}") from error
        except BaseException:
            ours.close()
            raise
        return ours, process

    def evidence(self, name: str) -> Evidence:
        """Evidence of the end of a sandbox, by the name that the spawner gave it."""
        ours, theirs = wire.pair()
        ours.settimeout(_EVIDENCE_SECONDS)
        with ours:
            try:
                with theirs:
                    wire.send(self.socket, {"end_of": name}, [theirs.fileno()])
                return Evidence(keeper=True, **wire.receive(ours)[0])
            except (EOFError, OSError):
                return Evidence(keeper=False)

    def forget(self, layer: Path) -> None:
        """Have it unmount a layer that is about to be deleted."""
        with suppress(OSError):  # it has ended, and its mounts with it
            wire.send(self.socket, {"forget": str(layer)})

    def close(self) -> None:
        """End it and all of its sandboxes, and wait until they are gone. Idempotent."""
        with suppress(OSError):  # it is closed, or the other end has gone first
            # Heard also where a fork that has run no code of ours holds this end, too.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        try:
            self.process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode:  # it was killed
            cgroup.remove_all(self.name)

    def disown(self) -> None:
        """See `ownership.Owned`."""
        self.socket.close()
        self.process.returncode = 0  # not this process's child


class ProcessOne:
    """A sandbox's process 1, which no other can be taken for. It goes with this object.

    Args:
        fd: A descriptor of it, which is this object's from now on.
        evidence: Tells what is known outside of its end, or of its not answering.
    """

    def __init__(
        self, fd: int, evidence: Callable[[], Evidence] = lambda: Evidence(keeper=False)
    ) -> None:
        self._file = FileIO(fd)
        self.evidence = evidence
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill it, and with it all that runs in the sandbox. Returns at once. Idempotent."""
        with self._lock:
            if not self._file.closed:
                # Without the right to, its socket's end will have to do.
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(self._file.fileno(), signal.SIGKILL)

    @property
    def pid(self) -> int:
        """As the machine sees it; -1: it has ended."""
        with self._lock:
            told = "" if self._file.closed else _read(f"/proc/self/fdinfo/{self._file.fileno()}")
        return int(told.partition("Pid:")[2].split()[0]) if told else -1

    @property
    def stopped(self) -> bool:
        """Whether it was stopped from outside: nothing in its sandbox can stop it."""
        return _read(f"/proc/{self.pid}/stat").rpartition(")")[2].lstrip()[:1] in ("T", "t")

    def wait(self, seconds: float) -> bool:
        """Wait until it and all that runs in the sandbox has ended; whether it has."""
        with self._lock:
            return self._file.closed or self._has_ended(seconds)

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Kill it, and wait until it and all that runs in the sandbox has ended. Idempotent.

        Raises:
            SandboxTimeoutError: The kernel could not end it: it waits for a device, for instance.
        """
        self.kill()
        with self._lock:
            if self._file.closed:
                return
            if not self._has_ended(seconds):
                raise SandboxTimeoutError(f"a sandbox did not end within {seconds:.0f} s")
            self._file.close()

    def _has_ended(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        # The kernel tells of the end of a namespace's first process when it was the last.
        return bool(poll.poll(seconds * 1000))

    def disown(self) -> None:
        """See `ownership.Owned`."""
        self._lock = threading.Lock()
        self._file.close()


def _setup(preload: Sequence[str], path: Sequence[str], fds: Sequence[int], name: str) -> str:
    packages = dict.fromkeys(_PACKAGES)
    for module in preload:
        names = module.split(".")[:-1]
        if names[:1] == ["intercode"]:
            packages |= dict.fromkeys(".".join(names[: i + 1]) for i in range(len(names)))
    setup = {"packages": [*packages], "preload": [*preload], "path": [*path]}
    return json.dumps({**setup, "fds": [*fds], "name": name})


def _raise_open_files() -> None:
    """Use what the administrator allows: the usual soft limit of 1024 is 140 sandboxes.

    Raises:
        SandboxUnavailableError: That is too little for a single one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
    if wanted < _FEWEST_OPEN_FILES:
        fix = f"ulimit -n {_FEWEST_OPEN_FILES}"
        raise SandboxUnavailableError(
            f"this process may open only {wanted} descriptors, and sandboxes need "
            f"{_FEWEST_OPEN_FILES}. Raise the limit with `{fix}`; a hard limit only root can raise",
            fix,
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def unavailable(reply: dict[str, Any]) -> SandboxError:
    """The error that says which rule of the machine is in the way, and what mends it."""
    failed, number = str(reply["failed"]), int(reply.get("errno", 0))
    call = failed.removeprefix(f"[Errno {number}] ").partition(":")[0]
    permission = number in (errno.EPERM, errno.EACCES)
    if call in ("unshare", "clone") and number == errno.ENOSPC:
        why, fix = "user.max_user_namespaces is 0 or used up", _MORE_NAMESPACES
    elif call in ("unshare", "clone") and permission:
        why, fix = _why_no_namespaces()
    elif call.startswith("write") and permission:
        why, fix = _why_no_id_map()
    elif call == "setuid":
        why, fix = "sandboxes never run as the machine's root, and there is no other user", _A_USER
    elif call == "open_tree" and permission:
        why, fix = "the sandboxes' user cannot enter a folder on the way to an image", _OTHER_CACHE
    elif call == "mount proc" and permission:
        why, fix = "this container's /proc is masked", _UNMASK
    elif call == "mount overlay":
        why = "overlayfs refused; as an ordinary user it needs Linux 6.6 for files in memory"
        fix = "modprobe overlay"
    elif call == "mount_setattr":
        why = "the image cache's file system cannot be id-mapped (ext4, xfs, btrfs, Linux 5.19)"
        fix = "export INTERCODE_CACHE=/a/folder/on/such/a/file/system"
    else:
        return SandboxError(f"a sandbox did not start: {failed}")
    return SandboxUnavailableError(
        f"sandboxes are not permitted here: {why} ({failed}). To mend it: `{fix}`. "
        "`intercode doctor` tells more.",
        fix,
    )


_MORE_NAMESPACES = "sysctl -w user.max_user_namespaces=65536"
_UNMASK = "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined …"
_A_USER = "docker run --user 1000 … (or --cap-add SYS_ADMIN), or run as an ordinary user"
_OTHER_CACHE = "export INTERCODE_CACHE=/var/cache/intercode"
_NO_APPARMOR = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


def _why_no_namespaces() -> tuple[str, str]:
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor restricts user namespaces", _NO_APPARMOR
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are off", "sysctl -w kernel.unprivileged_userns_clone=1"
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "user namespaces are off", _MORE_NAMESPACES
    return "a seccomp profile forbids namespaces, as Docker's default does", _UNMASK


def _why_no_id_map() -> tuple[str, str]:
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor restricts user namespaces", _NO_APPARMOR
    return (
        "this root has neither the rights of root nor those of an ordinary user",
        "docker run --cap-add SYS_ADMIN … or run as another user",
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
