"""Mounts of frozen layers: each holds the unchangeable files of one sandbox.

The layers are mounted in a separate mount namespace, from which no sandbox is forked. A child of
the spawner would otherwise keep its parent's mounts alive, and copying each would cost it time.
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
        mount_folder: A folder for their mounts. The spawner's own mounts on it are absent from the
            namespace of frozen layers.
    """

    def __init__(self, mount_folder: str) -> None:
        self._mount_folder = mount_folder
        self._spawner_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = -1
        self._folder = -1
        self._count = 0

    def add(self, tree: int) -> str:
        """Make the files of a mount immutable, and retain the mount.

        Args:
            tree: A descriptor of a detached mount.

        Returns:
            The layer's name.

        Raises:
            OSError: EBUSY: a process can still write to the files, which stay writable.
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
        """Return descriptors of detached copies of these mounts.

        Raises:
            OSError: A layer does not exist.
        """
        trees: list[int] = []
        if names:
            with self._enter_namespace():
                try:
                    for name in names:
                        if not os.path.ismount(name):  # else its empty folder would be copied
                            raise FileNotFoundError(errno.ENOENT, "a frozen layer is gone", name)
                        trees.append(sc.open_tree(name))
                except BaseException:
                    for tree in trees:
                        os.close(tree)
                    raise
        return trees

    def remove(self, name: str) -> None:
        """Release a layer. Running sandboxes keep their own copies."""
        with self._enter_namespace():
            sc.umount(name)
            os.rmdir(name)

    @contextmanager
    def _enter_namespace(self) -> Iterator[None]:
        """Enter the namespace of frozen layers, and its folder, while the block runs."""
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
            os.fchdir(self._root)  # setns may have changed the root
            os.chroot(".")

    def _prepare_namespace(self) -> None:
        sc.umount(self._mount_folder)  # copies of the layers of images
        options = "size=1m,mode=700"
        sc.mount("tmpfs", self._mount_folder, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
        self._folder = os.open(self._mount_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
