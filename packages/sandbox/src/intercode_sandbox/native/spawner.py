"""The spawner: a small single-threaded process that forks sandboxes for a large threaded caller.

The caller is the process that uses InterCode. A fork of the caller itself would copy the caller's
memory map and locks, and a sandbox would die with the thread that started it. The spawner owns a
private mount namespace, in which the layers of images are mounted. The spawner creates each
sandbox's process 1, allocates user ids, and keeps the cgroups. The spawner ends, with all its
sandboxes, when the caller ends or closes its socket. So kill -9 of the caller leaves no process.

Words of this module: a child is a fork that is, or waits to become, a sandbox's process 1. The
stage is the folder `MOUNT_FOLDER`, with the spawner's mounts. A frozen layer holds the files of a
frozen sandbox in memory.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from intercode_sandbox.native import cgroup, syscalls as sc, wire
from intercode_sandbox.native.exit_ledger import write_ledger
from intercode_sandbox.native.frozen_mounts import FrozenMounts
from intercode_sandbox.native.init_child import SandboxInitChild
from intercode_sandbox.native.process_start import WorkerModules
from intercode_sandbox.native.syscalls import hide_arguments
from intercode_sandbox.native.user_ids import OWN_THREADS, SandboxUserIdPool, write_maps
from intercode_sandbox.native.zygote import WorkerModuleImportError, Zygote, plan, probe_machine
from intercode_sandbox.privileges import STAND_IN_ID, has_machines_id, missing_capabilities

MOUNT_FOLDER = "/dev/pts"
"""The stage: the folder of the spawner's mounts, in a private mount namespace. Every machine has
this folder, and neither the spawner nor an image needs its content."""
_FOLDERS = ("x", "o", "e", "d", "p", "m")
"""The mount points on the stage that each child uses, in its copy of the mount namespace.

The first two are for the sandbox's files, and for the same files with mapped ids. Then follow an
empty folder, /dev, /proc, and a folder of programs before the child moves it into an image.
"""
_LEAVING_SECONDS = 1.0
"""Seconds between attempts to remove a cgroup."""
_QUIET_SECONDS = 0.001, 0.005
"""Idle seconds before a sandbox is prepared: if each running sandbox has a processor, and if there
are more sandboxes than processors."""
_MAX_ENDS = 4096
"""Maximum number of ended children whose ends the spawner remembers."""


class SpawnerLoop:
    """The event loop of the spawner.

    After the start of a sandbox, a spare child is forked in advance. So the next start usually does
    not wait for the fork, for new namespaces, and for the move into a cgroup. A spare child
    contains nothing of any sandbox.

    After two equal requests in a row, the idle spawner prepares a sandbox for a third equal
    request, and starts the sandbox's first program. A different request discards the prepared
    sandbox.

    Args:
        caller: The socket of the caller's requests.
        owner_fd: A descriptor of the caller's process.
        ledger_fd: The descriptor of the ledger: see `exit_ledger`.
        lease: The spawner's lease: see `ownership.new_lease`.
        root: Whether the caller has the privileges of `privileges.is_root`.
        workers: The modules that can run as workers in sandboxes.
    """

    def __init__(
        self,
        caller: socket.socket,
        owner_fd: int,
        ledger_fd: int,
        lease: str,
        root: bool,
        workers: WorkerModules,
    ) -> None:
        self.caller = caller
        self.owner = owner_fd
        """A descriptor of the caller's process. The socket alone would not signal the caller's end,
        because a fork of the caller may hold the other end of the socket, too."""
        self.ledger = ledger_fd
        """The descriptor of the list of sandboxes that the kernel is still ending."""
        self.poll = select.epoll()
        self.children: dict[str, SandboxInitChild] = {}
        """The child's name → the child, from its fork until `collect` releases it."""
        self.processes: dict[int, SandboxInitChild] = {}
        """Descriptor of the child's process → the child."""
        self.starting_children: dict[int, SandboxInitChild] = {}
        """Descriptor of the child's socket → the child, while its sandbox is starting."""
        self.spare_child: SandboxInitChild | None = None
        """The child that was forked in advance."""
        self.prepared_child: SandboxInitChild | None = None
        """The child with the prepared sandbox."""
        self.last_request: dict[str, Any] = {}
        """The last request for a sandbox."""
        self.is_repeated = False
        """Whether the last request equals the request before it."""
        self.ends: dict[str, dict[str, Any]] = {}
        """A child's name → facts on its recent end, as fields of `base.FailureEvidence`."""
        self.count = 0
        self.processors = len(os.sched_getaffinity(0))
        prepare_namespaces(root)
        # The cgroups are created with the privileges that remain after the line above.
        self.cgroups = cgroup.SandboxCgroups(lease, os.getppid())
        self.machine = probe_machine(root)
        self.zygote = Zygote(self.machine, workers)
        self.layers = MountedLayers(root)
        self.frozen_mounts = FrozenMounts(MOUNT_FOLDER)
        self.pool = SandboxUserIdPool(root)

    def run(self) -> None:
        """Serve requests until the caller ends; then end all sandboxes and clean up."""
        self.poll.register(self.caller, select.EPOLLIN)
        self.poll.register(self.owner, select.EPOLLIN)
        try:
            while True:
                ready_fds = [fd for fd, _ in self.poll.poll(self.poll_timeout())]
                if self.owner in ready_fds:
                    return
                if not ready_fds and self.may_prepare:
                    self.prepare_sandbox()
                for fd in ready_fds:
                    if fd in self.starting_children:
                        self.finish_start(fd)
                self.collect_ended(ready_fds)
                # The caller's request comes last. The request may freeze the files of a child whose
                # start the lines above have just finished.
                if self.caller.fileno() in ready_fds and not self.take_request():
                    return
        finally:
            self.close()

    def take_request(self) -> bool:
        """Serve one request of the caller; return False if the caller has ended.

        A request that needs a reply comes with a socket for the reply. Failures are reported there.
        """
        try:
            request, fds = wire.receive(self.caller)
        except wire.DescriptorsLostError:
            return True  # the request's socket is lost, and the caller notices its closing
        except (EOFError, OSError):
            return False
        if not fds:
            if "thaw" in request:
                self.release_layer(request["thaw"])
            elif "ending" in request:
                self.note_ending(request["ending"])
            else:
                self.discard_prepared()
                self.layers.forget(request["forget"])
            return True
        with socket.socket(fileno=fds[0]) as reply_socket:
            try:
                if "end_of" in request:
                    wire.send(reply_socket, self.evidence(request["end_of"]))
                elif "freeze" in request:
                    wire.send(reply_socket, self.freeze(request["freeze"], request["room"]))
                else:
                    self.start(request, reply_socket)
            except OSError as error:
                report(reply_socket, error)
        return True

    def evidence(self, child_name: str) -> dict[str, Any]:
        """Return the evidence about a sandbox without an answer: fields of `base.FailureEvidence`.

        Args:
            child_name: The name of the sandbox's child.
        """
        if child_name in self.children:
            self.collect(self.children[child_name])
        return {"running": True} if child_name in self.children else self.ends.get(child_name, {})

    def note_ending(self, child_name: str) -> None:
        """Record that the caller has killed a sandbox, and no longer waits for the sandbox's end.

        Args:
            child_name: The name of the sandbox's child.
        """
        if child_name in self.children:
            self.children[child_name].ending = True
            self.count_endings()

    def count_endings(self) -> None:
        """Write the list of sandboxes that the kernel is still ending to the ledger.

        ``intercode doctor`` reads the ledger.
        """
        children = self.children.values()
        write_ledger(self.ledger, {child.cgroup: child.pid for child in children if child.ending})

    def freeze(self, child_name: str, max_bytes: int) -> dict[str, Any]:
        """Retain the files of a sandbox, in which only process 1 runs, as a frozen layer.

        Args:
            child_name: The name of the sandbox's child.
            max_bytes: Maximum size of the layer in bytes.

        Returns:
            The numbers of ``bytes`` and ``files`` in the sandbox, and the layer's ``name`` if the
            layer was created. The mapping is empty if the files cannot be frozen, or the sandbox
            has ended.
        """
        child = self.children.get(child_name)
        if child is None or (mount_fd := child.files) is None:
            return {}
        file_system_stats = os.fstatvfs(mount_fd)
        used_bytes = (
            file_system_stats.f_blocks - file_system_stats.f_bfree
        ) * file_system_stats.f_frsize
        reply: dict[str, Any] = {
            "bytes": used_bytes,
            "files": file_system_stats.f_files - file_system_stats.f_ffree,
        }
        if used_bytes <= max_bytes:
            with suppress(OSError):  # the kernel does not permit it, or a file is open for writing
                reply["name"] = self.frozen_mounts.add(mount_fd)
        return reply

    def release_layer(self, layer_name: str) -> None:
        """Release a frozen layer of this name."""
        if layer_name in self.last_request.get("frozen", ()):
            self.discard_prepared()
            self.is_repeated, self.last_request = False, {}
        self.frozen_mounts.remove(layer_name)

    def facts(self) -> dict[str, Any]:
        """Return the facts of this machine for a run's record and for ``intercode doctor``."""
        return {
            "root": self.machine.root,
            "cgroup": self.cgroups.version,
            "controllers": self.cgroups.controllers,
            **({"fork_flaw": self.zygote.flaw} if self.zygote.flaw else {}),
        }

    def start(self, spec: dict[str, Any], control: socket.socket) -> None:
        """Start one sandbox for a request of the caller.

        Args:
            spec: The request.
            control: The sandbox's socket. The sandbox's process 1 sends a message to the caller as
                soon as the sandbox is ready.
        """
        self.layers.prepare(spec)
        self.is_repeated, self.last_request = spec == self.last_request, spec
        if self.start_prepared(spec, control):
            return
        child = self.take_child(spec["network"])
        self.announce_process(child, control)
        self.send_plan(child, spec, [control.fileno()])

    def send_plan(
        self, child: SandboxInitChild, spec: dict[str, Any], extra_fds: list[int]
    ) -> None:
        """Send a child the description of its sandbox, which the child then builds.

        Args:
            child: The child.
            spec: The caller's request.
            extra_fds: The sandbox's socket; or, for a sandbox prepared in advance, the child's ends
                of the prepared program's channels.
        """
        try:
            identity = child.identity = self.pool.take(spec["limits"]["processes"])
            limits = spec["limits"]
            # A sandbox's files lie in memory, and the kernel counts them as memory. So the limit of
            # the cgroup includes the limit of disk space.
            memory_limit = limits["memory"] + limits["disk"]
            process_limit = limits["processes"] + OWN_THREADS
            self.cgroups.limit(child.cgroup, memory_limit, process_limit)
            message = plan(spec, identity, self.machine, is_prepared=child.spec is not None)
            mount_fds = self.frozen_mounts.copies(spec["frozen"])
            try:
                all_fds = [*identity.fds, *mount_fds, *extra_fds]
                wire.send(child.link, message, all_fds, packed=True)
            finally:
                for mount_fd in mount_fds:
                    os.close(mount_fd)
        except OSError:
            child.link.close()
            child.kill()
            raise
        self.starting_children[child.link.fileno()] = child
        self.poll.register(child.link, select.EPOLLIN)

    def start_prepared(self, spec: dict[str, Any], control: socket.socket) -> bool:
        """Give the prepared sandbox to the caller, or discard it if it suits another request.

        Args:
            spec: The caller's request.
            control: The sandbox's socket.

        Returns:
            Whether the caller got the prepared sandbox.
        """
        child = self.prepared_child
        if child is None or child.spec != spec:
            self.discard_prepared()
            return False
        self.prepared_child = None
        with closing(child):
            self.announce_process(child, control)
            try:
                wire.send(child.link, {}, [control.fileno()], packed=True)
            except OSError:  # the child has died
                return False
        return True

    def discard_prepared(self) -> None:
        """End the prepared sandbox, which no caller has used yet."""
        child, self.prepared_child = self.prepared_child, None
        if child is not None:
            child.close()

    @property
    def may_prepare(self) -> bool:
        """Whether the spawner should prepare a sandbox as soon as the spawner is idle."""
        is_wanted = self.is_repeated and not self.last_request["network"]
        return is_wanted and self.prepared_child is None and not self.starting_children

    def poll_timeout(self) -> float | None:
        """Return the seconds that the event loop waits for an event; None: without a limit."""
        if self.may_prepare:
            running_count = len(self.children) - (self.spare_child is not None)
            return _QUIET_SECONDS[running_count > self.processors]
        return _LEAVING_SECONDS if self.cgroups.removal_queue else None

    def prepare_sandbox(self) -> None:
        """Prepare a sandbox for a repetition of the last request."""
        self.is_repeated = False
        with suppress(OSError):  # if the error persists, the next request reports the error
            child = self.take_child(network=False)
            child.spec = self.last_request
            with child.first_program() as child_ends:
                self.send_plan(child, self.last_request, child_ends)

    def take_child(self, network: bool) -> SandboxInitChild:
        """Return the spare child if it suits the next sandbox, or otherwise a new child.

        A spare child does not suit a sandbox that shares the machine's network. Nor does a child
        that was forked before the newest layer was mounted, because the child lacks that mount.

        Args:
            network: Whether the sandbox shares the machine's network.
        """
        child = self.spare_child
        if child is not None and not network:
            self.spare_child = None
            if child.layer_count == self.layers.mount_count:
                return child
            child.link.close()  # the child notices the closed socket, and ends
        return self.fork(network)

    def fork(self, network: bool) -> SandboxInitChild:
        """Fork and return a new child, which enters a cgroup for its sandbox.

        Args:
            network: Whether the child shares the machine's network.
        """
        self.count += 1
        child_name = str(self.count)
        cgroup_name = self.cgroups.take(child_name)
        try:
            clone = partial(self.zygote.fork, network, self.cgroups.folders(cgroup_name))
            child = SandboxInitChild(child_name, cgroup_name, self.layers.mount_count, clone)
        except OSError:
            self.cgroups.give_back(cgroup_name, reuse=False)
            raise
        self.children[child_name] = self.processes[child.process] = child
        self.poll.register(child.process, select.EPOLLIN)
        child.oom_kills = self.cgroups.oom_kills(cgroup_name)
        return child

    def announce_process(self, child: SandboxInitChild, control: socket.socket) -> None:
        """Send the caller a descriptor of a child's process, the sandbox's process 1.

        The caller's ends of the prepared program's channels follow, if the child has a program.
        """
        wire.send(control, {"name": child.name}, [child.process, *child.prepared_fds])

    def finish_start(self, link_fd: int) -> None:
        """Finish the start of a child that has built its file system, or has failed.

        Args:
            link_fd: The descriptor of the child's socket.
        """
        child = self.starting_children.pop(link_fd)
        self.poll.unregister(link_fd)
        child.receive_files()
        if child.spec is None:
            child.link.close()
        elif child.spec == self.last_request:
            self.prepared_child = child
        else:  # the caller has sent a different request, or released a frozen layer, meanwhile
            child.close()
        if self.spare_child is None:
            with suppress(OSError):  # if the error persists, the next start reports the error
                self.spare_child = self.fork(network=False)

    def collect_ended(self, ready_fds: Sequence[int]) -> None:
        """Release the children that have ended, and remove cgroups that no sandbox will reuse.

        Args:
            ready_fds: The descriptors that the event loop found readable.
        """
        for fd in ready_fds:
            if fd in self.processes:
                self.collect(self.processes[fd])
        self.cgroups.remove_unused()

    def collect(self, child: SandboxInitChild) -> None:
        """Release the resources of a child, if the child has ended."""
        exit_code = child.exit_code()
        if exit_code is None:
            return
        del self.children[child.name], self.processes[child.process]
        self.poll.unregister(child.process)
        if self.starting_children.pop(child.link.fileno(), None) is not None:
            self.poll.unregister(child.link)
        self.record_end(child, exit_code)
        # A slowly ending sandbox leaves resources that may still count for its cgroup. So this
        # cgroup is not used for another sandbox.
        self.cgroups.give_back(child.cgroup, reuse=not child.ending)
        child.release()
        if child.identity is not None:
            # The ids are free, because process 1 always ends after all other processes with them.
            self.pool.give_back(child.identity)
        if self.spare_child is child:
            self.spare_child = None
        if self.prepared_child is child:
            self.prepared_child = None
        if child.ending:
            self.count_endings()

    def record_end(self, child: SandboxInitChild, exit_code: int) -> None:
        """Record facts on the end of a child; its cgroup, which has the counts, still exists."""
        starved = self.cgroups.oom_kills(child.cgroup) > child.oom_kills
        self.ends[child.name] = {"exit_code": exit_code, "starved": starved}
        if len(self.ends) > _MAX_ENDS:
            del self.ends[next(iter(self.ends))]

    def close(self) -> None:
        """End every sandbox, wait until the kernel has ended all of them, and clean up."""
        for child in self.children.values():
            child.kill()
            child.ending = True
        self.count_endings()
        with suppress(OSError):
            # The caller waits for this message. If it does not come in time, a signal has stopped
            # the spawner, and the caller kills the spawner.
            wire.send(self.caller, {"ending": len(self.children)})
        self.poll.unregister(self.caller)
        self.poll.unregister(self.owner)
        for child in self.starting_children.values():
            self.poll.unregister(child.link)
        self.starting_children.clear()
        while self.children:
            self.collect_ended([fd for fd, _ in self.poll.poll()])
        self.zygote.close()
        self.cgroups.close()


def main(
    caller: int,
    owner: int,
    ledger: int,
    name: str,
    root: bool,
    workers: Sequence[Any],
) -> None:
    """Run a spawner.

    Args:
        caller: The descriptor of the socket of the caller's requests.
        owner: A descriptor of the caller's process.
        ledger: The descriptor of the ledger: see `exit_ledger`.
        name: The spawner's lease: see `ownership.new_lease`.
        root: Whether the caller has the privileges of `privileges.is_root`.
        workers: The fields of `WorkerModules`, for the sandboxes' workers.
    """
    with socket.socket(fileno=caller) as caller_socket:
        try:
            hide_arguments(b"init")
            for fd in (caller, owner, ledger):
                os.set_inheritable(fd, False)
            spawner = SpawnerLoop(caller_socket, owner, ledger, name, root, WorkerModules(*workers))
        except WorkerModuleImportError as error:
            wire.send(caller_socket, error.report)
            return
        except (EOFError, OSError) as error:
            report(caller_socket, error)
            return
        wire.send(caller_socket, spawner.facts())
        spawner.run()


def report(reply_socket: socket.socket, error: OSError | EOFError) -> None:
    """Send the caller the reason why a sandbox, or this spawner, did not start."""
    error_number = error.errno if isinstance(error, OSError) else None
    detailed_error = sc.with_line(error) if isinstance(error, OSError) else error
    with suppress(OSError):
        wire.send(reply_socket, {"failed": str(detailed_error), "errno": error_number or 0})


_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ESCAPES = {b"\\040": b" ", b"\\011": b"\t", b"\\012": b"\n", b"\\134": b"\\"}
"""The kernel's escapes in mountinfo for characters that would break lines or fields. The backslash
is the last entry, because it must be decoded last."""


def prepare_namespaces(root: bool) -> None:
    """Move this process into a private mount namespace, and create the stage there.

    An ordinary user needs a user namespace, too.
    """
    if root:
        sc.unshare(sc.CLONE_NEWNS)
    else:
        if has_machines_id():
            _stand_in()
        uid, gid = os.geteuid(), os.getegid()
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        write_maps("self", f"0 {uid} 1", f"0 {gid} 1")
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", MOUNT_FOLDER, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "size=1m,mode=755")
    for folder_name in _FOLDERS:
        os.mkdir(f"{MOUNT_FOLDER}/{folder_name}")


def _stand_in() -> None:
    """Change this process's user from the machine's user 0 to the stand-in user.

    No sandbox may ever run as the machine's user 0: see `privileges.has_machines_id`.

    Raises:
        OSError: This process lacks the privileges, or its namespace does not map the id.
    """
    absent_capabilities = missing_capabilities(stand_in=True)
    try:
        if absent_capabilities:
            raise PermissionError(errno.EPERM, f"root has no {', '.join(absent_capabilities)} here")
        os.setgroups([])
        os.setresgid(STAND_IN_ID, STAND_IN_ID, STAND_IN_ID)
        os.setresuid(STAND_IN_ID, STAND_IN_ID, STAND_IN_ID)
    except OSError as error:
        raise OSError(errno.EPERM, f"setuid: {error.strerror}") from error
    sc.prctl(sc.PR_SET_DUMPABLE, 1)  # otherwise root owns the files of its id maps


class MountedLayers:
    """The layers of images, mounted on the stage. The name of a layer is its folder on the stage.

    Args:
        root: Whether the spawner has the privileges of `privileges.is_root`.
    """

    def __init__(self, root: bool) -> None:
        self.root = root
        self.names: dict[str, str] = {}
        """Path of a mounted folder → its name on the stage."""
        self.programs: list[tuple[str, str]] | None = None
        """The result of `mount_programs`, after its first call."""
        self.mount_count = 0
        """The number of mounts so far. A child that was forked before the last mount lacks it."""

    def prepare(self, spec: dict[str, Any]) -> None:
        """Mount the layers that a request needs, and replace their paths in the request by names.

        Raises:
            OSError: A layer is missing or cannot be mounted.
        """
        layer_names = [self.mount_layer(path) for path in spec["layers"]]
        # The request begins with the lowest layer, and overlayfs with the topmost.
        layer_names.reverse()
        special_by_layer = {
            self.mount_layer(path): special_files for path, special_files in spec["special"]
        }
        program_mounts = self.mount_programs() if spec["host"] else []
        spec.update(layers=layer_names, special=special_by_layer, programs=program_mounts)

    def forget(self, path: str) -> None:
        """Unmount a layer, if it is mounted. Running sandboxes keep their copies of the mount."""
        layer_name = self.names.pop(path, None)
        if layer_name is not None:
            sc.umount(f"{MOUNT_FOLDER}/{layer_name}")
            os.rmdir(f"{MOUNT_FOLDER}/{layer_name}")

    def mount_layer(self, path: str) -> str:
        """Mount a folder as a layer, unless it is mounted already; return its name on the stage."""
        if path not in self.names:
            # The kernel permits an ordinary user to copy a mount only with its nested mounts.
            self.names[path] = self._attach(path, recursive=not self.root)
        return self.names[path]

    def _attach(self, host_path: str, recursive: bool) -> str:
        """Mount a read-only copy of `host_path`; return its name on the stage."""
        layer_name = str(self.mount_count + 1)
        mount_point = f"{MOUNT_FOLDER}/{layer_name}"
        mount_fd = sc.open_tree(host_path, recursive)
        try:
            sc.mount_setattr(mount_fd, _READ_ONLY, 0, recursive)
            os.mkdir(mount_point)
            try:
                sc.move_mount(mount_fd, mount_point)
            except OSError:
                os.rmdir(mount_point)  # the next mount uses the same name
                raise
            self.mount_count += 1
        finally:
            os.close(mount_fd)
        return layer_name

    def mount_programs(self) -> list[tuple[str, str]]:
        """Mount the folders of this machine's programs, for sandboxes with the image ``host``.

        Returns:
            The path in a sandbox, and the name on the stage, of each folder. A nested mount comes
            after the folder that contains it.
        """
        if self.programs is None:
            top_folders = [f"/{folder_name}" for folder_name in _PROGRAMS]
            top_folders = [
                path for path in top_folders if os.path.isdir(path) and not os.path.islink(path)
            ]
            nested_mounts = _nested_mounts(top_folders) if self.root else []
            self.programs = [
                (path[1:], self._attach(path, recursive=not self.root))
                for path in dict.fromkeys([*top_folders, *nested_mounts])
            ]
        return self.programs


def _nested_mounts(top_folders: list[str]) -> list[str]:
    """Return the mount points below these folders, parents first."""
    mount_points = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            path_bytes = line.split(b" ")[4]
            for escape, character in _ESCAPES.items():
                path_bytes = path_bytes.replace(escape, character)
            path = os.fsdecode(path_bytes)
            # A mounted file is ignored, because an overlay consists of folders.
            if path.startswith(
                tuple(f"{top_folder}/" for top_folder in top_folders)
            ) and os.path.isdir(path):
                mount_points.add(path)
    return sorted(mount_points)
