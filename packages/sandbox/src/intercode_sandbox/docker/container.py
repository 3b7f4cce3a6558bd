"""`DockerContainer`: a container of Docker's engine, whose process 1 InterCode controls.

Process 1 of the container is InterCode's C program. If the container has workers, process 1 is a
Python process that runs the C program as a library. Process 1 connects to a socket of the caller,
whose folder is mounted into the container. After the connection nothing listens at the socket.
Process 1 ends when the caller closes the connection, or when the caller's process ends. Then the
engine removes the container.
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

from intercode_sandbox.base import FailureEvidence, Limits
from intercode_sandbox.docker.engine import (
    DOCKER_HOST_COMMAND,
    LABEL,
    LEASE,
    DockerEngine,
    MissingDockerObjectError,
)
from intercode_sandbox.docker.images import DockerEngineImage
from intercode_sandbox.docker.mounted_runtime import CONTAINER_FOLDER, ContainerRuntimeFolder
from intercode_sandbox.errors import SandboxError, SandboxUnavailableError
from intercode_sandbox.host_files import FileDescriptor
from intercode_sandbox.image_accounts import MAX_TABLE_BYTES, ImageAccount, resolve_account
from intercode_sandbox.images.base import HOSTNAME
from intercode_sandbox.linux_capabilities import mask
from intercode_sandbox.native import seccomp, wire
from intercode_sandbox.native.preflight import load_error
from intercode_sandbox.native.process import END_SECONDS, InitProcess
from intercode_sandbox.native.user_ids import OWN_THREADS
from intercode_sandbox.native.zygote import MASKED_FILES, describe_failure
from intercode_sandbox.ownership import disown_in_forks
from intercode_sandbox.units import MIB

if TYPE_CHECKING:
    from docker import APIClient

_START_SECONDS = 120.0
_POLL_SECONDS = 0.25
_HANG_UP_SECONDS = 2.0
"""Seconds for which a closed container may end by itself, before the engine must kill it."""
_EVENT_WAIT_SECONDS = 10
"""Seconds to wait for the engine's event of a container's end."""
_EVENTS_SECONDS = 24 * 3600
"""Age of the oldest events that are requested from the engine."""
_SIGNAL_EXIT_BASE = 128
"""The engine reports an end by signal N as this number plus N."""
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID")
"""The capabilities of process 1 in addition to those in `Limits.capabilities`. The programs that
process 1 starts get only those in `Limits.capabilities`."""
_OVERHEAD = 96 * MIB
"""Memory for process 1 itself, with the library that workers use."""
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_IPC_SYSCTLS = {
    "kernel.msgmni": "64",
    "kernel.shmmni": "128",
    "kernel.sem": "32000 8192 500 128",
    "fs.mqueue.queues_max": "16",
}
"""Kernel settings that limit objects of inter-process communication, which outlive programs. Native
sandboxes have the same limits. Low limits leave room for other sandboxes. At a sandbox's end the
kernel removes a small number of objects fast."""
_SHM = "rw,nosuid,nodev,noexec,mode=1777,size=64m,nr_inodes=4096"


@dataclass(frozen=True)
class ContainerKey:
    """The properties of a container. Unused containers with equal keys are interchangeable."""

    image: DockerEngineImage
    network: bool
    memory: int
    processes: int
    disk: int
    files: int
    open_files: int
    capabilities: tuple[str, ...]
    debugger: bool

    @classmethod
    def from_limits(cls, image: DockerEngineImage, network: bool, limits: Limits) -> ContainerKey:
        """Return the key of the containers for sandboxes with these limits."""
        limit_names = (
            "memory",
            "processes",
            "disk",
            "files",
            "open_files",
            "capabilities",
            "debugger",
        )
        return cls(image, network, *(getattr(limits, limit_name) for limit_name in limit_names))


@dataclass(eq=False)
class DockerContainer:
    """A running container whose process 1 is ready for requests."""

    key: ContainerKey
    id: str
    """The engine's identifier of the container."""
    control: socket.socket
    """The socket to process 1."""
    process: InitProcess | None
    """Process 1 of the container; None if this process cannot see the engine's processes."""
    engine: DockerEngine
    account: ImageAccount
    """The user of the image, under which programs run."""
    ids: int
    """The number of user ids in the container."""
    workers: tuple[str, ...]
    """The names of the modules that can run as workers."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        disown_in_forks(self)

    def ask(
        self, message: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        """Send one request to process 1, and return the reply with its descriptors.

        A sandbox that has taken the container uses `NativeSandbox` for its requests instead.

        Raises:
            SandboxError: The request failed, or process 1 has ended.
        """
        is_answered = False
        try:
            with self._lock:
                wire.send(self.control, message, fds, packed=True)
                reply, reply_fds = wire.receive(self.control)
                is_answered = True
        except (EOFError, OSError) as error:
            raise SandboxError(f"container {self.id[:12]} died: {error}") from error
        finally:
            if not is_answered:
                self.close()  # otherwise the next request would receive the reply to this request
        if "errno" in reply:
            reason = reply["error"] or os.strerror(reply["errno"])
            raise SandboxError(f"container {self.id[:12]} failed at {message['op']!r}: {reason}")
        return reply, reply_fds

    def disown(self) -> None:
        """Close the inherited descriptors in a fork of this process: see `SupportsDisown`."""
        self._lock = threading.Lock()
        self.control.close()
        if self.process is not None:
            self.process.disown()

    @property
    def alive(self) -> bool:
        """Whether process 1 seems to run; True during a request.

        The socket becomes readable when process 1 ends. During a request a reply would make it
        readable, too.
        """
        if not self._lock.acquire(blocking=False):
            return True
        try:
            poll = select.poll()
            poll.register(self.control, select.POLLIN)
            return not poll.poll(0)
        except ValueError:  # this process has closed the socket
            return False
        finally:
            self._lock.release()

    def root(self) -> int:
        """Return a descriptor of the container's root folder; the caller must close it."""
        # The descriptor is opened through /proc if possible, because process 1 cannot always send
        # it. For the kernel, all containers belong to one user, whose descriptors in flight are
        # limited. If programs of any container have too many in flight, the kernel refuses to send
        # another one.
        with suppress(OSError):  # an ordinary user may not read that link
            if self.process is not None:
                path = f"/proc/{self.process.pid}/root"
                return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self.ask({"op": "root"})[1][0]

    def evidence(self, is_timeout: bool) -> FailureEvidence:
        """Return the engine's evidence about the container's end, or about its failure to answer.

        Args:
            is_timeout: Whether process 1 did not answer in time. False: its socket was closed.
        """
        try:
            with self.engine.errors("looking at a container") as api:
                if is_timeout:
                    container_state = api.inspect_container(self.id)["State"]
                    return FailureEvidence(
                        True,
                        was_killed_outside=container_state["Paused"],
                        running=container_state["Running"],
                    )
                return _read_exit_evidence(api, self.id)
        except SandboxError:
            return FailureEvidence(is_keeper_alive=False)

    def close(self) -> None:
        """End the container and wait for the end of all its processes. Idempotent.

        If the kernel needs longer than `END_SECONDS` to end them, the call returns, and only the
        engine waits on. If this process cannot see process 1 (`process` is None), the call does not
        wait. The engine removes the container after its end.
        """
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        if self.process is not None:
            # Process 1 ends because of the closed socket, even if this user may not kill it.
            if not self.process.end(_HANG_UP_SECONDS):
                self.request_kill()
                self.process.wait(END_SECONDS)
            self.process.end()

    def request_kill(self) -> None:
        """Request that the engine kill the container; return without waiting for its end."""
        with suppress(SandboxError), self.engine.errors("ending a container") as api:
            api.kill(self.id)

    def remove(self) -> None:
        """End the container, and request that the engine remove it."""
        self.close()
        with suppress(MissingDockerObjectError), self.engine.errors("removing a container") as api:
            api.remove_container(self.id, force=True, v=True)


def start_container(
    engine: DockerEngine, runtime_folder: ContainerRuntimeFolder, key: ContainerKey
) -> DockerContainer:
    """Start a container, and wait until it is ready.

    Raises:
        ImageError: The engine has no such image.
        SandboxUnavailableError: The engine does not see this machine's files.
        SandboxError: The container did not start.
    """
    socket_folder = runtime_folder.link()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    container_id = ""
    try:
        with listener:
            _bind(listener, socket_folder)
            listener.listen(1)
            try:
                with engine.errors("starting a container") as api:
                    response = api.create_container_from_config(
                        _container_config(runtime_folder, socket_folder, key)
                    )
                    container_id = response["Id"]
                    api.start(container_id)
            except SandboxError as error:
                raise _explain_error(error, engine) from error
            control = _accept(listener, engine, container_id)
        try:
            account, id_count = _greet(control, container_id, key)
        except BaseException:
            control.close()
            raise
        init_process = _open_init_process(control)
        return DockerContainer(
            key,
            container_id,
            control,
            init_process,
            engine,
            account,
            id_count,
            runtime_folder.preload,
        )
    except BaseException:
        if container_id:
            with suppress(SandboxError), engine.errors("removing a container") as api:
                api.remove_container(container_id, force=True, v=True)
        raise
    finally:
        shutil.rmtree(socket_folder, ignore_errors=True)


def _read_exit_evidence(api: APIClient, container_id: str) -> FailureEvidence:
    """Return evidence about a container's end, from the events that the engine has recorded.

    The container itself cannot be inspected, because the engine removes it at its end.
    """
    now = time.time()
    actions: set[str] = set()
    exit_code: int | None = None
    with closing(
        api.events(
            since=int(now - _EVENTS_SECONDS),
            until=int(now + _EVENT_WAIT_SECONDS),
            filters={"container": container_id, "event": ["die", "kill", "oom"]},
            decode=True,
        )
    ) as events:
        for event in events:
            actions.add(event["Action"])
            if event["Action"] == "die":
                exit_code = int(event["Actor"]["Attributes"]["exitCode"])
                break
    return FailureEvidence(
        is_keeper_alive=True,
        was_killed_outside="kill" in actions,
        # The engine's exit code is 128 + N if signal N killed process 1, as in a shell.
        exit_code=exit_code
        if exit_code is None or exit_code <= _SIGNAL_EXIT_BASE
        else _SIGNAL_EXIT_BASE - exit_code,
        starved="oom" in actions,
    )


def _bind(listener: socket.socket, socket_folder: Path) -> None:
    """Bind a listening socket to the file ``s`` in a folder.

    The name that is bound has the folder's descriptor in place of its path. A socket's name has at
    most 107 bytes, and the path of a cache may have more.
    """
    with FileDescriptor(
        os.open(socket_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ) as folder_fd:
        listener.bind(f"/proc/self/fd/{folder_fd}/s")
    # Any user who can enter the folder may connect: the mode of the folder controls the access.
    (socket_folder / "s").chmod(0o666)


def _container_config(
    runtime_folder: ContainerRuntimeFolder, socket_folder: Path, key: ContainerKey
) -> dict[str, Any]:
    mounts = [
        (socket_folder, CONTAINER_FOLDER),
        *(
            (source, f"{CONTAINER_FOLDER}/{mount_name}")
            for mount_name, source in runtime_folder.mounts.items()
        ),
    ]
    return {
        "Image": key.image.reference,
        "Entrypoint": runtime_folder.command(),
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        # The image may set these variables. With the image's values the dynamic loader of
        # InterCode's Python would load libraries of the image.
        "Env": ["LD_PRELOAD=", "LD_LIBRARY_PATH="],
        "Hostname": HOSTNAME,
        "Tty": False,
        "OpenStdin": False,
        "StopSignal": "SIGKILL",  # no other signal has an effect on process 1
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {LABEL: "1", LEASE: runtime_folder.lease},
        "HostConfig": _host_config(runtime_folder, mounts, key),
    }


def _host_config(
    runtime_folder: ContainerRuntimeFolder, mounts: list[tuple[Path, str]], key: ContainerKey
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
            *(f"/proc/{proc_file}" for proc_file in MASKED_FILES),
            "/sys/firmware",
            *image.hidden_paths,
        ],
        "ReadonlyPaths": ["/dev", *(f"/proc/{proc_file}" for proc_file in _READ_ONLY)],
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
        + [_program_volume(bind_path, runtime_folder.empty_folder) for bind_path in image.binds],
        **({"StorageOpt": {"size": str(key.disk)}} if runtime_folder.quota else {}),
    }


def _program_volume(program_folder: str, empty_folder: Path) -> dict[str, Any]:
    """Return the settings of a volume with a folder of this machine's programs.

    The engine removes the volume with its container. The volume is an overlay, because an overlay
    has separate inodes. A lock or a watch on the machine's own inodes would affect the machine and
    other containers.

    Args:
        program_folder: The path of the folder, on this machine and in the container.
        empty_folder: An empty folder: an overlay needs a second layer.
    """
    lower_folder = str(empty_folder).replace("\\", "\\\\").replace(":", "\\:")
    options = {
        "type": "overlay",
        "device": "overlay",
        "o": f"ro,nosuid,nodev,lowerdir={program_folder}:{lower_folder}",
    }
    return {
        "Type": "volume",
        "Target": program_folder,
        "VolumeOptions": {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}},
    }


def _explain_error(error: SandboxError, engine: DockerEngine) -> SandboxError:
    error_text = str(error)
    if "bind source path does not exist" in error_text or "bind mount source" in error_text:
        return SandboxUnavailableError(
            f"the engine at {engine.url} cannot see this machine's files, but needs to: it runs "
            f"on another machine, or in a container ({error_text})",
            DOCKER_HOST_COMMAND,
        )
    return error


def _accept(listener: socket.socket, engine: DockerEngine, container_id: str) -> socket.socket:
    """Wait until process 1 of a container connects; return the connection.

    Args:
        listener: The listening socket.
        engine: The engine.
        container_id: The engine's identifier of the container.

    Raises:
        SandboxError: Process 1 has ended, or did not connect in time.
    """
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    deadline = time.monotonic() + _START_SECONDS
    while not poll.poll(_POLL_SECONDS * 1000):
        reason = "its process 1 did not call in time"
        if time.monotonic() < deadline:
            try:
                with engine.errors("looking at a container") as api:
                    container_state = api.inspect_container(container_id)["State"]
            except MissingDockerObjectError:
                container_state = {"Running": False, "ExitCode": "unknown"}
            if container_state["Running"]:
                continue
            reason = f"its process 1 ended with exit code {container_state['ExitCode']}"
        raise SandboxError(f"container {container_id[:12]} did not start: {reason}")
    control, _ = listener.accept()
    control.settimeout(_START_SECONDS)
    return control


def _open_init_process(control: socket.socket) -> InitProcess | None:
    credentials_format = "3i"
    credentials_size = struct.calcsize(credentials_format)
    pid, *_ = struct.unpack(
        credentials_format,
        control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials_size),
    )
    with suppress(OSError):  # process 1 has ended, which the next request reports
        return InitProcess(os.pidfd_open(pid)) if pid else None
    return None


def _greet(
    control: socket.socket, container_id: str, key: ContainerKey
) -> tuple[ImageAccount, int]:
    """Send process 1 the settings of its container, and wait until it is ready.

    Args:
        control: The socket to process 1.
        container_id: The engine's identifier of the container.
        key: The container's properties.

    Returns:
        The account of the image's user, and the number of user ids in the container.
    """
    try:
        id_count, account = _receive_introduction(control, key.image.user)
        with FileDescriptor(os.pidfd_open(os.getpid())) as owner_pidfd:
            wire.send(control, _start_message(key, account), [owner_pidfd], packed=True)
        reply, _ = wire.receive(control)
        if "ready" not in reply:
            raise SandboxError(describe_failure(reply)["failed"])
    except (EOFError, OSError, LookupError, SandboxError) as error:
        raise SandboxError(f"container {container_id[:12]} did not start: {error}") from error
    return account, id_count


def _receive_introduction(control: socket.socket, user: str) -> tuple[int, ImageAccount]:
    """Receive the first message of process 1, before any program runs in the container.

    Args:
        control: The socket to process 1.
        user: The image's user, in the format of ``USER``.

    Returns:
        The number of user ids in the container, and the account of the image's user.
    """
    reply: dict[str, Any] = {}
    while "ids" not in reply:  # a process 1 with workers first reports that it has imported them
        reply, table_fds = wire.receive(control)
        if "unloaded" in reply:
            raise load_error(reply)
        if "call" in reply:
            reply = describe_failure(reply)
        if "failed" in reply:
            raise SandboxError(reply["failed"])
    table_texts = dict(zip(("/etc/passwd", "/etc/group"), map(_read_text, table_fds), strict=True))
    return reply["ids"], resolve_account(user, table_texts.__getitem__)


def _read_text(fd: int) -> str:
    """Close a descriptor, and return the text of its file; empty if the file is not regular."""
    with open(fd, "rb") as file:
        is_regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return file.read(MAX_TABLE_BYTES).decode(errors="replace") if is_regular else ""


def _start_message(key: ContainerKey, account: ImageAccount) -> dict[str, Any]:
    files: dict[str, str | None] = dict.fromkeys(
        ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
    )
    if not key.network:
        files |= key.image.files
    return {
        **{limit_name: getattr(key, limit_name) for limit_name in ("memory", "disk", "open_files")},
        "kept": mask(key.capabilities),
        "code": seccomp.build(key.debugger, "sys_chroot" in key.capabilities),
        "user": [account.uid, account.gid, *account.groups],
        "volumes": key.image.volumes,
        "files": files,
    }
