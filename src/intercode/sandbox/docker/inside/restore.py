"""Making a used container as good as new: what was written is put back, and that is verified.

All that an episode can leave: processes (killed before), files of the image's, files in memory,
System V memory, semaphores and queues. What is put back has the content, the owner, the mode, the
times and the extended attributes of the pristine file; its inode number is its own. Where there is
anything else, or too much, the container is not for reuse.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from typing import Any

from intercode.sandbox.docker.inside import layer
from intercode.sandbox.docker.inside.compare import Comparison, Tree, compare, stamp
from intercode.sandbox.docker.inside.mounts import InMemory, MountedFiles
from intercode.sandbox.native import diff, inside

_MOST_BYTES = 256 << 20
_COARSE_CLOCK = 5
"""``CLOCK_REALTIME_COARSE``, which file times come from; Python has no name for it."""


class TooMuchError(Exception):
    """A new container costs less."""


def reset(
    tree: Tree, mounted: MountedFiles, memory: InMemory, pristine: int, timeout: float, entries: int
) -> dict[str, Any]:
    """Put everything back; `pristine` in the answer is whether a second look found nothing."""
    deadline = time.monotonic() + timeout
    try:
        found = compare(tree, pristine, timeout)
        written = len(found.entries) + len(found.touched) + len(mounted.changes())
        if written > entries:
            raise TooMuchError
        if written:
            _put_back(tree, found, pristine)
            mounted.restore()
            _let_the_clock_move()
        memory.empty()
        known, tree.known = tree.known, {}
        left = compare(tree, pristine, max(deadline - time.monotonic(), 0)).entries
        tree.known = known
    except (OSError, TooMuchError) as error:
        return {"pristine": False, "why": str(error) or "too much was changed"}
    clean = not (left or mounted.changes() or memory.changed() or inside.alive() or _ipc())
    return {"pristine": clean, "why": "" if clean else f"what is left: {left[:3]}"}


def _put_back(tree: Tree, found: Comparison, pristine: int) -> None:
    paths = {path for path, kind, *_ in found.entries if kind == "deleted"}
    folders: list[str] = []
    budget = _MOST_BYTES
    for path in sorted(paths.union(found.touched)):
        try:
            with layer.parent(tree.root, path) as (fd, name):
                old = _look(pristine, path)
                now = diff.lstat(name, fd)
                if old is None:
                    layer.remove(fd, name)
                    tree.known.pop(path, None)
                    continue
                if stat.S_ISDIR(old.st_mode):
                    if now is None or not stat.S_ISDIR(now.st_mode):
                        layer.remove(fd, name)
                        os.mkdir(name, 0o700, dir_fd=fd)
                    folders.append(path)
                    continue
                if old.st_nlink > 1:
                    raise TooMuchError(f"{path} had other names, which a copy would not share")
                layer.remove(fd, name)
                budget -= old.st_size
                if budget < 0:
                    raise TooMuchError
                _copy(pristine, path, old, fd, name)
                _remember(tree, path, fd, name)
        except (FileNotFoundError, NotADirectoryError):
            continue  # what it was in has gone already, with it
    for path in sorted(folders, reverse=True):
        with layer.parent(tree.root, path) as (fd, name), layer.parent(pristine, path) as (was, _):
            _metadata(was, name, fd)
    root, now = os.fstat(pristine), os.fstat(tree.root)
    if diff._metadata(root) != diff._metadata(now):
        os.fchown(tree.root, root.st_uid, root.st_gid)
        os.fchmod(tree.root, stat.S_IMODE(root.st_mode))
    os.utime(tree.root, ns=(tree.times, tree.times))


def _let_the_clock_move() -> None:
    """Until what is written gets other times than what was put back: they are the clock's ticks."""
    tick = time.clock_gettime_ns(_COARSE_CLOCK)
    while time.clock_gettime_ns(_COARSE_CLOCK) == tick:
        time.sleep(0.001)


def _look(pristine: int, path: str) -> os.stat_result | None:
    try:
        with layer.parent(pristine, path) as (fd, name):
            return diff.lstat(name, fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _copy(pristine: int, path: str, old: os.stat_result, fd: int, name: str) -> None:
    with layer.parent(pristine, path) as (was, _):
        if stat.S_ISLNK(old.st_mode):
            os.symlink(os.readlink(name, dir_fd=was), name, dir_fd=fd)
        elif stat.S_ISREG(old.st_mode):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with (
                open(os.open(name, diff._FILE, dir_fd=was), "rb") as source,
                open(os.open(name, flags, 0o600, dir_fd=fd), "wb") as target,
            ):
                shutil.copyfileobj(source, target, 1 << 20)
        elif stat.S_ISFIFO(old.st_mode):
            os.mkfifo(name, 0o600, dir_fd=fd)
        else:
            raise TooMuchError(f"{path} is of a type that cannot be made anew")
        _metadata(was, name, fd)


def _metadata(was: int, name: str, fd: int) -> None:
    old = os.stat(name, dir_fd=was, follow_symlinks=False)
    os.chown(name, old.st_uid, old.st_gid, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISLNK(old.st_mode):
        os.chmod(name, stat.S_IMODE(old.st_mode), dir_fd=fd)
        _attributes(was, name, fd)
    times = (old.st_atime_ns, old.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)


def _attributes(was: int, name: str, fd: int) -> None:
    source, target = f"/proc/self/fd/{was}/{name}", f"/proc/self/fd/{fd}/{name}"
    old = {key: os.getxattr(source, key) for key in os.listxattr(source)}
    now = {key: os.getxattr(target, key) for key in os.listxattr(target)}
    for key in now.keys() - old.keys():
        os.removexattr(target, key)
    for key, value in old.items():
        if now.get(key) != value:
            os.setxattr(target, key, value)


def _remember(tree: Tree, path: str, fd: int, name: str) -> None:
    tree.known[path] = stamp(os.stat(name, dir_fd=fd, follow_symlinks=False))


def _ipc() -> bool:
    """Whether there is System V memory, a semaphore or a queue."""
    for name in ("shm", "sem", "msg"):
        with suppress(FileNotFoundError), open(f"/proc/sysvipc/{name}") as file:
            if len(file.readlines()) > 1:
                return True
    return False
