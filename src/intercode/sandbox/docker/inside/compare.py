"""What an episode changed, found without the engine: two containers of one image, side by side.

The other container is pristine, and its root is a descriptor here. A file that nobody has written
to is, in both, the same file of the same layer, with the same change time, which no program can
set. In an overlay a write to any file copies all folders above it up, and gives them new change
times: a folder with the old one has nothing new below it, and is not entered. So the cost is that
of the folders with changes in them, and it needs neither the host's rights nor a driver's own
notion of a difference, which may be one of sizes and times.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from intercode.sandbox.docker.inside.mounts import mount_points
from intercode.sandbox.native import diff

Stamp = tuple[int, ...]


def stamp(st: os.stat_result) -> Stamp:
    """What is the same for as long as nobody touches a file."""
    return (st.st_ctime_ns, st.st_mtime_ns, st.st_size, st.st_mode, st.st_uid, st.st_gid)


class Tree:
    """A container's root, without what is mounted in it.

    Args:
        root: A descriptor.
        volumes: Mounted folders that are the image's all the same.
    """

    def __init__(self, root: int, volumes: Sequence[str]) -> None:
        self.root = root
        points = mount_points()
        self.mounted = {path for path in points if path != "/"} - set(volumes)
        self.volumes = tuple(volumes)
        self.overlay = points.get("/") == "overlay"
        self.folders, self.files = _own_of_containers()


def _own_of_containers() -> tuple[dict[str, Stamp], dict[str, Stamp]]:
    """Folders, and files, that an engine may have made anew for each container, as it made them.

    Folders may have something new below them all the same.
    """
    folders: dict[str, Stamp] = {}
    files: dict[str, Stamp] = {}
    for place in ("", "/etc"):
        if os.path.isdir(place or "/"):
            for name in os.listdir(place or "/"):
                st = os.lstat(f"{place}/{name}")
                (folders if stat.S_ISDIR(st.st_mode) else files)[f"{place}/{name}"] = stamp(st)
    return folders, files


class Comparison(diff.Walker):
    """One comparison, and what it found."""

    def __init__(self, tree: Tree, timeout: float) -> None:
        super().__init__(timeout)
        self.tree = tree
        self.touched: list[str] = []
        """What is there and was written to, changed or not; folders before what is in them."""

    def walk(self, upper: int, lower: int | None, merged: int | None, prefix: str = "") -> None:
        """Compare a folder of the container with the image's, and what is below it."""
        names = set(os.listdir(upper))
        for name in sorted(names):
            self.bounds.check_time()
            path = f"{prefix}/{name}"
            st = diff.lstat(name, upper)
            if st is None or path in self.tree.mounted or self._untouched(path, name, st, lower):
                continue
            if self.tree.folders.get(path) != stamp(st):
                self.bounds.count(path)
                self.touched.append(path)
            self._entry(name, st, upper, lower, upper, path)
        if lower is not None:
            for name in sorted(set(os.listdir(lower)) - names):
                self._deleted(name, lower, f"{prefix}/{name}")

    def _untouched(self, path: str, name: str, st: os.stat_result, lower: int | None) -> bool:
        """Whether it, and all below it, is as it was."""
        now = stamp(st)
        if not stat.S_ISDIR(st.st_mode):
            if self.tree.files.get(path) == now:
                return True
        elif not self._tells(path):
            return False
        old = diff.lstat(name, lower)
        return old is not None and stamp(old) == now

    def _tells(self, path: str) -> bool:
        """Whether a folder's own times tell of what is below it."""
        return self.tree.overlay and not any(
            path == point or point.startswith(f"{path}/") for point in self.tree.volumes
        )


def compare(tree: Tree, pristine: int, timeout: float) -> Comparison:
    """Compare a whole root with a pristine one.

    Raises:
        OSError: See `diff.Bounds`.
    """
    found = Comparison(tree, timeout)
    now, old = os.fstat(tree.root), os.fstat(pristine)
    if diff._metadata(now) != diff._metadata(old):
        found._emit("/", "modified", now, "", content=False)
    found.walk(tree.root, pristine, tree.root)
    shm = diff.SHARED_MEMORY
    with diff.directory(shm[1:], tree.root) as upper, diff.directory(shm[1:], pristine) as lower:
        if upper is not None:
            before = len(found.touched)
            found.walk(upper, lower, upper, shm)
            if len(found.touched) > before:
                found.touched += diff.SHARED_MEMORY_MOUNTS
    return found
