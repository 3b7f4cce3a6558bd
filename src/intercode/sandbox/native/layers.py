"""The spawner's private mount namespace: every image's layers, mounted once, read-only.

As root the layers are id-mapped, so that root's files in an image belong to the sandbox's root,
which is nobody outside. An ordinary user first becomes root of a user namespace of their own; the
layers' files are then simply theirs.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.launch import ID_BASE, ID_COUNT, STAGE

_READ_ONLY = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV
_CAP_SYS_ADMIN = 21


def is_root() -> bool:
    """Whether this process is the machine's root with its rights.

    Root of a user namespace, or of a restricted container, is an ordinary user to us.
    """
    with open("/proc/self/uid_map") as file:
        if file.read().split() != ["0", "0", "4294967295"]:
            return False
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return os.geteuid() == 0 and bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def write_id_maps(pid: int, root: bool) -> None:
    """Map user and group 0 of a process's new user namespace: to a range, or to our own 0."""
    uids = gids = f"0 {ID_BASE} {ID_COUNT}" if root else "0 0 1"
    _write_maps(pid, uids, gids, deny_groups=not root)


def _write_maps(pid: int | str, uids: str, gids: str, deny_groups: bool) -> None:
    if deny_groups:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", uids)
    _write(f"/proc/{pid}/gid_map", gids)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {path.rpartition('/')[2]}: {error.strerror}") from error
    finally:
        os.close(fd)


def prepare_namespaces() -> bool:
    """Give this process a mount namespace of its own, and the stage; whether it is real root."""
    root = is_root()
    if root:
        sc.unshare(sc.CLONE_NEWNS)
    else:
        uid, gid = os.geteuid(), os.getegid()
        sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
        _write_maps("self", f"0 {uid} 1", f"0 {gid} 1", deny_groups=True)
    sc.mount("", "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("tmpfs", STAGE, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{STAGE}/x")
    os.mkdir(f"{STAGE}/h")
    return root


class Layers:
    """What is mounted on the stage so far."""

    def __init__(self, root: bool) -> None:
        self.root = root
        self.userns = _user_namespace() if root else -1
        self.idmapped = root
        self.names: dict[str, str] = {}
        self.merged: dict[str, str] = {}
        self.binds: list[str] | None = None
        self.mounted = 0
        """How many mounts there are: a process forked before the last lacks it."""

    def prepare(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Replace the host's paths in a request by names on the stage, mounting what is new.

        Raises:
            OSError: A layer is missing or cannot be mounted.
        """
        names = [self.layer(path) for path in spec["layers"]]
        names.reverse()  # the request has the lowest first, overlayfs the topmost
        return {
            **spec,
            "layers": names,
            "merged": self.merge(names),
            "binds": self.host(spec["hide"]) if spec["host"] else [],
        }

    def forget(self, path: str) -> None:
        """Unmount a layer, and what it was merged into. Sandboxes that run keep their own."""
        name = self.names.pop(path, None)
        if name is None:
            return
        for key in [key for key in self.merged if name in key.split(":")]:
            self._unmount(self.merged.pop(key))
        self._unmount(name)

    def _unmount(self, name: str) -> None:
        sc.umount(f"{STAGE}/{name}")
        os.rmdir(f"{STAGE}/{name}")

    def layer(self, path: str) -> str:
        """A folder as a layer: its name on the stage."""
        if path not in self.names:
            name = str(self.mounted + 1)
            self.attach(path, name, idmap=True)
            self.names[path] = name
        return self.names[path]

    def attach(self, path: str, name: str, idmap: bool, recursive: bool = False) -> None:
        """Mount a copy of `path`, read-only, at ``STAGE/name``."""
        os.makedirs(f"{STAGE}/{name}", exist_ok=True)
        tree = sc.open_tree(path, recursive or not self.root)
        try:
            if self.root and idmap:
                attributes = _READ_ONLY | sc.MOUNT_ATTR_IDMAP
                sc.mount_setattr(tree, attributes, self.userns, recursive)
            else:
                sc.mount_setattr(tree, _READ_ONLY, 0, recursive or not self.root)
            sc.move_mount(tree, f"{STAGE}/{name}")
            self.mounted += 1
        finally:
            os.close(tree)

    def merge(self, names: list[str]) -> str:
        """All layers of an image as one folder, to compare with: its name on the stage."""
        if len(names) == 1:
            return names[0]
        key = ":".join(names)
        if key not in self.merged:
            name = f"m{self.mounted + 1}"
            os.mkdir(f"{STAGE}/{name}")
            options = "lowerdir=" + ":".join(f"{STAGE}/{n}" for n in names)
            options += "" if self.root else ",userxattr"
            sc.mount("overlay", f"{STAGE}/{name}", "overlay", sc.MS_RDONLY, options)
            self.mounted += 1
            self.merged[key] = name
        return self.merged[key]

    def host(self, hide: list[str]) -> list[str]:
        """This machine's programs, without the folders in `hide`: names under ``STAGE/h``."""
        if self.binds is None:
            self.binds = []
            for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"):
                path = f"/{name}"
                if os.path.isdir(path) and not os.path.islink(path):
                    try:
                        self.attach(path, f"h/{name}", idmap=True, recursive=True)
                    except OSError:
                        # Not every file system can be id-mapped; then root's files look like
                        # nobody's, which is all that it changes in a read-only tree.
                        self.idmapped = False
                        self.attach(path, f"h/{name}", idmap=False, recursive=True)
                    self.binds.append(name)
            for path in hide:
                self._hide(path)
        return self.binds

    def _hide(self, path: str) -> None:
        for name in self.binds or []:
            if path.startswith(f"/{name}/"):
                with suppress(FileNotFoundError):
                    sc.mount("tmpfs", f"{STAGE}/h{path}", "tmpfs", sc.MS_RDONLY, "size=4k")


def _user_namespace() -> int:
    """A descriptor of a user namespace with the sandboxes' id maps, for id-mapped mounts."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            sc.unshare(sc.CLONE_NEWUSER)
            theirs.send(b"u")
            ours.close()
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    try:
        if ours.recv(1) != b"u":
            raise OSError(1, "unshare: a user namespace is not permitted")
        write_id_maps(pid, root=True)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ours.close()
        os.waitpid(pid, 0)
