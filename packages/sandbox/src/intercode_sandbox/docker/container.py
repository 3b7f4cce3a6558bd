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

from intercode_sandbox.accounts import LONGEST, Account, account_of
from intercode_sandbox.base import Evidence, Limits
from intercode_sandbox.capabilities import mask
from intercode_sandbox.docker.engine import DOCKER, LABEL, LEASE, Engine, NotThereError
from intercode_sandbox.docker.images import EngineImage
from intercode_sandbox.docker.runtime_mounts import INSIDE, Home
from intercode_sandbox.errors import SandboxError, SandboxUnavailableError
from intercode_sandbox.files import Descriptor
from intercode_sandbox.images.base import HOSTNAME
from intercode_sandbox.native import seccomp, wire
from intercode_sandbox.native.identity import OWN_THREADS
from intercode_sandbox.native.preflight import not_loaded
from intercode_sandbox.native.process import END_SECONDS, ProcessOne
from intercode_sandbox.native.zygote import MASKED, spelled_out
from intercode_sandbox.ownership import disown_in_forks
from intercode_sandbox.units import MIB

if TYPE_CHECKING:
    from docker import APIClient

_START_SECONDS = 120.0
_LOOK_SECONDS = 0.25
_HEARD_SECONDS = 2.0
_ENDED_SECONDS = 10
_EVENTS_SECONDS = 24 * 3600
_SIGNALLED = 128
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID")
"""The capabilities of process 1, in addition to those that `Limits.capabilities` names, which are
all that it hands on."""
_OVERHEAD = 96 * MIB
"""Memory for process 1 itself, with the library that workers use."""
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_LEFT_BEHIND = {
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
    process: ProcessOne | None
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
                reply, received = wire.receive(self.control)
                answered = True
        except (EOFError, OSError) as error:
            raise SandboxError(f"container {self.id[:12]} died: {error}") from error
        finally:
            if not answered:
                self.close()  # the next question must not get this one's answer
        if "errno" in reply:
            said = reply["error"] or os.strerror(reply["errno"])
            raise SandboxError(f"container {self.id[:12]} failed at {message['op']!r}: {said}")
        return reply, received

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
                    return Evidence(True, struck=state["Paused"], running=state["Running"])
                return _end_of(api, self.id)
        except SandboxError:
            return Evidence(keeper=False)

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
            if not self.process.end(_HEARD_SECONDS):
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
        with suppress(NotThereError), self.engine.errors("removing a container") as api:
            api.remove_container(self.id, force=True, v=True)


def start_container(engine: Engine, home: Home, key: Key) -> Container:
    """Start a container, and wait until it is ready.

    Raises:
        ImageError: The engine has no such image.
        SandboxUnavailableError: The engine does not see this machine's files.
        SandboxError: It did not start.
    """
    place = home.link()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    identity = ""
    try:
        with listener:
            _bind(listener, place)
            listener.listen(1)
            try:
                with engine.errors("starting a container") as api:
                    made = api.create_container_from_config(_config(home, place, key))
                    identity = made["Id"]
                    api.start(identity)
            except SandboxError as error:
                raise _explained(error, engine) from error
            control = _accept(listener, engine, identity)
        try:
            account, ids = _greet(control, identity, key)
        except BaseException:
            control.close()
            raise
        one = _process_one(control)
        return Container(key, identity, control, one, engine, account, ids, home.preload)
    except BaseException:
        if identity:
            with suppress(SandboxError), engine.errors("removing a container") as api:
                api.remove_container(identity, force=True, v=True)
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _end_of(api: APIClient, identity: str) -> Evidence:
    """Tell how a container has ended, by the engine's events: it is removed at its end."""
    now = time.time()
    seen: set[str] = set()
    code: int | None = None
    with closing(
        api.events(
            since=int(now - _EVENTS_SECONDS),
            until=int(now + _ENDED_SECONDS),
            filters={"container": identity, "event": ["die", "kill", "oom"]},
            decode=True,
        )
    ) as events:
        for event in events:
            seen.add(event["Action"])
            if event["Action"] == "die":
                code = int(event["Actor"]["Attributes"]["exitCode"])
                break
    return Evidence(
        keeper=True,
        struck="kill" in seen,
        # The engine counts as a shell does.
        exit_code=code if code is None or code <= _SIGNALLED else _SIGNALLED - code,
        starved="oom" in seen,
    )


def _bind(listener: socket.socket, place: Path) -> None:
    """Bind by way of a descriptor: a socket's name may have 107 bytes, and a cache's more."""
    with Descriptor(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        listener.bind(f"/proc/self/fd/{fd}/s")
    (place / "s").chmod(0o666)  # who may go there, the folder above says


def _config(home: Home, place: Path, key: Key) -> dict[str, Any]:
    mounts = [(place, INSIDE), *((path, f"{INSIDE}/{name}") for name, path in home.mounts.items())]
    return {
        "Image": key.image.reference,
        "Entrypoint": home.command(),
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
        "Labels": {LABEL: "1", LEASE: home.lease},
        "HostConfig": _host_config(home, mounts, key),
    }


def _host_config(home: Home, mounts: list[tuple[Path, str]], key: Key) -> dict[str, Any]:
    image, memory = key.image, key.memory + _OVERHEAD
    low_ports = "net_bind_service" in key.capabilities
    return {
        "AutoRemove": True,
        "Init": False,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": sorted({*_CAPABILITIES, *map(str.upper, key.capabilities)}),
        "SecurityOpt": ["no-new-privileges"],
        "MaskedPaths": [*(f"/proc/{name}" for name in MASKED), "/sys/firmware", *image.hidden],
        "ReadonlyPaths": ["/dev", *(f"/proc/{name}" for name in _READ_ONLY)],
        "NetworkMode": "bridge" if key.network else "none",
        "IpcMode": "private",
        "Sysctls": {
            **_LEFT_BEHIND,
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
        + [_programs(path, home.empty) for path in image.binds],
        **({"StorageOpt": {"size": str(key.disk)}} if home.quota else {}),
    }


def _programs(path: str, empty: Path) -> dict[str, Any]:
    """Return this machine's programs, in a volume of the container's own that goes with it.

    It has inodes of its own: a lock or a watch on the machine's would be felt by the machine, and
    by other containers.
    """
    lower = str(empty).replace("\\", "\\\\").replace(":", "\\:")
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


def _explained(error: SandboxError, engine: Engine) -> SandboxError:
    text = str(error)
    if "bind source path does not exist" in text or "bind mount source" in text:
        return SandboxUnavailableError(
            f"the engine at {engine.url} does not see this machine's files, which it must: it is "
            f"on another machine, or in a container ({text})",
            DOCKER,
        )
    return error


def _accept(listener: socket.socket, engine: Engine, identity: str) -> socket.socket:
    """Return the call of the container's process 1."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    deadline = time.monotonic() + _START_SECONDS
    while not poll.poll(_LOOK_SECONDS * 1000):
        why = "its process 1 did not call in time"
        if time.monotonic() < deadline:
            try:
                with engine.errors("looking at a container") as api:
                    state = api.inspect_container(identity)["State"]
            except NotThereError:
                state = {"Running": False, "ExitCode": "unknown"}
            if state["Running"]:
                continue
            why = f"its process 1 ended with exit code {state['ExitCode']}"
        raise SandboxError(f"container {identity[:12]} did not start: {why}")
    control, _ = listener.accept()
    control.settimeout(_START_SECONDS)
    return control


def _process_one(control: socket.socket) -> ProcessOne | None:
    form = "3i"
    size = struct.calcsize(form)
    pid, *_ = struct.unpack(form, control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    with suppress(OSError):  # it has died, which its greeting will tell
        return ProcessOne(os.pidfd_open(pid)) if pid else None
    return None


def _greet(control: socket.socket, identity: str, key: Key) -> tuple[Account, int]:
    """Tell process 1 what it is to be; return the image's user, and how many users there can be."""
    try:
        ids, account = _introduced(control, key.image.user)
        with Descriptor(os.pidfd_open(os.getpid())) as owner:
            wire.send(control, _hello(key, account), [owner], packed=True)
        reply, _ = wire.receive(control)
        if "ready" not in reply:
            raise SandboxError(spelled_out(reply)["failed"])
    except (EOFError, OSError, LookupError, SandboxError) as error:
        raise SandboxError(f"container {identity[:12]} did not start: {error}") from error
    return account, ids


def _introduced(control: socket.socket, user: str) -> tuple[int, Account]:
    """Return what process 1 says of its container, in which no program runs yet."""
    reply: dict[str, Any] = {}
    while "ids" not in reply:  # before that, a Python with workers says that it has loaded them
        reply, fds = wire.receive(control)
        if "unloaded" in reply:
            raise not_loaded(reply)
        if "call" in reply:
            reply = spelled_out(reply)
        if "failed" in reply:
            raise SandboxError(reply["failed"])
    tables = dict(zip(("/etc/passwd", "/etc/group"), map(_text, fds), strict=True))
    return reply["ids"], account_of(user, tables.__getitem__)


def _text(fd: int) -> str:
    """Return the text of a regular file; empty if it is no such file."""
    with open(fd, "rb") as file:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return file.read(LONGEST).decode(errors="replace") if regular else ""


def _hello(key: Key, account: Account) -> dict[str, Any]:
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
