"""The spawner's private mount namespace: every image's layers, mounted once, read-only.

An ordinary user first becomes root of a user namespace of their own; the layers' files are then
simply theirs. As root, each sandbox maps them to its own ids: see `launch`.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from intercode.rights import STAND_IN, is_root, needs_stand_in
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.identity import write_maps
from intercode.sandbox.native.launch import FOLDERS, STAGE

_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ESCAPES = {b"\\040": b" ", b"\\011": b"\t", b"\\012": b"\n", b"\\134": b"\\"}
"""How mountinfo writes what would break its lines; the backslash is the last to be read."""


def prepare_namespaces() -> bool:
    """Give this process a mount namespace of its own, and the stage; whether it is real root."""
    root = is_root()
    if root:
        sc.unshare(sc.CLONE_NEWNS)
    else:
        if needs_stand_in():
            _stand_in()
        uid, gid = os.geteuid(), os.getegid()
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        write_maps("self", f"0 {uid} 1", f"0 {gid} 1")
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", STAGE, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "size=1m,mode=755")
    for name in FOLDERS:
        os.mkdir(f"{STAGE}/{name}")
    return root


def _stand_in() -> None:
    """Be somebody else than the machine's user 0, which no sandbox may ever have.

    Raises:
        OSError: There is no right to, or no other id.
    """
    try:
        os.setgroups([])
        os.setresgid(STAND_IN, STAND_IN, STAND_IN)
        os.setresuid(STAND_IN, STAND_IN, STAND_IN)
    except OSError as error:
        raise OSError(errno.EPERM, "setuid: only the machine's root is to be had here") from error
    sc.prctl(sc.PR_SET_DUMPABLE, 1)  # else its maps are root's files


class Layers:
    """What is mounted on the stage so far."""

    def __init__(self, root: bool) -> None:
        self.root = root
        self.names: dict[str, str] = {}
        self.programs: list[tuple[str, str]] | None = None
        self.mounted = 0
        """How many mounts there are: a process forked before the last lacks it."""

    def prepare(self, spec: dict[str, Any]) -> None:
        """Replace the host's paths in a request by names on the stage, mounting what is new.

        Raises:
            OSError: A layer is missing or cannot be mounted.
        """
        names = [self.layer(path) for path in spec["layers"]]
        names.reverse()  # the request has the lowest first, overlayfs the topmost
        special = {self.layer(path): files for path, files in spec["special"]}
        programs = self.host() if spec["host"] else []
        spec.update(layers=names, special=special, programs=programs)

    def forget(self, path: str) -> None:
        """Unmount a layer. Sandboxes that run keep their own."""
        name = self.names.pop(path, None)
        if name is not None:
            sc.umount(f"{STAGE}/{name}")
            os.rmdir(f"{STAGE}/{name}")

    def layer(self, path: str) -> str:
        """A folder as a layer: its name on the stage."""
        if path not in self.names:
            # What lies below a mount of its own is part of an ordinary user's view of a folder.
            self.names[path] = self._attach(path, recursive=not self.root)
        return self.names[path]

    def _attach(self, path: str, recursive: bool) -> str:
        """Mount a copy of `path`, read-only: its name on the stage."""
        name = str(self.mounted + 1)
        os.mkdir(f"{STAGE}/{name}")
        tree = sc.open_tree(path, recursive)
        try:
            sc.mount_setattr(tree, _READ_ONLY, 0, recursive)
            sc.move_mount(tree, f"{STAGE}/{name}")
            self.mounted += 1
        finally:
            os.close(tree)
        return name

    def host(self) -> list[tuple[str, str]]:
        """This machine's programs: where a sandbox has them, and their names on the stage.

        What is mounted below them comes after what it lies in.
        """
        if self.programs is None:
            tops = [f"/{name}" for name in _PROGRAMS]
            tops = [path for path in tops if os.path.isdir(path) and not os.path.islink(path)]
            below = _mounted_below(tops) if self.root else []
            self.programs = [
                (path[1:], self._attach(path, recursive=not self.root))
                for path in dict.fromkeys([*tops, *below])
            ]
        return self.programs


def _mounted_below(tops: list[str]) -> list[str]:
    """The folders below these where something else is mounted, parents first."""
    found = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            field = line.split(b" ")[4]
            for escape, character in _ESCAPES.items():
                field = field.replace(escape, character)
            path = os.fsdecode(field)
            # A single file that is mounted stays out: an overlay is of folders.
            if path.startswith(tuple(f"{top}/" for top in tops)) and os.path.isdir(path):
                found.add(path)
    return sorted(found)
