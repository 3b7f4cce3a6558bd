"""Memory, process and CPU limits of whole sandboxes, by cgroups that this process may write.

Each spawner has a folder, named after its lease: a sweep recognises a dead spawner's folder. In the
spawner's folder each sandbox has one. In version 1 each controller has a hierarchy of folders.
Version 2 has one hierarchy, in which a cgroup with limited children has no processes itself.
Without a writable cgroup the per-process limits still hold: `doctor` and the run's record say so.

Cgroups are reused: to remove one, the kernel examines every mounted file system of the machine, and
each sandbox has several.
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
"""Subgroup for the processes of this process's cgroup, which then may have limited children."""
CONTROLLERS = ("memory", "pids", "cpu")
_LEAVING_SECONDS = 2.0
_DELEGATION_ATTRIBUTES = ("user.delegate", "trusted.delegate")
"""The attributes by which systemd marks a delegated cgroup."""
_MOVES = 20
_NO_LIMIT = 1 << 62
"""Version 1 expresses "no limit" by a number somewhat below 2 ** 63."""
_TCP_SHARE = 8
"""A sandbox's sockets may use one eighth of its memory, if the kernel counts socket buffers
separately."""
_MAX_IDLE_CGROUPS = 32
"""Cgroups that a spawner retains for its next sandboxes."""
_RESIDUE = 4 << 20
"""Bytes that may still count for a reused cgroup: memory about to be freed, and the machine's cache
of files and names. The kernel reclaims that cache when the sandbox needs memory."""
_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""Version → the file, the weight of a single process of the parent, and the maximum."""


@dataclass(frozen=True)
class Hierarchy:
    """A cgroup in which spawners could create theirs."""

    version: int
    folder: str
    controllers: tuple[str, ...]
    """The members of `CONTROLLERS` that the cgroup could delegate."""


def hierarchies() -> list[Hierarchy]:
    """List the folders in which sandboxes' cgroups could be created, best first."""
    controllers_by_folder: dict[str, list[str]] = {}
    for controller in CONTROLLERS:
        if folder := _folder("cgroup", controller):
            controllers_by_folder.setdefault(folder, []).append(controller)
    candidates = [
        Hierarchy(1, folder, tuple(names)) for folder, names in controllers_by_folder.items()
    ]
    if mount := _mount_point("cgroup2", ""):
        process_folder = _folder("cgroup2", "") or mount[0]
        if os.path.basename(process_folder) == SUPERVISOR:
            process_folder = os.path.dirname(process_folder)
        # The machine's root cgroup may have processes and limited children.
        for folder in dict.fromkeys((process_folder, mount[0])):
            with contextlib.suppress(OSError):
                available_controllers = _read(folder + "/cgroup.controllers").split()
                candidates.append(
                    Hierarchy(
                        2, folder, tuple(c for c in CONTROLLERS if c in available_controllers)
                    )
                )
    return candidates


def parents() -> list[str]:
    """Return all folders in which a spawner could create its cgroups."""
    return list(dict.fromkeys(hierarchy.folder for hierarchy in hierarchies()))


def is_unified() -> bool:
    """Return whether the machine has version 2, with controllers."""
    return any(hierarchy.version == 2 and hierarchy.controllers for hierarchy in hierarchies())


def read_only() -> list[str]:
    """List the read-only mounts of hierarchies that would otherwise hold sandboxes' cgroups."""
    points = [_mount_point("cgroup", controller) for controller in CONTROLLERS]
    points.append(_mount_point("cgroup2", "") if is_unified() else None)
    mount_points = dict.fromkeys(point[0] for point in points if point)
    return [point for point in mount_points if os.statvfs(point).f_flag & os.ST_RDONLY]


def own_memory_limit() -> int | None:
    """Return the memory limit in bytes of a cgroup around this process; None: no limit."""
    for hierarchy in hierarchies():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                limit = int(_read(f"{hierarchy.folder}/{name}"))
                if limit < _NO_LIMIT:
                    return limit
    return None


def own_process_limit() -> int | None:
    """Return the process limit of a cgroup around this process; None: no known limit."""
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            return int(_read(f"{hierarchy.folder}/pids.max"))
    return None


class Cgroups:
    """The cgroups of one spawner's sandboxes.

    Args:
        name: The spawner's lease; see `ownership.new_lease`.
        caller: The spawner's caller. Both processes may be moved to another cgroup.
    """

    def __init__(self, name: str, caller: int) -> None:
        self.hierarchies: list[Hierarchy] = []
        """The spawner's folders, with the limited controllers of each."""
        self.sandboxes = 0
        self.idle_names: deque[str] = deque()
        self.removal_queue: list[str] = []
        """The names of cgroups that await removal."""
        self._limits: dict[str, tuple[int, int]] = {}
        for hierarchy in hierarchies():
            limited_controllers = [
                controller
                for limited_hierarchy in self.hierarchies
                for controller in limited_hierarchy.controllers
            ]
            new_controllers = [c for c in hierarchy.controllers if c not in limited_controllers]
            folder = f"{hierarchy.folder}/{PREFIX}{name}"
            if not new_controllers or not os.access(hierarchy.folder, os.W_OK):
                continue
            try:
                if hierarchy.version == 2:
                    new_controllers = _delegate_controllers(
                        hierarchy.folder, new_controllers, caller
                    )
                os.mkdir(folder)
                if hierarchy.version == 2:
                    new_controllers = _enable_controllers(folder, new_controllers)
            except OSError:
                _try_remove(folder)
                continue
            self.hierarchies.append(Hierarchy(hierarchy.version, folder, tuple(new_controllers)))

    @property
    def version(self) -> int:
        """The version of the cgroups that limit a sandbox's whole memory; 0: none do."""
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
        """The resources that are limited for a sandbox as a whole."""
        return [
            c
            for c in CONTROLLERS
            if any(c in hierarchy.controllers for hierarchy in self.hierarchies)
        ]

    def take(self, name: str) -> str:
        """Return the name of cgroups for a sandbox: clean idle cgroups, or new ones called `name`.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
        """
        for cgroup_name in self.idle_names:  # the longest idle ones first
            if self._is_clean(cgroup_name):
                self.idle_names.remove(cgroup_name)
                break
        else:
            for folder in self.folders(name):
                os.mkdir(folder)
            cgroup_name = name
        self._set_weights(+1)
        return cgroup_name

    def give_back(self, name: str, reuse: bool) -> None:
        """Retain the cgroups of an ended sandbox for another sandbox, or queue their removal."""
        self._set_weights(-1)
        if reuse and self._is_resettable(name):
            self.idle_names.append(name)
        else:
            self.removal_queue.append(name)
        if len(self.idle_names) > _MAX_IDLE_CGROUPS:
            self.removal_queue.append(self.idle_names.popleft())

    def folders(self, name: str) -> list[str]:
        """Return the folders of a sandbox's cgroups."""
        return [f"{hierarchy.folder}/{name}" for hierarchy in self.hierarchies]

    def limit(self, name: str, memory: int, processes: int) -> None:
        """Set the limits of a sandbox's cgroups.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
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
                    with contextlib.suppress(OSError):  # must never be below the memory limit
                        _write(f"{folder}/{swap_file}", "-1")
                _write(f"{folder}/{limit_file}", str(memory))
                with contextlib.suppress(OSError):  # absent if the kernel does not count swap
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
        """Return the number of a sandbox's processes that the out-of-memory killer has killed.

        Without a cgroup that limits the sandbox's memory, return the machine's number.
        """
        path = self._memory_file(name, _OOM) or "/proc/vmstat"
        with contextlib.suppress(OSError):
            for line in _read(path).splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill":
                    return int(count)
        return 0

    def remove_unused(self) -> None:
        """Remove the queued cgroups, except those with processes that are still leaving."""
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
        """Return a file of a sandbox's memory cgroup; empty without a memory cgroup."""
        for hierarchy in self.hierarchies:
            if "memory" in hierarchy.controllers:
                return f"{hierarchy.folder}/{name}/{_MEMORY_FILES[hierarchy.version][kind]}"
        return ""

    def _is_resettable(self, name: str) -> bool:
        """Return whether the peak can be reset for the next sandbox: since Linux 6.12."""
        path = self._memory_file(name, _PEAK)
        return bool(path) and bool(os.stat(path).st_mode & 0o200)

    def _is_clean(self, name: str) -> bool:
        """Return whether idle cgroups count so little memory that the next sandbox can use them."""
        return int(_read(self._memory_file(name, _NOW))) <= _RESIDUE

    def close(self) -> None:
        """Remove the spawner's folders, with their content."""
        for hierarchy in self.hierarchies:
            _remove_tree(hierarchy.folder)

    def _set_weights(self, count_change: int) -> None:
        """Give all sandboxes of all spawners equal weights in case processors are short."""
        self.sandboxes += count_change
        for hierarchy in self.hierarchies:
            if "cpu" in hierarchy.controllers:
                name, single_weight, max_weight = _WEIGHTS[hierarchy.version]
                with contextlib.suppress(OSError):  # its limits hold all the same
                    _write(
                        f"{hierarchy.folder}/{name}",
                        str(min(max_weight, single_weight * max(1, self.sandboxes))),
                    )


_NOW, _PEAK, _OOM = range(3)
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
    2: ("memory.current", "memory.peak", "memory.events"),
}
_V1_MEMORY = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def remove_all(name: str) -> None:
    """Remove the cgroups of a killed spawner by its name."""
    for folder in parents():
        _remove_tree(f"{folder}/{PREFIX}{name}")


def _delegate_controllers(folder: str, controllers: list[str], caller: int) -> list[str]:
    """Delegate controllers of a v2 cgroup to its children; return the delegated ones.

    Raises:
        OSError: The kernel delegates none, or this process lacks the privilege.
    """
    for _ in range(_MOVES):  # new processes may start meanwhile
        # Among cgroups with processes, only the machine's root cgroup, which has no type, may have
        # limited children. Other cgroups would accept some controllers, but to no effect.
        if os.path.exists(folder + "/cgroup.type") and _processes(folder):
            if not _is_ours(folder, caller):
                break
            _move_all(folder)
        try:
            return _enable_controllers(folder, controllers)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "it has foreign processes, or too many", folder)


def _enable_controllers(folder: str, controllers: list[str]) -> list[str]:
    path = folder + "/cgroup.subtree_control"
    # Memory comes first: only memory is refused while the cgroup has processes.
    for controller in controllers:
        try:
            _write(path, f"+{controller}")
        except OSError as error:  # one controller without another is better than none
            if error.errno in (errno.EBUSY, errno.EACCES, errno.EROFS):
                raise
    enabled_controllers = [
        controller for controller in controllers if controller in _read(path).split()
    ]
    if not enabled_controllers:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)
    return enabled_controllers


def _is_ours(folder: str, caller: int) -> bool:
    """Return whether this process may move all processes of a cgroup that are in the way.

    True if the cgroup was delegated as a whole, is a container's root, or holds only descendants
    of the caller.
    """
    for name in _DELEGATION_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    root = _mount_point("cgroup2", "")
    if root is not None and folder == root[0]:  # the machine's root would not be in the way
        return True
    return all(caller in _ancestry(pid) for pid in _processes(folder))


def _ancestry(pid: int) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
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
    """Return this process's cgroup: of a v1 controller, or of v2 for the empty name."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if (controller in names.split(",")) if controller else names == "":
                return path
    return None


def _mount_point(kind: str, option: str) -> tuple[str, str] | None:
    """Return a hierarchy's mount point, and the hierarchy's path that is the mount's root."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            mount_text, _, filesystem_text = line.partition(" - ")
            filesystem, _, options = filesystem_text.split(" ", 2)
            if filesystem == kind and (not option or option in options.strip().split(",")):
                fields = mount_text.split(" ")
                return fields[4], fields[3]
    return None


def _folder(kind: str, controller: str) -> str | None:
    mount_point = _mount_point(kind, controller)
    process_path = _process_path(controller)
    if mount_point is None or process_path is None:
        return None
    point, root = mount_point
    relative = (
        process_path[len(root) :] if root != "/" and process_path.startswith(root) else process_path
    )
    folder = point + "/" + relative.strip("/")
    return folder.rstrip("/") if os.path.isdir(folder) else point


# Without the text layer of `open`, which doubles the system calls for each limit of a sandbox.
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
    """Remove a spawner's folder; its processes have ended, or are about to."""
    deadline = time.monotonic() + _LEAVING_SECONDS  # afterwards a sweep will remove it
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
        return error.errno != errno.EBUSY  # otherwise it is removed, or not removable by us
    return True
