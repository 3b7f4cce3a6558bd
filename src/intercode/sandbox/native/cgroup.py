"""Memory and process limits for a whole sandbox, by cgroup v1 or v2, where we may write them.

One folder for each spawner, named after it so that a sweep can tell a dead one's; in it a folder
for each sandbox. Without a writable cgroup the per-process limits still hold: `doctor` and the
run's record say so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

PREFIX = "intercode-"
_LEAVING_SECONDS = 2.0


def _own_path(controller: str) -> str | None:
    """This process's cgroup: of a v1 controller, or of v2 for the empty name."""
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
            left, _, right = line.partition(" - ")
            filesystem, _, options = right.split(" ", 2)
            if filesystem == kind and (not option or option in options.strip().split(",")):
                fields = left.split(" ")
                return fields[4], fields[3]
    return None


def _folder(kind: str, controller: str) -> str | None:
    found = _mount_point(kind, controller)
    own = _own_path(controller)
    if found is None or own is None:
        return None
    point, root = found
    relative = own[len(root) :] if root != "/" and own.startswith(root) else own
    folder = point + "/" + relative.strip("/")
    return folder.rstrip("/") if os.path.isdir(folder) else point


def parents() -> list[tuple[int, str]]:
    """(version, folder) under which sandboxes' cgroups could be made, best first."""
    found = []
    if folder := _folder("cgroup", "memory"):
        found.append((1, folder))
    if mount := _mount_point("cgroup2", ""):
        # Our own v2 cgroup holds processes, which bars it from having limited children; the root
        # cgroup is exempt from that rule, and as root we may write there.
        for folder in dict.fromkeys((_folder("cgroup2", "") or mount[0], mount[0])):
            with contextlib.suppress(OSError), open(folder + "/cgroup.subtree_control") as file:
                if "memory" in file.read().split():
                    found.append((2, folder))
    return found


def _write(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)


def join(folder: str) -> None:
    """Put this process into a cgroup. It may take 15 ms: the kernel waits for all processors.

    Raises:
        OSError: The kernel refused; the sandbox must not start.
    """
    _write(folder + "/cgroup.procs", "0")


def open_peak(folder: str) -> int | None:
    """A descriptor of the file that tells the most memory that a cgroup has ever used."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):  # v1; v2 from Linux 5.19
        with contextlib.suppress(OSError):
            return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    return None


class Cgroups:
    """The cgroups of one spawner's sandboxes. `available` is False where none can be made."""

    def __init__(self, name: str) -> None:
        self.version = 0
        self.folder = ""
        for version, parent in parents():
            folder = f"{parent}/{PREFIX}{name}"
            try:
                os.mkdir(folder)
                if version == 2:
                    _write(folder + "/cgroup.subtree_control", "+memory +pids")
            except OSError:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                continue
            self.version, self.folder = version, folder
            return

    @property
    def available(self) -> bool:
        """Whether limits hold for a sandbox as a whole."""
        return self.version != 0

    def make(self, name: str) -> str:
        """Make a sandbox's cgroup, without limits so far: its folder, for `join`.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
        """
        folder = f"{self.folder}/{name}"
        os.mkdir(folder)
        return folder

    def limit(self, name: str, memory: int, processes: int) -> None:
        """Set the limits of a sandbox's cgroup.

        Raises:
            OSError: The kernel refused; the sandbox must not start.
        """
        folder = f"{self.folder}/{name}"
        if self.version == 1:
            _write(folder + "/memory.limit_in_bytes", str(memory))
            with contextlib.suppress(OSError):  # absent where the kernel does not count swap
                _write(folder + "/memory.memsw.limit_in_bytes", str(memory))
        else:
            _write(folder + "/memory.max", str(memory))
            with contextlib.suppress(OSError):  # absent where the kernel does not count swap
                _write(folder + "/memory.swap.max", "0")
            _write(folder + "/pids.max", str(processes))

    def remove(self, name: str) -> bool:
        """Remove a sandbox's cgroup; False while a process is still leaving it."""
        try:
            os.rmdir(f"{self.folder}/{name}")
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove the spawner's own folder, with all that is left in it."""
        if self.folder:
            _remove_tree(self.folder)


def remove_all(name: str) -> None:
    """Remove what a spawner of that name has left, which was killed."""
    for _, parent in parents():
        _remove_tree(f"{parent}/{PREFIX}{name}")


def _remove_tree(folder: str) -> None:
    """Remove a spawner's folder; its processes have ended, or are about to."""
    deadline = time.monotonic() + _LEAVING_SECONDS  # after which a sweep will find it
    while not _removed(folder) and time.monotonic() < deadline:
        time.sleep(0.002)


def _removed(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    os.rmdir(entry.path)
        os.rmdir(folder)
    except OSError as error:
        return error.errno != errno.EBUSY  # else it is gone, or not ours to remove
    return True
