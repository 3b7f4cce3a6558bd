"""One container: started by the engine, and from then on ours over a socket of its process 1.

The socket's folder is mounted into the container; once process 1 has connected, nothing listens
there. Process 1 ends when our end closes or this process ends; then the engine removes the
container.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import stat
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intercode_sandbox.accounts import MAX_TABLE_BYTES, Account, resolve_account
from intercode_sandbox.base import Evidence, Limits
from intercode_sandbox.capabilities import mask
from intercode_sandbox.docker.engine import (
    DOCKER_HOST_COMMAND,
    LABEL,
    LEASE,
    Engine,
    MissingObjectError,
)
from intercode_sandbox.docker.images import EngineImage
from intercode_sandbox.docker.runtime_mounts import CONTAINER_FOLDER, RuntimeFolder
from intercode_sandbox.errors import SandboxError, SandboxUnavailableError
from intercode_sandbox.files import Descriptor
from intercode_sandbox.images.base import HOSTNAME
from intercode_sandbox.native import seccomp, wire
from intercode_sandbox.native.identity import OWN_THREADS
from intercode_sandbox.native.preflight import load_error
from intercode_sandbox.native.process import END_SECONDS, InitProcess
from intercode_sandbox.native.zygote import MASKED_FILES, describe_failure
from intercode_sandbox.ownership import disown_in_forks
from intercode_sandbox.units import MIB

if TYPE_CHECKING:
    from docker import APIClient

_START_SECONDS = 120.0
_POLL_SECONDS = 0.25
_HANG_UP_SECONDS = 2.0
_EVENT_WAIT_SECONDS = 10
_EVENTS_SECONDS = 24 * 3600
_SIGNAL_EXIT_BASE = 128
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID")
"""The capabilities of process 1, in addition to those that `Limits.capabilities` names, which are
all that it hands on."""
_OVERHEAD = 96 * MIB
"""Memory for process 1 itself, with the library that workers use."""
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_IPC_SYSCTLS = {
    "kernel.msgmni": "64",
    "kernel.shmmni": "128",
    "kernel.sem": "32000 8192 500 128",
    "fs.mqueue.queues_max": "16",
}
"""Limits of what outlives programs, as native sandboxes have them: it must leave room for others,
and be few enough to be removed at once."""
_SHM = "rw,nosuid,nodev,noexec,mode=1777,size=64m,nr_inodes=4096"


@dataclass(frozen=True)
class Key:
    """The traits that containers must share to stand in for each other."""

    image: EngineImage
    network: bool
    memory: int
    processes: int
    disk: int
    files: int
    open_files: int
    capabilities: tuple[str, ...]
    debugger: bool

    @classmethod
    def of(cls, image: EngineImage, network: bool, limits: Limits) -> Key:
        """Return the key of a sandbox with these limits."""
        names = ("memory", "processes", "disk", "files", "open_files", "capabilities", "debugger")
        return cls(image, network, *(getattr(limits, name) for name in names))


@dataclass(eq=False)
class Container:
    """A container whose process 1 is ready."""

    key: Key
    id: str
    control: socket.socket
    process: InitProcess | None
    """Process 1 of the container; None where the engine's processes do not show to this one."""
    engine: Engine
    account: Account
    """The image's user."""
    ids: int
    """How many users there can be."""
    workers: tuple[str, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        disown_in_forks(self)

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Send one request to its process 1, outside of any sandbox.

        Raises:
            SandboxError: It failed, or process 1 is gone.
        """
        answered = False
        try:
            with self._lock:
                wire.send(self.control, message, fds, packed=True)
                reply, descriptors = wire.receive(self.control)
                answered = True
        except (EOFError, OSError) as error:
            raise SandboxError(f"container {self.id[:12]} died: {error}") from error
        finally:
            if not answered:
                self.close()  # the next question must not get this one's answer
        if "errno" in reply:
            reason = reply["error"] or os.strerror(reply["errno"])
            raise SandboxError(f"container {self.id[:12]} failed at {message['op']!r}: {reason}")
        return reply, descriptors

    def disown(self) -> None:
        """See `ownership.Owned`."""
        self._lock = threading.Lock()
        self.control.close()
        if self.process is not None:
            self.process.disown()

    @property
    def alive(self) -> bool:
        """Whether its process 1 is there, as far as can be told while it is not asked anything."""
        if not self._lock.acquire(blocking=False):
            return True  # an answer that is on its way would look like an end
        try:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            return not poll.poll(0)
        except ValueError:  # we have closed it
            return False
        finally:
            self._lock.release()

    def root(self) -> int:
        """Return a descriptor of its root, the caller's to close."""
        # The kernel does not let it be sent while programs of any container have too many on
        # their way: all of them count for one user.
        with suppress(OSError):  # an ordinary user may not look there
            if self.process is not None:
                path = f"/proc/{self.process.pid}/root"
                return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self.ask({"op": "root"})[1][0]

    def evidence(self, mute: bool) -> Evidence:
        """Return the engine's evidence of its end, or if it is `mute`, of its not answering."""
        try:
            with self.engine.errors("looking at a container") as api:
                if mute:
                    state = api.inspect_container(self.id)["State"]
                    return Evidence(
                        True, was_killed_outside=state["Paused"], running=state["Running"]
                    )
                return _read_exit_evidence(api, self.id)
        except SandboxError:
            return Evidence(is_keeper_alive=False)

    def close(self) -> None:
        """End it: when this returns, all that ran in it has ended. Idempotent.

        Where the kernel takes longer than `END_SECONDS` for it, its end is the engine's alone.

        What is left is the engine's to remove.
        """
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        if self.process is not None:
            # An ordinary user may not kill it: then it ends when it hears of the hang-up.
            if not self.process.end(_HANG_UP_SECONDS):
                self.hand_over()
                self.process.wait(END_SECONDS)
            self.process.end()

    def hand_over(self) -> None:
        """Ask the engine to kill the container, and do not wait for its end."""
        with suppress(SandboxError), self.engine.errors("ending a container") as api:
            api.kill(self.id)

    def remove(self) -> None:
        """End it and see to it that it is gone."""
        self.close()
        with suppress(MissingObjectError), self.engine.errors("removing a container") as api:
            api.remove_container(self.id, force=True, v=True)


def start_container(engine: Engine, runtime_folder: RuntimeFolder, key: Key) -> Container:
    """Start a container, and wait until it is ready.

    Raises:
        ImageError: The engine has no such image.
        SandboxUnavailableError: The engine does not see this machine's files.
        SandboxError: It did not start.
    """
    socket_folder = runtime_folder.link()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    identity = ""
    try:
        with listener:
            _bind(listener, socket_folder)
            listener.listen(1)
            try:
                with engine.errors("starting a container") as api:
                    response = api.create_container_from_config(
                        _container_config(runtime_folder, socket_folder, key)
                    )
                    identity = response["Id"]
                    api.start(identity)
            except SandboxError as error:
                raise _explain_error(error, engine) from error
            control = _accept(listener, engine, identity)
        try:
            account, ids = _greet(control, identity, key)
        except BaseException:
            control.close()
            raise
        process = _open_init_process(control)
        return Container(
            key, identity, control, process, engine, account, ids, runtime_folder.preload
        )
    except BaseException:
        if identity:
            with suppress(SandboxError), engine.errors("removing a container") as api:
                api.remove_container(identity, force=True, v=True)
        raise
    finally:
        shutil.rmtree(socket_folder, ignore_errors=True)


def _read_exit_evidence(api: APIClient, identity: str) -> Evidence:
    """Tell how a container has ended, by the engine's events: it is removed at its end."""
    now = time.time()
    actions: set[str] = set()
    code: int | None = None
    with closing(
        api.events(
            since=int(now - _EVENTS_SECONDS),
            until=int(now + _EVENT_WAIT_SECONDS),
            filters={"container": identity, "event": ["die", "kill", "oom"]},
            decode=True,
        )
    ) as events:
        for event in events:
            actions.add(event["Action"])
            if event["Action"] == "die":
                code = int(event["Actor"]["Attributes"]["exitCode"])
                break
    return Evidence(
        is_keeper_alive=True,
        was_killed_outside="kill" in actions,
        # The engine counts as a shell does.
        exit_code=code if code is None or code <= _SIGNAL_EXIT_BASE else _SIGNAL_EXIT_BASE - code,
        starved="oom" in actions,
    )


def _bind(listener: socket.socket, socket_folder: Path) -> None:
    """Bind by way of a descriptor: a socket's name may have 107 bytes, and a cache's more."""
    with Descriptor(os.open(socket_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        listener.bind(f"/proc/self/fd/{fd}/s")
    (socket_folder / "s").chmod(0o666)  # who may go there, the folder above says


def _container_config(
    runtime_folder: RuntimeFolder, socket_folder: Path, key: Key
) -> dict[str, Any]:
    mounts = [
        (socket_folder, CONTAINER_FOLDER),
        *((path, f"{CONTAINER_FOLDER}/{name}") for name, path in runtime_folder.mounts.items()),
    ]
    return {
        "Image": key.image.reference,
        "Entrypoint": runtime_folder.command(),
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        # What an image sets for its own programs would have our loader load its own libraries.
        "Env": ["LD_PRELOAD=", "LD_LIBRARY_PATH="],
        "Hostname": HOSTNAME,
        "Tty": False,
        "OpenStdin": False,
        "StopSignal": "SIGKILL",  # no other reaches process 1
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {LABEL: "1", LEASE: runtime_folder.lease},
        "HostConfig": _host_config(runtime_folder, mounts, key),
    }


def _host_config(
    runtime_folder: RuntimeFolder, mounts: list[tuple[Path, str]], key: Key
) -> dict[str, Any]:
    image, memory = key.image, key.memory + _OVERHEAD
    low_ports = "net_bind_service" in key.capabilities
    return {
        "AutoRemove": True,
        "Init": False,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": sorted({*_CAPABILITIES, *map(str.upper, key.capabilities)}),
        "SecurityOpt": ["no-new-privileges"],
        "MaskedPaths": [
            *(f"/proc/{name}" for name in MASKED_FILES),
            "/sys/firmware",
            *image.hidden_paths,
        ],
        "ReadonlyPaths": ["/dev", *(f"/proc/{name}" for name in _READ_ONLY)],
        "NetworkMode": "bridge" if key.network else "none",
        "IpcMode": "private",
        "Sysctls": {
            **_IPC_SYSCTLS,
            "net.ipv4.ip_unprivileged_port_start": "0" if low_ports else "1024",
        },
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": key.processes + OWN_THREADS,
        "OomScoreAdj": 100,
        "LogConfig": {"Type": "none"},
        "Ulimits": [{"Name": "nofile", "Soft": 4096, "Hard": max(4096, key.open_files)}],
        "Tmpfs": {"/dev/shm": _SHM},
        "Mounts": [
            {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": True}
            for source, target in mounts
        ]
        + [_program_volume(path, runtime_folder.empty_folder) for path in image.binds],
        **({"StorageOpt": {"size": str(key.disk)}} if runtime_folder.quota else {}),
    }


def _program_volume(path: str, empty_folder: Path) -> dict[str, Any]:
    """Return this machine's programs, in a volume of the container's own that goes with it.

    It has inodes of its own: a lock or a watch on the machine's would be felt by the machine, and
    by other containers.
    """
    lower = str(empty_folder).replace("\\", "\\\\").replace(":", "\\:")
    options = {
        "type": "overlay",
        "device": "overlay",
        "o": f"ro,nosuid,nodev,lowerdir={path}:{lower}",
    }
    return {
        "Type": "volume",
        "Target": path,
        "VolumeOptions": {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}},
    }


def _explain_error(error: SandboxError, engine: Engine) -> SandboxError:
    text = str(error)
    if "bind source path does not exist" in text or "bind mount source" in text:
        return SandboxUnavailableError(
            f"the engine at {engine.url} cannot see this machine's files, but needs to: it runs "
            f"on another machine, or in a container ({text})",
            DOCKER_HOST_COMMAND,
        )
    return error


def _accept(listener: socket.socket, engine: Engine, identity: str) -> socket.socket:
    """Return the call of the container's process 1."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    deadline = time.monotonic() + _START_SECONDS
    while not poll.poll(_POLL_SECONDS * 1000):
        reason = "its process 1 did not call in time"
        if time.monotonic() < deadline:
            try:
                with engine.errors("looking at a container") as api:
                    state = api.inspect_container(identity)["State"]
            except MissingObjectError:
                state = {"Running": False, "ExitCode": "unknown"}
            if state["Running"]:
                continue
            reason = f"its process 1 ended with exit code {state['ExitCode']}"
        raise SandboxError(f"container {identity[:12]} did not start: {reason}")
    control, _ = listener.accept()
    control.settimeout(_START_SECONDS)
    return control


def _open_init_process(control: socket.socket) -> InitProcess | None:
    credentials_format = "3i"
    size = struct.calcsize(credentials_format)
    pid, *_ = struct.unpack(
        credentials_format, control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    with suppress(OSError):  # it has died, which its greeting will tell
        return InitProcess(os.pidfd_open(pid)) if pid else None
    return None


def _greet(control: socket.socket, identity: str, key: Key) -> tuple[Account, int]:
    """Tell process 1 what it is to be; return the image's user, and how many users there can be."""
    try:
        ids, account = _receive_introduction(control, key.image.user)
        with Descriptor(os.pidfd_open(os.getpid())) as owner:
            wire.send(control, _start_message(key, account), [owner], packed=True)
        reply, _ = wire.receive(control)
        if "ready" not in reply:
            raise SandboxError(describe_failure(reply)["failed"])
    except (EOFError, OSError, LookupError, SandboxError) as error:
        raise SandboxError(f"container {identity[:12]} did not start: {error}") from error
    return account, ids


def _receive_introduction(control: socket.socket, user: str) -> tuple[int, Account]:
    """Return what process 1 says of its container, in which no program runs yet."""
    reply: dict[str, Any] = {}
    while "ids" not in reply:  # before that, a Python with workers says that it has loaded them
        reply, fds = wire.receive(control)
        if "unloaded" in reply:
            raise load_error(reply)
        if "call" in reply:
            reply = describe_failure(reply)
        if "failed" in reply:
            raise SandboxError(reply["failed"])
    tables = dict(zip(("/etc/passwd", "/etc/group"), map(_read_text, fds), strict=True))
    return reply["ids"], resolve_account(user, tables.__getitem__)


def _read_text(fd: int) -> str:
    """Return the text of a regular file; empty if it is no such file."""
    with open(fd, "rb") as file:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return file.read(MAX_TABLE_BYTES).decode(errors="replace") if regular else ""


def _start_message(key: Key, account: Account) -> dict[str, Any]:
    files: dict[str, str | None] = dict.fromkeys(
        ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
    )
    if not key.network:
        files |= key.image.files
    return {
        **{name: getattr(key, name) for name in ("memory", "disk", "open_files")},
        "kept": mask(key.capabilities),
        "code": seccomp.build(key.debugger, "sys_chroot" in key.capabilities),
        "user": [account.uid, account.gid, *account.groups],
        "volumes": key.image.volumes,
        "files": files,
    }
