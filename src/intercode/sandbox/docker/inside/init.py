"""Process 1 of a container: native's, with the engine's file system in place of our own.

What the sandbox changed is found by comparing its root with that of a pristine container of the
same image: see `compare`.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from intercode.sandbox.docker.inside import compare, layer, mounts, users
from intercode.sandbox.native.init import Init
from intercode.sandbox.native.inside import Inside, User


class ContainerInit(Init):
    """The event loop of process 1.

    Args:
        control: The caller's socket.
        rights: The capabilities that this process has.
        kept: Those that programs get.
        hello: What the caller says of the container: its `user`, its `volumes`, and the content of
            the `files` that the engine mounts.
        owner: A descriptor of the caller's process, at whose end this one ends. Its socket does not
            tell where a fork that has run no code of ours holds it, too.
    """

    def __init__(
        self,
        control: socket.socket,
        rights: int,
        kept: int,
        hello: dict[str, Any],
        owner: int,
    ) -> None:
        self.account = users.find(hello["user"])
        self.root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(
            control,
            Inside(
                upper=-1,
                lower=-1,
                root=self.root,
                score=os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC),
                proc=os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
                rights=rights,
                kept=kept,
                user=User(self.account.uid, self.account.gid, self.account.groups),
                ids=_id_count(),
            ),
            owner=owner,
        )
        self.tree = compare.Tree(self.root, hello["volumes"])
        self.mounted = mounts.MountedFiles(hello["files"])

    def do_root(self, fds: list[int]) -> dict[str, Any]:
        """A descriptor of the root, for others to be compared with."""
        return {"fds": [os.dup(self.root)]}

    def do_home(self, fds: list[int]) -> dict[str, Any]:
        """The home folder and the name of the image's user."""
        return {"home": self.account.home, "name": self.account.name}

    def do_changes(self, timeout: float, fds: list[int]) -> dict[str, Any]:
        """All that differs from the root `fds[0]`; everything else stands still meanwhile."""
        with self.frozen():
            found = compare.compare(self.tree, fds[0], timeout)
            return {"changes": sorted([*found.entries, *self.mounted.changes()])}

    def do_archive(self, timeout: float, fds: list[int]) -> None:
        """Stream what differs from the root `fds[0]` into `fds[1]`."""
        with self.frozen():
            found = compare.compare(self.tree, fds[0], timeout)
            found.touched += [path for path, *_ in self.mounted.changes()]
            layer.write(found, self.root, fds[1], timeout)

    def do_apply(self, fds: list[int]) -> None:
        """Unpack such a stream, from `fds[0]`: what changes are told from is now with it."""
        layer.extract(fds[0], self.root)
        self.mounted.before = self.mounted.look()


def _id_count() -> int:
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file)
