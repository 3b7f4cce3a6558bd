"""The spawner's mounts of frozen layers. Each layer has the files of one sandbox, made read-only.

The layers are mounted in a separate mount namespace, from which no sandbox is forked. In the
spawner's own namespace, each forked child would copy all of the mounts, which takes time. The
copies would also keep released layers in memory.
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
        mount_folder: The folder for the mounts of frozen layers. In its own namespace the spawner
            uses the same folder for other mounts. The namespace of frozen layers lacks the latter.
    """

    def __init__(self, mount_folder: str) -> None:
        self._mount_folder = mount_folder
        self._spawner_namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = -1
        self._folder = -1
        self._count = 0

    def add(self, mount_fd: int) -> str:
        """Make the files of a mount immutable, and retain the mount.

        Args:
            mount_fd: A descriptor of a detached mount.

        Returns:
            The layer's name.

        Raises:
            OSError: The layer was not created. EBUSY: a process has a file open for writing.
        """
        with self._enter_namespace():
            layer_name = str(self._count + 1)
            os.mkdir(layer_name)
            try:
                sc.make_read_only(mount_fd)
                sc.mount_setattr(mount_fd, _ATTRIBUTES)
                sc.move_mount(mount_fd, layer_name)
            except BaseException:
                os.rmdir(layer_name)
                raise
        self._count += 1
        return layer_name

    def copies(self, layer_names: list[str]) -> list[int]:
        """Return a descriptor of a detached copy of each layer's mount.

        Args:
            layer_names: The names of the layers.

        Raises:
            OSError: A layer does not exist.
        """
        mount_fds: list[int] = []
        if layer_names:
            with self._enter_namespace():
                try:
                    for layer_name in layer_names:
                        # Without a mount at the folder, the empty folder itself would be copied.
                        if not os.path.ismount(layer_name):
                            raise FileNotFoundError(
                                errno.ENOENT, "a frozen layer is gone", layer_name
                            )
                        mount_fds.append(sc.open_tree(layer_name))
                except BaseException:
                    for mount_fd in mount_fds:
                        os.close(mount_fd)
                    raise
        return mount_fds

    def remove(self, layer_name: str) -> None:
        """Release a layer. Running sandboxes keep their copies of its mount."""
        with self._enter_namespace():
            sc.umount(layer_name)
            os.rmdir(layer_name)

    @contextmanager
    def _enter_namespace(self) -> Iterator[None]:
        """Run the block in the namespace of frozen layers, with their folder as working directory.

        The first call creates the namespace.
        """
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
            # setns sets the root to that of the namespace. These lines restore the spawner's root.
            os.fchdir(self._root)
            os.chroot(".")

    def _prepare_namespace(self) -> None:
        # The new namespace is a copy of the spawner's, with mounts of images that it must not keep.
        sc.umount(self._mount_folder)
        options = "size=1m,mode=700"
        sc.mount("tmpfs", self._mount_folder, "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, options)
        self._folder = os.open(self._mount_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
