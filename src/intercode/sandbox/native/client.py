"""The caller's end of the spawner: starts the process, asks it for sandboxes, restarts it."""

from __future__ import annotations

import errno
import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from intercode.errors import SandboxError, SandboxUnavailableError
from intercode.sandbox.native import lease, wire

_START_SECONDS = 30.0
_OPEN_FILES = 65_536
# The packages' own __init__ is stood in for: it imports Gymnasium, which a spawner has no use for.
_BOOTSTRAP = """
import importlib, json, os, sys, types
root, fd, name, setup = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
for package in setup["packages"]:
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [root + package[len("intercode"):].replace(".", "/")]
sys.path += setup["path"]
for module in setup["preload"]:
    importlib.import_module(module)
from intercode.sandbox.native.spawner import main
main(fd, name)
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
        ours, theirs = wire.pair()
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOTSTRAP),
                    *(package, str(theirs.fileno()), lease.name(), _setup(preload, path)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )
        self.socket = ours
        self.lock = threading.Lock()
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

    def launch(self, spec: dict[str, Any]) -> socket.socket:
        """Start a sandbox; its control socket, once its process 1 is ready.

        Raises:
            SandboxUnavailableError: The machine does not permit it.
            SandboxError: The spawner died.
        """
        ours, theirs = wire.pair()
        ours.settimeout(_START_SECONDS)
        try:
            with theirs:
                wire.send(self.socket, spec, [theirs.fileno()])
            reply, _ = wire.receive(ours)
        except (EOFError, OSError) as error:
            ours.close()
            raise SandboxError(f"a sandbox did not start: {error or 'its process died'}") from error
        if "failed" in reply:
            ours.close()
            raise unavailable(reply)
        return ours

    def forget(self, layer: Path) -> None:
        """Have it unmount a layer that is about to be deleted."""
        with suppress(OSError):  # it has ended, and its mounts with it
            wire.send(self.socket, {"forget": str(layer)})

    def close(self) -> None:
        """End it and all of its sandboxes, and wait until they are gone. Idempotent."""
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_START_SECONDS)
            return
        self.process.kill()
        self.process.wait()


def _setup(preload: Sequence[str], path: Sequence[str]) -> str:
    packages = dict.fromkeys(_PACKAGES)
    for module in preload:
        names = module.split(".")[:-1]
        if names[:1] == ["intercode"]:
            packages |= dict.fromkeys(".".join(names[: i + 1]) for i in range(len(names)))
    return json.dumps({"packages": [*packages], "preload": [*preload], "path": [*path]})


def _raise_open_files() -> None:
    """Use what the administrator allows: the usual soft limit of 1024 is 140 sandboxes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
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
