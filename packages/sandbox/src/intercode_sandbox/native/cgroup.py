"""Memory, process and CPU limits for a whole sandbox, by cgroups that we may write.

One folder for each spawner, named after it so that a sweep can tell a dead one's; in it a folder
for each sandbox. In version 1 each controller has a hierarchy of folders; in version 2 there is
one for all of them, in which a cgroup with limited children has no processes of its own. Without a
writable cgroup the per-process limits still hold: `doctor` and the run's record say so.

Cgroups are used again: to remove one, the kernel looks at every mounted file system of the machine,
of which each sandbox has several.
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
"""The cgroup for ourselves and all others in ours, so that ours may have limited children."""
CONTROLLERS = ("memory", "pids", "cpu")
_LEAVING_SECONDS = 2.0
_DELEGATION_ATTRIBUTES = ("user.delegate", "trusted.delegate")
"""The attributes by which systemd marks a cgroup that it has given away."""
_MOVES = 20
_NO_LIMIT = 1 << 62
"""Version 1 says "no limit" by a number somewhat below 2 ** 63."""
_TCP_SHARE = 8
"""A sandbox's sockets may hold one of so many bytes of its memory, where the kernel counts them
apart."""
_MAX_IDLE_CGROUPS = 32
"""Cgroups that a spawner keeps for its next sandboxes."""
_RESIDUE = 4 << 20
"""Bytes that may still count for a cgroup that is used again: the machine's cache of files and
names, which the kernel takes back when the sandbox needs them, and what is about to be freed."""
_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""The file, what a single process of the parent has, and the most."""


@dataclass(frozen=True)
class Hierarchy:
    """A cgroup in which spawners could have theirs."""

    version: int
    folder: str
    controllers: tuple[str, ...]
    """The ones of `CONTROLLERS` that it could pass on."""


def hierarchies() -> list[Hierarchy]:
    """List the folders in which sandboxes' cgroups could be made, best first."""
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
    """Return all folders in which spawners could have theirs."""
    return list(dict.fromkeys(hierarchy.folder for hierarchy in hierarchies()))


def is_unified() -> bool:
    """Whether the machine has version 2, with controllers."""
    return any(hierarchy.version == 2 and hierarchy.controllers for hierarchy in hierarchies())


def read_only() -> list[str]:
    """List the mounts of hierarchies in which sandboxes' cgroups cannot be made for that alone."""
    points = [_mount_point("cgroup", controller) for controller in CONTROLLERS]
    points.append(_mount_point("cgroup2", "") if is_unified() else None)
    mount_points = dict.fromkeys(point[0] for point in points if point)
    return [point for point in mount_points if os.statvfs(point).f_flag & os.ST_RDONLY]


def own_memory_limit() -> int | None:
    """Return the bytes of memory that a cgroup around this process permits; None: no limit."""
    for hierarchy in hierarchies():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                limit = int(_read(f"{hierarchy.folder}/{name}"))
                if limit < _NO_LIMIT:
                    return limit
    return None


def own_process_limit() -> int | None:
    """Return the processes that a cgroup around this process permits; None: no limit is known."""
    for hierarchy in hierarchies():
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            return int(_read(f"{hierarchy.folder}/pids.max"))
    return None


class Cgroups:
    """The cgroups of one spawner's sandboxes.

    Args:
        name: The spawner's; see `lease`.
        caller: The process that the spawner works for. Both may be moved.
    """

    def __init__(self, name: str, caller: int) -> None:
        self.parts: list[Hierarchy] = []
        """The spawner's own folders, with what is limited in each."""
        self.sandboxes = 0
        self.idle_names: deque[str] = deque()
        self.removal_queue: list[str] = []
        """The names of cgroups that are yet to be removed."""
        self._limits: dict[str, tuple[int, int]] = {}
        for hierarchy in hierarchies():
            limited_controllers = [
                controller for part in self.parts for controller in part.controllers
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
            self.parts.append(Hierarchy(hierarchy.version, folder, tuple(new_controllers)))

    @property
    def version(self) -> int:
        """Of the cgroups that limit the memory of a sandbox as a whole; 0: none do."""
        return next((part.version for part in self.parts if "memory" in part.controllers), 0)

    @property
    def controllers(self) -> list[str]:
        """The resources that are limited for a sandbox as a whole."""
        return [c for c in CONTROLLERS if any(c in part.controllers for part in self.parts)]

    def take(self, name: str) -> str:
        """Return the name of cgroups for a sandbox, which the new ones have if no others will do.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
        """
        for cgroup_name in self.idle_names:  # the ones that have rested longest first
            if self._is_clean(cgroup_name):
                self.idle_names.remove(cgroup_name)
                break
        else:
            for folder in self.folders(name):
                os.mkdir(folder)
            cgroup_name = name
        self._weigh(+1)
        return cgroup_name

    def give_back(self, name: str, reuse: bool) -> None:
        """Keep the cgroups of a sandbox that has ended for another one, or remove them soon."""
        self._weigh(-1)
        if reuse and self._is_resettable(name):
            self.idle_names.append(name)
        else:
            self.removal_queue.append(name)
        if len(self.idle_names) > _MAX_IDLE_CGROUPS:
            self.removal_queue.append(self.idle_names.popleft())

    def folders(self, name: str) -> list[str]:
        """Return the folders of a sandbox's cgroups."""
        return [f"{part.folder}/{name}" for part in self.parts]

    def limit(self, name: str, memory: int, processes: int) -> None:
        """Set the limits of a sandbox's cgroups.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
        """
        if self._limits.get(name) == (memory, processes):
            return
        was_limited = self._limits.pop(name, None) is not None
        for part in self.parts:
            folder = f"{part.folder}/{name}"
            if "memory" in part.controllers:
                limit_file, swap_file = (
                    ("memory.max", "memory.swap.max") if part.version == 2 else _V1_MEMORY
                )
                if part.version == 1 and was_limited:
                    with contextlib.suppress(OSError):  # must never be less than the limit without
                        _write(f"{folder}/{swap_file}", "-1")
                _write(f"{folder}/{limit_file}", str(memory))
                with contextlib.suppress(OSError):  # absent where the kernel does not count swap
                    _write(f"{folder}/{swap_file}", "0" if part.version == 2 else str(memory))
                if part.version == 1:
                    with contextlib.suppress(OSError):  # absent where it cannot count it apart
                        _write(
                            f"{folder}/memory.kmem.tcp.limit_in_bytes", str(memory // _TCP_SHARE)
                        )
            if "pids" in part.controllers:
                _write(f"{folder}/pids.max", str(processes))
        self._limits[name] = memory, processes

    def oom_kills(self, name: str) -> int:
        """How many processes the kernel has killed in a sandbox for want of memory.

        Where no cgroup limits its memory: on the machine.
        """
        path = self._memory_file(name, _OOM) or "/proc/vmstat"
        with contextlib.suppress(OSError):
            for line in _read(path).splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill":
                    return int(count)
        return 0

    def remove_unused(self) -> None:
        """Remove the cgroups that are not used again, but those that a process is still leaving."""
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
        """Return a file of a sandbox's memory cgroup; empty if there is none."""
        for part in self.parts:
            if "memory" in part.controllers:
                return f"{part.folder}/{name}/{_MEMORY_FILES[part.version][kind]}"
        return ""

    def _is_resettable(self, name: str) -> bool:
        """Whether a next sandbox can begin with a peak of its own, as since Linux 6.12."""
        path = self._memory_file(name, _PEAK)
        return bool(path) and bool(os.stat(path).st_mode & 0o200)

    def _is_clean(self, name: str) -> bool:
        """Whether what counts for idle cgroups is so little that the next sandbox can have them."""
        return int(_read(self._memory_file(name, _NOW))) <= _RESIDUE

    def close(self) -> None:
        """Remove the spawner's own folders, with all that is left in them."""
        for part in self.parts:
            _remove_tree(part.folder)

    def _weigh(self, change: int) -> None:
        """Have all sandboxes of all spawners weigh the same when processors are short."""
        self.sandboxes += change
        for part in self.parts:
            if "cpu" in part.controllers:
                name, single_weight, max_weight = _WEIGHTS[part.version]
                with contextlib.suppress(OSError):  # its limits hold all the same
                    _write(
                        f"{part.folder}/{name}",
                        str(min(max_weight, single_weight * max(1, self.sandboxes))),
                    )


_NOW, _PEAK, _OOM = range(3)
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"),
    2: ("memory.current", "memory.peak", "memory.events"),
}
_V1_MEMORY = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def remove_all(name: str) -> None:
    """Remove what a spawner of that name has left, which was killed."""
    for folder in parents():
        _remove_tree(f"{folder}/{PREFIX}{name}")


def _delegate_controllers(folder: str, controllers: list[str], caller: int) -> list[str]:
    """Have a v2 cgroup pass controllers on to its children: those that it then does.

    Raises:
        OSError: None, or we may not.
    """
    for _ in range(_MOVES):  # processes may be started meanwhile
        # Of those with processes, only the machine's own, which has no type, may have limited
        # children. Others would not refuse every controller, but be of no use with it.
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
    for (
        controller
    ) in controllers:  # memory first, which alone is refused as long as there are processes
        try:
            _write(path, f"+{controller}")
        except OSError as error:  # one without another is better than none
            if error.errno in (errno.EBUSY, errno.EACCES, errno.EROFS):
                raise
    enabled_controllers = [
        controller for controller in controllers if controller in _read(path).split()
    ]
    if not enabled_controllers:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)
    return enabled_controllers


def _is_ours(folder: str, caller: int) -> bool:
    """Whether it is for us to move all processes of a cgroup, which are in the way.

    It was given to us as a whole, or is a container's, or all of them are our caller's.
    """
    for name in _DELEGATION_ATTRIBUTES:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    root = _mount_point("cgroup2", "")
    if root is not None and folder == root[0]:  # the machine's own would not have been in the way
        return True
    return all(caller in _ancestry(pid) for pid in _processes(folder))


def _ancestry(pid: int) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
    while pid > 0:
        yield pid
        try:
            pid = int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
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
    """Where a hierarchy is mounted, and which of its paths is the mount's root."""
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


# Without what `open` does for a file of text: twice as many calls, for each limit of each sandbox.
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
    deadline = time.monotonic() + _LEAVING_SECONDS  # after which a sweep will find it
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
        return error.errno != errno.EBUSY  # else it is gone, or not ours to remove
    return True
