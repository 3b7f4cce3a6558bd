"""The spawner: a small single-threaded process that forks sandboxes for a large threaded caller.

A fork of the caller would copy its memory map and its locks, and a sandbox would die with the
thread that started it. The spawner owns a private mount namespace with the images' layers, creates
each sandbox's process 1, allocates identities, and keeps the cgroups. The spawner ends, with all
its sandboxes, when the caller's socket closes: so kill -9 of the caller leaves nothing behind.
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
from intercode_sandbox.native.child import Child
from intercode_sandbox.native.exit_ledger import write_ledger
from intercode_sandbox.native.frozen_mounts import FrozenMounts
from intercode_sandbox.native.identity import OWN_THREADS, Identities, write_maps
from intercode_sandbox.native.process_start import Workers
from intercode_sandbox.native.syscalls import hide_arguments
from intercode_sandbox.native.zygote import NotLoadedError, Zygote, plan, probe_machine
from intercode_sandbox.privileges import STAND_IN_ID, has_machines_id, missing_capabilities

MOUNT_FOLDER = "/dev/pts"
"""The folder of the spawner's mounts, in a private mount namespace. Every machine has this folder,
and neither the spawner nor an image needs its content."""
_FOLDERS = ("x", "o", "e", "d", "p", "m")
"""The mount points of each sandbox on the stage: its files, its files with mapped ids, an empty
folder, /dev, /proc, and a folder of the machine's programs on its way into an image."""
_LEAVING_SECONDS = 1.0
"""Seconds between attempts to remove a cgroup."""
_QUIET_SECONDS = 0.001, 0.005
"""Idle seconds before a sandbox is prepared: with a processor for each running sandbox, and with
none to spare."""
_MAX_ENDS = 4096


class Spawner:
    """The event loop of the spawner.

    A spare child is always forked in advance. The next start then does not wait for the fork, for
    new namespaces, and for the move into a cgroup. A spare child holds nothing of any sandbox.

    After two equal requests in a row, the idle spawner prepares a third sandbox with its first
    program. A different request discards it.
    """

    def __init__(
        self,
        caller: socket.socket,
        owner: int,
        ledger: int,
        name: str,
        root: bool,
        workers: Workers,
    ) -> None:
        self.caller = caller
        self.owner = owner
        """A descriptor of the caller's process. The socket alone would not signal its end: a fork
        of the caller may hold the other end, too."""
        self.ledger = ledger
        """The descriptor of the ledger of sandboxes that are still ending."""
        self.poll = select.epoll()
        self.children: dict[str, Child] = {}
        """Name → child, from its fork until it is collected."""
        self.processes: dict[int, Child] = {}
        """Descriptor of the child's process → child."""
        self.starting_children: dict[int, Child] = {}
        self.spare_child: Child | None = None
        self.prepared_child: Child | None = None
        self.last_request: dict[str, Any] = {}
        self.is_repeated = False
        """Whether the last request equals the one before it."""
        self.ends: dict[str, dict[str, Any]] = {}
        """Name → the end of a recent child, as fields of `base.Evidence`."""
        self.count = 0
        self.processors = len(os.sched_getaffinity(0))
        prepare_namespaces(root)
        self.cgroups = cgroup.Cgroups(name, os.getppid())  # with the remaining privileges
        self.machine = probe_machine(root)
        self.zygote = Zygote(self.machine, workers)
        self.layers = Layers(root)
        self.frozen_mounts = FrozenMounts(MOUNT_FOLDER)
        self.pool = Identities(root)

    def run(self) -> None:
        """Serve until the caller ends; then end every sandbox and clean up."""
        self.poll.register(self.caller, select.EPOLLIN)
        self.poll.register(self.owner, select.EPOLLIN)
        try:
            while True:
                events = [fd for fd, _ in self.poll.poll(self.poll_timeout())]
                if self.owner in events:
                    return
                if not events and self.may_prepare:
                    self.prepare_sandbox()
                for fd in events:
                    if fd in self.starting_children:
                        self.finish_start(fd)
                self.collect_ended(events)
                # The caller last: its request may need the files of a child that has just started.
                if self.caller.fileno() in events and not self.take_request():
                    return
        finally:
            self.close()

    def take_request(self) -> bool:
        """Serve one request; report failures on its socket. Return False if the caller has left."""
        try:
            spec, fds = wire.receive(self.caller)
        except wire.TruncatedError:
            return True  # the caller sees the end of the lost socket
        except (EOFError, OSError):
            return False
        if not fds:
            if "thaw" in spec:
                self.thaw(spec["thaw"])
            elif "ending" in spec:
                self.note_ending(spec["ending"])
            else:
                self.discard_prepared()
                self.layers.forget(spec["forget"])
            return True
        with socket.socket(fileno=fds[0]) as control:
            try:
                if "end_of" in spec:
                    wire.send(control, self.evidence(spec["end_of"]))
                elif "freeze" in spec:
                    wire.send(control, self.freeze(spec["freeze"], spec["room"]))
                else:
                    self.start(spec, control)
            except OSError as error:
                report(control, error)
        return True

    def evidence(self, name: str) -> dict[str, Any]:
        """Return evidence of a sandbox that does not answer, as fields of `base.Evidence`."""
        if name in self.children:
            self.collect(self.children[name])
        return {"running": True} if name in self.children else self.ends.get(name, {})

    def note_ending(self, name: str) -> None:
        """Record that a caller has killed a sandbox and does not wait for its end."""
        if name in self.children:
            self.children[name].ending = True
            self.count_endings()

    def count_endings(self) -> None:
        """Update the ledger of sandboxes that are still ending, for ``intercode doctor``."""
        children = self.children.values()
        write_ledger(self.ledger, {child.cgroup: child.pid for child in children if child.ending})

    def freeze(self, name: str, room: int) -> dict[str, Any]:
        """Retain the files of a sandbox without running processes as a layer.

        Args:
            name: The sandbox's name.
            room: Maximum size of the layer in bytes.

        Returns:
            The ``bytes`` and ``files`` of the layer, and its ``name`` if it was created.
        """
        child = self.children.get(name)
        if child is None or (tree := child.files) is None:
            return {}
        file_system_stats = os.fstatvfs(tree)
        used_bytes = (
            file_system_stats.f_blocks - file_system_stats.f_bfree
        ) * file_system_stats.f_frsize
        reply: dict[str, Any] = {
            "bytes": used_bytes,
            "files": file_system_stats.f_files - file_system_stats.f_ffree,
        }
        if used_bytes <= room:
            with suppress(OSError):  # the kernel does not permit it, or a file is open for writing
                reply["name"] = self.frozen_mounts.add(tree)
        return reply

    def thaw(self, name: str) -> None:
        """Release a frozen layer."""
        if name in self.last_request.get("frozen", ()):
            self.discard_prepared()
            self.is_repeated, self.last_request = False, {}
        self.frozen_mounts.remove(name)

    def facts(self) -> dict[str, Any]:
        """Return the facts for a run's record and `doctor`."""
        return {
            "root": self.machine.root,
            "cgroup": self.cgroups.version,
            "controllers": self.cgroups.controllers,
            **({"fork_flaw": self.zygote.flaw} if self.zygote.flaw else {}),
        }

    def start(self, spec: dict[str, Any], control: socket.socket) -> None:
        """Start one sandbox. The sandbox reports on its socket when it is ready."""
        self.layers.prepare(spec)
        self.is_repeated, self.last_request = spec == self.last_request, spec
        if self.start_prepared(spec, control):
            return
        child = self.take_child(spec["network"])
        self.announce_process(child, control)
        self.send_plan(child, spec, [control.fileno()])

    def send_plan(self, child: Child, spec: dict[str, Any], fds: list[int]) -> None:
        """Send a child its sandbox's plan and identity."""
        try:
            identity = child.identity = self.pool.take(spec["limits"]["processes"])
            limits = spec["limits"]
            # Files in memory count as memory: their quota is added to the limit.
            total = limits["memory"] + limits["disk"]
            processes = limits["processes"] + OWN_THREADS
            self.cgroups.limit(child.cgroup, total, processes)
            message = plan(spec, identity, self.machine, ahead=child.spec is not None)
            mounts = self.frozen_mounts.copies(spec["frozen"])
            try:
                descriptors = [*identity.fds, *mounts, *fds]
                wire.send(child.link, message, descriptors, packed=True)
            finally:
                for fd in mounts:
                    os.close(fd)
        except OSError:
            child.link.close()
            child.kill()
            raise
        self.starting_children[child.link.fileno()] = child
        self.poll.register(child.link, select.EPOLLIN)

    def start_prepared(self, spec: dict[str, Any], control: socket.socket) -> bool:
        """Give the caller the prepared sandbox, if its request is the same."""
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
        """End the prepared sandbox, in which no request has run."""
        child, self.prepared_child = self.prepared_child, None
        if child is not None:
            child.close()

    @property
    def may_prepare(self) -> bool:
        """Whether the spawner should prepare a sandbox once it is idle."""
        is_wanted = self.is_repeated and not self.last_request["network"]
        return is_wanted and self.prepared_child is None and not self.starting_children

    def poll_timeout(self) -> float | None:
        """Return the poll's time-out in seconds; None: wait for an event."""
        if self.may_prepare:
            running_count = len(self.children) - (self.spare_child is not None)
            return _QUIET_SECONDS[running_count > self.processors]
        return _LEAVING_SECONDS if self.cgroups.removal_queue else None

    def prepare_sandbox(self) -> None:
        """Prepare a sandbox for a repetition of the last request."""
        self.is_repeated = False
        with suppress(OSError):  # the next request meets the error again, and reports it
            child = self.take_child(network=False)
            child.spec = self.last_request
            with child.first_program() as child_ends:
                self.send_plan(child, self.last_request, child_ends)

    def take_child(self, network: bool) -> Child:
        """Return the spare child if it fits, or a new child."""
        child = self.spare_child
        if child is not None and not network:
            self.spare_child = None
            if child.layer_count == self.layers.mount_count:
                return child
            child.link.close()  # ends the child
        return self.fork(network)

    def fork(self, network: bool) -> Child:
        """Return a new child, which enters its own cgroup."""
        self.count += 1
        name = str(self.count)
        group = self.cgroups.take(name)
        try:
            clone = partial(self.zygote.fork, network, self.cgroups.folders(group))
            child = Child(name, group, self.layers.mount_count, clone)
        except OSError:
            self.cgroups.give_back(group, reuse=False)
            raise
        self.children[name] = self.processes[child.process] = child
        self.poll.register(child.process, select.EPOLLIN)
        child.oom_kills = self.cgroups.oom_kills(group)
        return child

    def announce_process(self, child: Child, control: socket.socket) -> None:
        """Send the caller a descriptor of its sandbox's process 1."""
        wire.send(control, {"name": child.name}, [child.process, *child.prepared_fds])

    def finish_start(self, link: int) -> None:
        """Finish the spawner's part of a start: the child has a file system, or has failed."""
        child = self.starting_children.pop(link)
        self.poll.unregister(link)
        child.receive_files()
        if child.spec is None:
            child.link.close()
        elif child.spec == self.last_request:
            self.prepared_child = child
        else:  # another request has come meanwhile, or its frozen layers were released
            child.close()
        if self.spare_child is None:
            with suppress(OSError):  # the next start meets the error again, and reports it
                self.spare_child = self.fork(network=False)

    def collect_ended(self, events: Sequence[int]) -> None:
        """Collect the children whose ends are among these events, and remove ended cgroups."""
        for fd in events:
            if fd in self.processes:
                self.collect(self.processes[fd])
        self.cgroups.remove_unused()

    def collect(self, child: Child) -> None:
        """Release a child and its resources, if it has ended."""
        exit_code = child.exit_code()
        if exit_code is None:
            return
        del self.children[child.name], self.processes[child.process]
        self.poll.unregister(child.process)
        if self.starting_children.pop(child.link.fileno(), None) is not None:
            self.poll.unregister(child.link)
        self.record_end(child, exit_code)
        # The resources that the kernel frees slowly may still count for its cgroup.
        self.cgroups.give_back(child.cgroup, reuse=not child.ending)
        child.release()
        if child.identity is not None:
            # Process 1 is the last process with these ids to end.
            self.pool.give_back(child.identity)
        if self.spare_child is child:
            self.spare_child = None
        if self.prepared_child is child:
            self.prepared_child = None
        if child.ending:
            self.count_endings()

    def record_end(self, child: Child, exit_code: int) -> None:
        """Record the end of a child, while its cgroup still has the counts."""
        starved = self.cgroups.oom_kills(child.cgroup) > child.oom_kills
        self.ends[child.name] = {"exit_code": exit_code, "starved": starved}
        if len(self.ends) > _MAX_ENDS:
            del self.ends[next(iter(self.ends))]

    def close(self) -> None:
        """End every sandbox and clean up, even if the kernel takes long for an end."""
        for child in self.children.values():
            child.kill()
            child.ending = True
        self.count_endings()
        with suppress(OSError):
            # The message frees the caller from waiting: only a spawner that was stopped sends none.
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
        caller: The descriptor of its caller's socket.
        owner: A descriptor of the caller's process.
        ledger: The descriptor of its ledger; see `exit_ledger`.
        name: Its lease; see `ownership.new_lease`.
        root: Whether the caller has the privileges of `privileges.is_root`.
        workers: The fields of the `Workers` of its sandboxes.
    """
    with socket.socket(fileno=caller) as sock:
        try:
            hide_arguments(b"init")
            for fd in (caller, owner, ledger):
                os.set_inheritable(fd, False)
            spawner = Spawner(sock, owner, ledger, name, root, Workers(*workers))
        except NotLoadedError as error:
            wire.send(sock, error.report)
            return
        except (EOFError, OSError) as error:
            report(sock, error)
            return
        wire.send(sock, spawner.facts())
        spawner.run()


def report(control: socket.socket, error: OSError | EOFError) -> None:
    """Report to the caller why a sandbox, or this spawner, did not start."""
    error_number = error.errno if isinstance(error, OSError) else None
    cause = sc.with_line(error) if isinstance(error, OSError) else error
    with suppress(OSError):
        wire.send(control, {"failed": str(cause), "errno": error_number or 0})


_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ESCAPES = {b"\\040": b" ", b"\\011": b"\t", b"\\012": b"\n", b"\\134": b"\\"}
"""Escapes of mountinfo for characters that would break its lines; the backslash is decoded last."""


def prepare_namespaces(root: bool) -> None:
    """Create a private mount namespace for this process, and the stage."""
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
    for name in _FOLDERS:
        os.mkdir(f"{MOUNT_FOLDER}/{name}")


def _stand_in() -> None:
    """Give up the machine's user 0, which no sandbox may ever have, for the stand-in user.

    Raises:
        OSError: This process lacks the privileges, or the id is not mapped.
    """
    missing_names = missing_capabilities(stand_in=True)
    try:
        if missing_names:
            raise PermissionError(errno.EPERM, f"root has no {', '.join(missing_names)} here")
        os.setgroups([])
        os.setresgid(STAND_IN_ID, STAND_IN_ID, STAND_IN_ID)
        os.setresuid(STAND_IN_ID, STAND_IN_ID, STAND_IN_ID)
    except OSError as error:
        raise OSError(errno.EPERM, f"setuid: {error.strerror}") from error
    sc.prctl(sc.PR_SET_DUMPABLE, 1)  # otherwise root owns the files of its id maps


class Layers:
    """The layers mounted on the stage."""

    def __init__(self, root: bool) -> None:
        self.root = root
        self.names: dict[str, str] = {}
        self.programs: list[tuple[str, str]] | None = None
        self.mount_count = 0
        """The number of mounts so far: a process forked before the last lacks it."""

    def prepare(self, spec: dict[str, Any]) -> None:
        """Replace the host's paths in a request by names on the stage; mount new layers.

        Raises:
            OSError: A layer is missing or cannot be mounted.
        """
        names = [self.mount_layer(path) for path in spec["layers"]]
        names.reverse()  # the request lists the lowest first, overlayfs the topmost
        special = {self.mount_layer(path): files for path, files in spec["special"]}
        programs = self.mount_programs() if spec["host"] else []
        spec.update(layers=names, special=special, programs=programs)

    def forget(self, path: str) -> None:
        """Unmount a layer. Running sandboxes keep their own copies."""
        name = self.names.pop(path, None)
        if name is not None:
            sc.umount(f"{MOUNT_FOLDER}/{name}")
            os.rmdir(f"{MOUNT_FOLDER}/{name}")

    def mount_layer(self, path: str) -> str:
        """Mount a folder as a layer; return its name on the stage."""
        if path not in self.names:
            # Nested mounts are part of an ordinary user's view of a folder.
            self.names[path] = self._attach(path, recursive=not self.root)
        return self.names[path]

    def _attach(self, path: str, recursive: bool) -> str:
        """Mount a read-only copy of `path`; return its name on the stage."""
        name = str(self.mount_count + 1)
        os.mkdir(f"{MOUNT_FOLDER}/{name}")
        tree = sc.open_tree(path, recursive)
        try:
            sc.mount_setattr(tree, _READ_ONLY, 0, recursive)
            sc.move_mount(tree, f"{MOUNT_FOLDER}/{name}")
            self.mount_count += 1
        finally:
            os.close(tree)
        return name

    def mount_programs(self) -> list[tuple[str, str]]:
        """List folders of this machine's programs: their paths in a sandbox and names on the stage.

        A nested mount comes after the folder that contains it.
        """
        if self.programs is None:
            top_folders = [f"/{name}" for name in _PROGRAMS]
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
    folders = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            field = line.split(b" ")[4]
            for escape, character in _ESCAPES.items():
                field = field.replace(escape, character)
            path = os.fsdecode(field)
            # A file that is mounted stays out: an overlay consists of folders.
            if path.startswith(tuple(f"{top}/" for top in top_folders)) and os.path.isdir(path):
                folders.add(path)
    return sorted(folders)
