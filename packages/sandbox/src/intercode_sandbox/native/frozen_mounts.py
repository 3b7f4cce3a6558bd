"""The vault: frozen layers, each the files that one sandbox has left, which nothing can change.

They are mounted in a mount namespace of their own, which no sandbox is forked from: what a child
of the spawner holds of its parent's mounts would keep them, and each would cost it time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from intercode_sandbox.native import syscalls as sc

_ATTRIBUTES = sc.MOUNT_ATTR_RDONLY | sc.MOUNT_ATTR_NOSUID | sc.MOUNT_ATTR_NODEV


class FrozenMounts:
    """The frozen layers of one spawner.

    Args:
        stage: A folder to mount them in. What the spawner has mounted there is not in the vault.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._spawner_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = -1
        self._folder = -1
        self._count = 0

    def add(self, tree: int) -> str:
        """Make the files of a mount unchangeable, and keep it.

        Args:
            tree: A detached mount.

        Returns:
            Its name here.

        Raises:
            OSError: With EBUSY, something can still write to them. They are as before.
        """
        with self._enter_namespace():
            name = str(self._count + 1)
            os.mkdir(name)
            try:
                sc.make_read_only(tree)
                sc.mount_setattr(tree, _ATTRIBUTES)
                sc.move_mount(tree, name)
            except BaseException:
                os.rmdir(name)
                raise
        self._count += 1
        return name

    def copies(self, names: list[str]) -> list[int]:
        """Return detached copies of these mounts.

        Raises:
            OSError: One is not here.
        """
        trees: list[int] = []
        if names:
            with self._enter_namespace():
                try:
                    for name in names:
                        if not os.path.ismount(name):  # or its empty folder would be copied
                            raise FileNotFoundError(errno.ENOENT, "a frozen layer is gone", name)
                        trees.append(sc.open_tree(name))
                except BaseException:
                    for tree in trees:
                        os.close(tree)
                    raise
        return trees

    def remove(self, name: str) -> None:
        """Let go of a layer. Sandboxes that run keep their own copies."""
        with self._enter_namespace():
            sc.umount(name)
            os.rmdir(name)

    @contextmanager
    def _enter_namespace(self) -> Iterator[None]:
        """For its duration, this process is in the vault's namespace, and in its folder."""
        if self._namespace < 0:
            sc.unshare(sc.CLONE_NEWNS)
        else:
            sc.setns(self._namespace, sc.CLONE_NEWNS)
        try:
            if self._namespace < 0:
                self._prepare_namespace()
            os.fchdir(self._folder)
            yield
        finally:
            sc.setns(self._spawner_namespace, sc.CLONE_NEWNS)
            os.fchdir(self._root)  # which may not be that of the namespace
            os.chroot(".")

    def _prepare_namespace(self) -> None:
        sc.umount(self._stage)  # copies of the layers of images
        options = "size=1m,mode=700"
        sc.mount("tmpfs", self._stage, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
        self._folder = os.open(self._stage, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
