"""Memory, process and CPU limits of whole sandboxes, by cgroups.

Limits need a cgroup in which this process may create folders. Each spawner has a folder there, and
each sandbox a folder in the spawner's. The name of the spawner's folder contains the spawner's
lease. So `snapshot.sweep` recognises and removes the folder of a spawner that has ended.

In version 1 of cgroups each controller has a hierarchy of folders. Version 2 has one hierarchy. A
cgroup of version 2 whose children have limits must not contain processes itself. Without a writable
cgroup only the limits of each process apply, which ``intercode doctor`` and a run's record show.

The spawner reuses cgroups if the kernel permits it, because their removal is slow. To remove a
cgroup, the kernel examines every mounted file system of the machine, and each sandbox has several.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "intercode-"
SUPERVISOR = "supervisor"
"""Name of a child of this process's cgroup. Processes of that cgroup are moved into the child:
without processes the cgroup may have children with limits."""
CONTROLLERS = ("memory", "pids", "cpu")
_LEAVING_SECONDS = 2.0
"""Seconds for which the removal of a spawner's folder waits for the end of its processes."""
_DELEGATION_ATTRIBUTES = ("user.delegate", "trusted.delegate")
"""The extended attributes by which systemd marks a delegated cgroup."""
_MOVES = 20
"""Maximum number of attempts to move all processes out of a cgroup."""
_NO_LIMIT = 1 << 62
"""A memory limit of at least this many bytes means "no limit". Version 1 then reports a number
somewhat below 2 ** 63."""
_TCP_SHARE = 8
"""Divisor of a sandbox's memory: its TCP sockets may use one eighth, if the kernel counts the
buffers of sockets separately."""
_MAX_IDLE_CGROUPS = 32
"""Maximum number of idle cgroups that a spawner retains for its next sandboxes."""
_RESIDUE = 4 << 20
"""Maximum of bytes that may still count for an idle cgroup when it is reused. The bytes are memory
about to be freed, and the machine's cache of files and names. The kernel reclaims that cache when
the next sandbox needs memory."""
_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""Version of cgroups → the name of the weight's file, the weight that the kernel gives to a single
process, and the maximal weight."""


@dataclass(frozen=True)
class SpawnerCgroup:
    """A cgroup in which a spawner can create its folder, or the spawner's folder itself."""

    version: int
    folder: str
    controllers: tuple[str, ...]
    """The members of `CONTROLLERS` that can limit, or do limit, the children of the cgroup."""


def hierarchies() -> list[SpawnerCgroup]:
    """Return the cgroups in which a spawner could create its folder, in the order of preference.

    Whether this process may write to their folders is not checked.
    """
    controllers_by_folder: dict[str, list[str]] = {}
    for controller in CONTROLLERS:
        if folder := _folder("cgroup", controller):
            controllers_by_folder.setdefault(folder, []).append(controller)
    candidates = [
        SpawnerCgroup(1, folder, tuple(controllers))
        for folder, controllers in controllers_by_folder.items()
    ]
    if mount := _mount_point("cgroup2", ""):
        process_folder = _folder("cgroup2", "") or mount[0]
        if os.path.basename(process_folder) == SUPERVISOR:
            process_folder = os.path.dirname(process_folder)
        # The machine's root cgroup is a candidate, too: only this cgroup may have both processes
        # and children with limits.
        for folder in dict.fromkeys((process_folder, mount[0])):
            with contextlib.suppress(OSError):
                available_controllers = _read(folder + "/cgroup.controllers").split()
                candidates.append(
                    SpawnerCgroup(
                        2,
                        folder,
                        tuple(
                            controller_name
                            for controller_name in CONTROLLERS
                            if controller_name in available_controllers
                        ),
                    )
                )
    return candidates


def parents() -> list[str]:
    """Return all folders of cgroups in which a spawner could create its folder."""
    return list(dict.fromkeys(hierarchy.folder for hierarchy in hierarchies()))


def is_unified() -> bool:
    """Return whether the machine has cgroups of version 2, with controllers."""
    return any(hierarchy.version == 2 and hierarchy.controllers for hierarchy in hierarchies())


def read_only() -> list[str]:
    """Return the mount points of cgroups that no spawner can use, because they are read-only."""
    mounts = [_mount_point("cgroup", controller) for controller in CONTROLLERS]
    mounts.append(_mount_point("cgroup2", "") if is_unified() else None)
    mount_points = dict.fromkeys(point[0] for point in mounts if point)
    return [point for point in mount_points if os.statvfs(point).f_flag & os.ST_RDONLY]


def own_memory_limit() -> int | None:
    """Return the memory limit, in bytes, of the cgroup of this process; None: no known limit."""
    for hierarchy in hierarchies():
        for file_name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                limit = int(_read(f"{hierarchy.folder}/{file_name}"))
                if limit < _NO_LIMIT:
                    return limit
    return None


def own_process_limit() -> int | None:
    """Return the limit of processes of the cgroup of this process; None: no known limit."""
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            return int(_read(f"{hierarchy.folder}/pids.max"))
    return None


class SandboxCgroups:
    """The cgroups of one spawner's sandboxes.

    Args:
        lease: The spawner's lease: see `ownership.new_lease`.
        caller_pid: The pid of the spawner's caller. This class may move all processes of the
            caller's cgroup into a child of that cgroup: see `_is_ours`.
    """

    def __init__(self, lease: str, caller_pid: int) -> None:
        self.hierarchies: list[SpawnerCgroup] = []
        """The spawner's folders, with the controllers that limit sandboxes in each."""
        self.sandboxes = 0
        """The number of sandboxes that have cgroups, including those started in advance."""
        self.idle_names: deque[str] = deque()
        """The names of cgroups that wait for another sandbox, the longest idle one first."""
        self.removal_queue: list[str] = []
        """The names of cgroups that await removal."""
        self._limits: dict[str, tuple[int, int]] = {}
        """Name of cgroups → their present limits of memory and processes."""
        for hierarchy in hierarchies():
            previous_controllers = [
                controller
                for previous_hierarchy in self.hierarchies
                for controller in previous_hierarchy.controllers
            ]
            new_controllers = [
                controller_name
                for controller_name in hierarchy.controllers
                if controller_name not in previous_controllers
            ]
            spawner_folder = f"{hierarchy.folder}/{PREFIX}{lease}"
            if not new_controllers or not os.access(hierarchy.folder, os.W_OK):
                continue
            try:
                if hierarchy.version == 2:
                    new_controllers = _delegate_controllers(
                        hierarchy.folder, new_controllers, caller_pid
                    )
                os.mkdir(spawner_folder)
                if hierarchy.version == 2:
                    new_controllers = _enable_controllers(spawner_folder, new_controllers)
            except OSError:
                _try_remove(spawner_folder)
                continue
            self.hierarchies.append(
                SpawnerCgroup(hierarchy.version, spawner_folder, tuple(new_controllers))
            )

    @property
    def version(self) -> int:
        """The version of the cgroups that limit the memory of sandboxes; 0: no cgroup does."""
        return next(
            (
                hierarchy.version
                for hierarchy in self.hierarchies
                if "memory" in hierarchy.controllers
            ),
            0,
        )

    @property
    def controllers(self) -> list[str]:
        """The members of `CONTROLLERS` that limit sandboxes as a whole."""
        return [
            controller
            for controller in CONTROLLERS
            if any(controller in hierarchy.controllers for hierarchy in self.hierarchies)
        ]

    def take(self, new_name: str) -> str:
        """Return the name of the cgroups for a new sandbox: one in each folder of the spawner.

        Idle cgroups are reused if they are clean.

        Args:
            new_name: The name of the cgroups if new ones are created.

        Raises:
            OSError: The kernel did not permit the cgroups; the sandbox must not start.
        """
        for cgroup_name in self.idle_names:
            if self._is_clean(cgroup_name):
                self.idle_names.remove(cgroup_name)
                break
        else:
            with contextlib.ExitStack() as failure_cleanup:
                for folder in self.folders(new_name):
                    os.mkdir(folder)
                    failure_cleanup.callback(os.rmdir, folder)
                failure_cleanup.pop_all()
            cgroup_name = new_name
        self._set_weights(+1)
        return cgroup_name

    def give_back(self, name: str, reuse: bool) -> None:
        """Retain the cgroups of an ended sandbox for another sandbox, or queue their removal.

        Args:
            name: The name of the cgroups.
            reuse: Whether the cgroups may be retained.
        """
        self._set_weights(-1)
        if reuse and self._is_resettable(name):
            self.idle_names.append(name)
        else:
            self.removal_queue.append(name)
        if len(self.idle_names) > _MAX_IDLE_CGROUPS:
            self.removal_queue.append(self.idle_names.popleft())

    def folders(self, name: str) -> list[str]:
        """Return the folders of the cgroups of this name."""
        return [f"{hierarchy.folder}/{name}" for hierarchy in self.hierarchies]

    def limit(self, name: str, memory: int, processes: int) -> None:
        """Set the limits of a sandbox's cgroups.

        Args:
            name: The name of the cgroups.
            memory: Maximum of bytes.
            processes: Maximum of processes and threads.

        Raises:
            OSError: The kernel did not accept the limits; the sandbox must not start.
        """
        if self._limits.get(name) == (memory, processes):
            return
        was_limited = self._limits.pop(name, None) is not None
        for hierarchy in self.hierarchies:
            folder = f"{hierarchy.folder}/{name}"
            if "memory" in hierarchy.controllers:
                limit_file, swap_file = (
                    ("memory.max", "memory.swap.max") if hierarchy.version == 2 else _V1_MEMORY
                )
                if hierarchy.version == 1 and was_limited:
                    # The kernel requires that the limit with swap is not below the memory limit. So
                    # the former is lifted before the latter changes.
                    with contextlib.suppress(OSError):
                        _write(f"{folder}/{swap_file}", "-1")
                _write(f"{folder}/{limit_file}", str(memory))
                # The file is absent if the kernel does not count swap.
                with contextlib.suppress(OSError):
                    _write(f"{folder}/{swap_file}", "0" if hierarchy.version == 2 else str(memory))
                if hierarchy.version == 1:
                    # The file is absent if the kernel does not count socket buffers separately.
                    with contextlib.suppress(OSError):
                        _write(
                            f"{folder}/memory.kmem.tcp.limit_in_bytes", str(memory // _TCP_SHARE)
                        )
            if "pids" in hierarchy.controllers:
                _write(f"{folder}/pids.max", str(processes))
        self._limits[name] = memory, processes

    def oom_kills(self, name: str) -> int:
        """Return the number of processes that the out-of-memory killer has killed in a sandbox.

        Without a cgroup that limits the sandbox's memory, the number is that of the whole machine.
        """
        path = self._memory_file(name, _OOM) or "/proc/vmstat"
        with contextlib.suppress(OSError):
            for line in _read(path).splitlines():
                counter_name, _, count = line.partition(" ")
                if counter_name == "oom_kill":
                    return int(count)
        return 0

    def remove_unused(self) -> None:
        """Remove the queued cgroups, except cgroups whose processes have not yet ended."""
        self.removal_queue = [name for name in self.removal_queue if not self._remove(name)]

    def _remove(self, name: str) -> bool:
        try:
            for folder in self.folders(name):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(folder)
        except OSError:
            return False
        self._limits.pop(name, None)
        return True

    def _memory_file(self, name: str, kind: int) -> str:
        """Return the path of a file of a sandbox's memory cgroup; empty without such a cgroup.

        Args:
            name: The name of the sandbox's cgroups.
            kind: ``_NOW``, ``_PEAK`` or ``_OOM``.
        """
        for hierarchy in self.hierarchies:
            if "memory" in hierarchy.controllers:
                return f"{hierarchy.folder}/{name}/{_MEMORY_FILES[hierarchy.version][kind]}"
        return ""

    def _is_resettable(self, name: str) -> bool:
        """Return whether the highest use of memory can be reset for the next sandbox.

        Cgroups of version 1 permit the reset, and those of version 2 since Linux 6.12. Without a
        cgroup that limits memory the result is False.
        """
        path = self._memory_file(name, _PEAK)
        return bool(path) and bool(os.stat(path).st_mode & 0o200)

    def _is_clean(self, name: str) -> bool:
        """Return whether idle cgroups can be reused: at most `_RESIDUE` bytes count for them."""
        return int(_read(self._memory_file(name, _NOW))) <= _RESIDUE

    def close(self) -> None:
        """Remove the spawner's folders, with their content."""
        for hierarchy in self.hierarchies:
            _remove_tree(hierarchy.folder)

    def _set_weights(self, count_change: int) -> None:
        """Update the number of sandboxes, and the processor weight of the spawner's folders.

        The weight is proportional to the number of the spawner's sandboxes. So the sandboxes of all
        spawners get equal shares if processors are short.

        Args:
            count_change: 1 for a new sandbox, -1 for an ended one.
        """
        self.sandboxes += count_change
        for hierarchy in self.hierarchies:
            if "cpu" in hierarchy.controllers:
                weight_file, single_weight, max_weight = _WEIGHTS[hierarchy.version]
                with contextlib.suppress(OSError):  # the limits of the sandboxes apply nevertheless
                    _write(
                        f"{hierarchy.folder}/{weight_file}",
                        str(min(max_weight, single_weight * max(1, self.sandboxes))),
                    )


_NOW, _PEAK, _OOM = range(3)
"""Positions in the values of `_MEMORY_FILES`: the present use, the highest use, and events."""
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
    2: ("memory.current", "memory.peak", "memory.events"),
}
_V1_MEMORY = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def remove_all(lease: str) -> None:
    """Remove the cgroups of a spawner that was killed.

    Args:
        lease: The spawner's lease.
    """
    for parent_folder in parents():
        _remove_tree(f"{parent_folder}/{PREFIX}{lease}")


def _delegate_controllers(folder: str, controllers: list[str], caller_pid: int) -> list[str]:
    """Delegate controllers of a cgroup of version 2 to its children.

    Args:
        folder: The cgroup's folder. Processes in the way are moved into a child of the cgroup.
        controllers: The names of the controllers.
        caller_pid: See `_is_ours`.

    Returns:
        The names of the delegated controllers.

    Raises:
        OSError: The kernel delegates no controller, or this process lacks the privilege. EBUSY: the
            cgroup has foreign processes, or new ones appear too fast.
    """
    for _ in range(_MOVES):  # new processes may start in the cgroup between two attempts
        # Only the machine's root cgroup, which has no cgroup.type, may have both processes and
        # children with limits. Other cgroups with processes would accept some controllers, which
        # would have no effect.
        if os.path.exists(folder + "/cgroup.type") and _processes(folder):
            if not _is_ours(folder, caller_pid):
                break
            _move_all(folder)
        try:
            return _enable_controllers(folder, controllers)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "it has foreign processes, or too many", folder)


def _enable_controllers(folder: str, controllers: list[str]) -> list[str]:
    control_path = folder + "/cgroup.subtree_control"
    # Memory comes first in the list. While the cgroup has processes, the kernel refuses only this
    # controller.
    for controller in controllers:
        try:
            _write(control_path, f"+{controller}")
        except OSError as error:
            # After any other error the loop continues: the remaining controllers are still useful.
            if error.errno in (errno.EBUSY, errno.EACCES, errno.EROFS):
                raise
    enabled_controllers = [
        controller for controller in controllers if controller in _read(control_path).split()
    ]
    if not enabled_controllers:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), control_path)
    return enabled_controllers


def _is_ours(folder: str, caller_pid: int) -> bool:
    """Return whether this process may move all processes of a cgroup to another cgroup.

    True if the cgroup was delegated as a whole, is the root cgroup of a container, or contains only
    the caller and its descendants.

    Args:
        folder: The cgroup's folder.
        caller_pid: The pid of the spawner's caller.
    """
    for attribute in _DELEGATION_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, attribute) == b"1":
                return True
    root_mount = _mount_point("cgroup2", "")
    # The root is a container's: the callers of this function exclude the machine's root cgroup.
    if root_mount is not None and folder == root_mount[0]:
        return True
    return all(caller_pid in _ancestry(pid) for pid in _processes(folder))


def _ancestry(pid: int) -> Iterator[int]:
    """Yield the pid of a process, of its parent, of its grandparent, and so on."""
    while pid > 0:
        yield pid
        try:
            pid = int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except OSError:  # the process has just ended
            return


def _move_all(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{folder}/{SUPERVISOR}")
    for pid in _processes(folder):
        with contextlib.suppress(ProcessLookupError):
            _write(f"{folder}/{SUPERVISOR}/cgroup.procs", str(pid))


def _processes(folder: str) -> list[int]:
    return [int(pid) for pid in _read(folder + "/cgroup.procs").split()]


def _process_path(controller: str) -> str | None:
    """Return the path of this process's cgroup in a hierarchy.

    Args:
        controller: The controller of a hierarchy of version 1; empty for version 2.
    """
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers_text, path = line.rstrip("\n").split(":", 2)
            if (
                (controller in controllers_text.split(","))
                if controller
                else controllers_text == ""
            ):
                return path
    return None


def _mount_point(filesystem_type: str, option: str) -> tuple[str, str] | None:
    """Return the mount point of a hierarchy of cgroups; None: no such hierarchy is mounted.

    Args:
        filesystem_type: The type of the file system: ``cgroup`` or ``cgroup2``.
        option: A controller among the mount's options; empty: any options.

    Returns:
        The mount point, and the path of the cgroup in the hierarchy that is mounted there.
    """
    with open("/proc/self/mountinfo") as file:
        for line in file:
            mount_text, _, filesystem_text = line.partition(" - ")
            mounted_type, _, options_text = filesystem_text.split(" ", 2)
            if mounted_type == filesystem_type and (
                not option or option in options_text.strip().split(",")
            ):
                fields = mount_text.split(" ")
                return fields[4], fields[3]
    return None


def _folder(filesystem_type: str, controller: str) -> str | None:
    mount = _mount_point(filesystem_type, controller)
    process_path = _process_path(controller)
    if mount is None or process_path is None:
        return None
    mount_folder, root = mount
    relative_path = (
        process_path[len(root) :] if root != "/" and process_path.startswith(root) else process_path
    )
    folder = mount_folder + "/" + relative_path.strip("/")
    return folder.rstrip("/") if os.path.isdir(folder) else mount_folder


# `os.open` replaces `open`, which makes twice as many system calls for each limit of a sandbox.
def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b"")).decode()
    finally:
        os.close(fd)


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _remove_tree(folder: str) -> None:
    """Remove a spawner's folder, in which all processes have ended or are about to end."""
    deadline = time.monotonic() + _LEAVING_SECONDS  # afterwards `snapshot.sweep` removes the folder
    while not _try_remove(folder) and time.monotonic() < deadline:
        time.sleep(0.002)


def _try_remove(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    os.rmdir(entry.path)
        os.rmdir(folder)
    except OSError as error:
        # EBUSY: a process has not ended yet. Any other error: the folder does not exist any more,
        # or this process cannot remove it.
        return error.errno != errno.EBUSY
    return True
