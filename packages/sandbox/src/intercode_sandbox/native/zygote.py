"""The zygote: the process that a spawner forks for each sandbox.

The zygote, and process 1 of each sandbox, run one C program from the folder ``static``. This module
starts the zygote, and creates the messages that configure the C program. The spawner uses the class
`Zygote`; the caller uses some of the functions, too.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from intercode_sandbox.linux_capabilities import mask
from intercode_sandbox.native import seccomp, wire
from intercode_sandbox.native.process_start import PROGRAM, SOCKET, WorkerModules, command
from intercode_sandbox.native.user_ids import SandboxUserIds
from intercode_sandbox.privileges import read_permitted_capabilities

MASKED_FILES = (
    *("acpi", "asound", "cmdline", "config.gz", "interrupts", "kcore", "keys", "latency_stats"),
    *("locks", "modules", "sched_debug", "scsi", "timer_list", "timer_stats"),
)
"""Names in /proc that sandboxes must not see: Docker's masked files, and files about the machine's
start and load."""
_SHARED_PART = 2
"""Divisor of a sandbox's memory: System V shared memory may take one half of it."""


@dataclass(frozen=True)
class SpawnerHostFacts:
    """Facts of this machine, determined once by the spawner."""

    root: bool
    """Whether the spawner has the privileges of `privileges.is_root`. Then each sandbox has a range
    of ids, layers are mounted with mapped ids, and device nodes can be created."""
    masks: list[tuple[str, str]]
    """Name in /proc that is hidden from sandboxes, and its kind: ``file`` or ``folder``."""
    capabilities: int
    """The capabilities that the spawner is permitted to use, as a bit mask."""
    filters: dict[tuple[bool, bool], bytes]
    """Two truth values → the seccomp filter. The values are: whether debuggers are allowed, and
    whether ``chroot`` is allowed."""


def probe_machine(root: bool) -> SpawnerHostFacts:
    """Determine the facts of this machine.

    Args:
        root: Whether the caller has the privileges of `privileges.is_root`.
    """
    masked_names = [name for name in MASKED_FILES if os.path.exists(f"/proc/{name}")]
    masks = [
        (name, "folder" if os.path.isdir(f"/proc/{name}") else "file") for name in masked_names
    ]
    truth_values = False, True
    filters = {
        (debugger, chroot): seccomp.build(debugger, chroot)
        for debugger in truth_values
        for chroot in truth_values
    }
    return SpawnerHostFacts(root, masks, read_permitted_capabilities(), filters)


class WorkerModuleImportError(ImportError):
    """A module for workers that could not be imported.

    Args:
        report: The message that `worker.preload` has sent.
    """

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["error"])
        self.report = report


class Zygote:
    """A running zygote: it forks at each request, and the forks become children of the spawner.

    Args:
        machine: The machine's facts.
        workers: The modules of workers. If there are any, the zygote is a Python process that has
            imported the modules, and that runs the C program as a library.

    Raises:
        WorkerModuleImportError: A module cannot be imported.
        OSError: The zygote does not start.
    """

    def __init__(self, machine: SpawnerHostFacts, workers: WorkerModules) -> None:
        self._machine = machine
        self._has_workers = bool(workers.modules)
        # The arguments of the zygote are visible in sandboxes. Without workers they are only
        # "init"; otherwise the zygote overwrites them, because they contain paths of the machine.
        arguments = {"modules": workers.modules}
        python_command = command("worker", arguments, workers.path, workers.packages)
        self._command = python_command if workers.modules else ["init"]
        self.flaw = ""
        """The error output of the zygote's trial of its Python (`worker.protocol_flaw`); empty: the
        trial succeeded, or was not needed, because there are no workers."""
        self._begin()

    def _begin(self) -> None:
        self._link, zygote_socket = wire.pair()
        with zygote_socket:
            file_actions = [(os.POSIX_SPAWN_DUP2, zygote_socket.fileno(), SOCKET)]
            executable = sys.executable if self._has_workers else PROGRAM
            self._pid = os.posix_spawn(executable, self._command, {}, file_actions=file_actions)
            self._process = os.pidfd_open(self._pid)
        if self._has_workers:
            reply, _ = wire.receive(self._link)
            if "unloaded" in reply:
                raise WorkerModuleImportError(reply)
            if "failed" in reply:
                raise OSError(reply["errno"], reply["failed"])
            self.flaw = str(reply["flaw"])
        filters = [
            self._machine.filters[filter_key] for filter_key in sorted(self._machine.filters)
        ]
        settings = {"root": self._machine.root, "masks": self._machine.masks, "filters": filters}
        wire.send(self._link, settings, packed=True)

    def close(self) -> None:
        """Kill the zygote. Its forks continue to run."""
        self._link.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._process)

    def fork(self, network: bool, cgroup_folders: list[str], child_socket: socket.socket) -> int:
        """Fork a child of the spawner; return its pid.

        The child waits for a message at its socket.

        Args:
            network: Whether the child shares the machine's network.
            cgroup_folders: The folders of the cgroups that the child enters.
            child_socket: The child's socket.

        Raises:
            OSError: The kernel refused the fork.
        """
        request = {"network": network, "cgroups": cgroup_folders}
        try:
            reply = self._ask(request, child_socket)
        except (EOFError, OSError):  # the zygote was killed
            reply = self._ask_restarted(request, child_socket)
        if "errno" in reply:
            raise OSError(reply["errno"], f"{reply['call']}: {os.strerror(reply['errno'])}")
        return int(reply["pid"])

    def _ask_restarted(
        self, request: dict[str, Any], child_socket: socket.socket
    ) -> dict[str, Any]:
        self.close()
        try:
            self._begin()
            return self._ask(request, child_socket)
        # A module of the workers may have been removed since the first start.
        except (EOFError, WorkerModuleImportError) as error:
            raise OSError(errno.EIO, f"the sandboxes' zygote has ended: {error}") from error

    def _ask(self, request: dict[str, Any], child_socket: socket.socket) -> dict[str, Any]:
        wire.send(self._link, request, [child_socket.fileno()], packed=True)
        return wire.receive(self._link)[0]


def plan(
    spec: dict[str, Any], identity: SandboxUserIds, machine: SpawnerHostFacts, is_prepared: bool
) -> dict[str, Any]:
    """Return the message that describes a sandbox to the child that becomes its process 1.

    Args:
        spec: The caller's request. `MountedLayers.prepare` has replaced its layers by names.
        identity: The sandbox's identity.
        machine: The machine's facts.
        is_prepared: Whether the sandbox is prepared in advance, without a request for it.
    """
    limits, frozen_usage = spec["limits"], spec["used"]
    capabilities = limits["capabilities"]
    return {
        **{name: limits[name] for name in ("memory", "disk", "files", "processes", "open_files")},
        **{name: spec[name] for name in ("layers", "image", "programs", "hide")},
        "used_bytes": frozen_usage[0],
        "used_files": frozen_usage[1],
        "shared_pages": limits["memory"] // _SHARED_PART // resource.getpagesize(),
        # The flag makes process 1 permit ports below 1024 to all programs, by a setting of the
        # network. In the machine's network the setting would apply to all processes of the machine.
        # The capability itself has no effect in either network: the network belongs to the user
        # namespace that process 1 has left.
        "low_ports": "net_bind_service" in capabilities and not spec["network"],
        "kept": mask(capabilities),
        "rights": machine.capabilities,
        "filter": 2 * limits["debugger"] + ("sys_chroot" in capabilities),
        "private": int(limits["private"]),
        "special": list(spec["special"].items()),
        "frozen": len(spec["frozen"]),
        "user": ids(spec["user"]),
        "first_id": identity.first_id,
        "own_id": identity.init_id,
        "ahead": is_prepared,
        "program": first_program(spec["first"]) if is_prepared and spec["first"] else None,
    }


def first_program(program: dict[str, Any]) -> dict[str, Any]:
    """Return the request that starts a prepared program, in the form of process 1.

    Args:
        program: The program, with its channels.
    """
    fd_numbers = [fd_number for fd_number, _ in program["channels"]] + [2] * program["merge_stderr"]
    return encode_request({**program, "numbers": fd_numbers})


def encode_request(message: dict[str, Any]) -> dict[str, Any]:
    """Convert a request to the form that process 1, the C program, reads.

    Environment variables become ``NAME=VALUE``, a user becomes numbers, and seconds become
    milliseconds.
    """
    request = dict(message)
    if "env" in request:
        variables: Mapping[str, str] = request["env"]
        request["env"] = [f"{name}={value}" for name, value in variables.items()]
        request["user"] = ids(request["user"]) if request["user"] else None
    if "timeout" in request:
        request["timeout"] = int(request["timeout"] * 1000)
    return request


def ids(user: str) -> list[int]:
    """Return the numbers in ``uid[:gid[,gid…]]``; an empty text means user 0 and group 0."""
    return [int(id_text) for id_text in (user.replace(":", ",") or "0,0").split(",")]


def describe_failure(failure: dict[str, Any]) -> dict[str, Any]:
    """Return the message for the caller on a child that did not start.

    Args:
        failure: The child's message, with the failed system call and its error number.
    """
    message = f"{failure['call']}: {os.strerror(failure['errno'])}"
    return {"failed": message, "errno": failure["errno"]}
