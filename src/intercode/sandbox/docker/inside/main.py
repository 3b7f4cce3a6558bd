"""How process 1 of a container begins: it calls, is told what to be, and gives up rights.

It runs on the caller's own Python, which is mounted into the container with its libraries and its
loader: an image need not have any. All that it is to import it imports before the first program
starts.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import sys
from contextlib import suppress
from typing import Any

from intercode.capabilities import mask
from intercode.rights import permitted
from intercode.sandbox.accounts import LONGEST, account_of
from intercode.sandbox.docker.inside.compare import (
    MountedFiles,
    Tree,
    apply_stream,
    compare,
    write_stream,
)
from intercode.sandbox.native import seccomp, wire
from intercode.sandbox.native import syscalls as sc
from intercode.sandbox.native.init import Init
from intercode.sandbox.native.inside import Inside, User
from intercode.sandbox.native.worker import preload as load_all

_HARD_OPEN_FILES = 4096
_GREETING_SECONDS = 120.0


def main(control: socket.socket, preload: str) -> None:
    """Serve the caller at the other end of `control` until it goes away."""
    load_all(control.fileno(), json.loads(preload))
    sc.hide_arguments(b"init")
    wire.send(control, {"up": os.getpid()})
    control.settimeout(_GREETING_SECONDS)
    hello, [owner] = wire.receive(control)
    control.settimeout(None)
    _become(control, hello, owner).run()


def _become(control: socket.socket, hello: dict[str, Any], owner: int) -> ContainerInit:
    limits = hello["limits"]
    kept = mask(limits["capabilities"])
    rights = permitted()
    os.setgroups([])
    os.umask(0o022)
    sys.setrecursionlimit(10_000)
    _limit(resource.RLIMIT_CORE, 0)
    # How many processes there are is for the engine: by user id, the machine's would count.
    _limit_each(limits, max(limits["open_files"], _HARD_OPEN_FILES))
    init = ContainerInit(control, rights, kept, hello, owner)
    _drop_rights(rights, kept)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    chroot = "sys_chroot" in limits["capabilities"]
    sc.set_seccomp(seccomp.build(limits["debugger"], chroot))
    return init


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
        self.account = account_of(hello["user"], _read)
        self.root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        super().__init__(
            control,
            Inside(
                uppers=(),
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
        self.tree = Tree(self.root, hello["volumes"])
        self.mounted = MountedFiles(hello["files"])

    def do_root(self, fds: list[int]) -> dict[str, Any]:
        """Return a descriptor of the root, for others to be compared with."""
        return {"fds": [os.dup(self.root)]}

    def do_home(self, fds: list[int]) -> dict[str, Any]:
        """Return the home folder and the name of the image's user."""
        return {"home": self.account.home, "name": self.account.name}

    def do_changes(self, timeout: float, fds: list[int]) -> dict[str, Any]:
        """List what differs from the root `fds[0]`; everything else stands still meanwhile."""
        with self.frozen():
            found = compare(self.tree, fds[0], timeout)
            return {"changes": sorted([*found.entries, *self.mounted.changes()])}

    def do_archive(self, timeout: float, fds: list[int]) -> None:
        """Stream what differs from the root `fds[0]` into `fds[1]`."""
        with self.frozen():
            found = compare(self.tree, fds[0], timeout)
            found.touched += [path for path, *_ in self.mounted.changes()]
            write_stream(found, self.root, fds[1], timeout)

    def do_apply(self, fds: list[int]) -> None:
        """Unpack such a stream, from `fds[0]`: what changes are told from is now with it."""
        apply_stream(fds[0], self.root)
        self.mounted.before = self.mounted.look()


def _limit_each(limits: dict[str, Any], open_files: int) -> None:
    """Limit what this process, and each that it starts, may use.

    Args:
        limits: The sandbox's.
        open_files: The hard limit of descriptors.
    """
    _limit(resource.RLIMIT_DATA, limits["memory"])
    _limit(resource.RLIMIT_MEMLOCK, 1 << 20)
    _limit(resource.RLIMIT_MSGQUEUE, 1 << 20)
    _limit(resource.RLIMIT_SIGPENDING, 4096)
    _limit(resource.RLIMIT_FSIZE, limits["disk"])
    hard = _at_most_hard(resource.RLIMIT_NOFILE, open_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits["open_files"], hard), hard))


def _limit(which: int, value: int) -> None:
    """Set a resource's soft and hard limit, as far as the hard one permits."""
    value = _at_most_hard(which, value)
    resource.setrlimit(which, (value, value))


def _at_most_hard(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _drop_rights(rights: int, kept: int) -> None:
    """Give programs started from here no capability but those in `kept`; keep `rights` oneself."""
    sc.drop_bounding_set(kept)
    sc.prctl(sc.PR_SET_SECUREBITS, sc.SECUREBITS_NO_ROOT)
    sc.capset(rights, rights, kept)
    for bit in range(kept.bit_length()):
        if kept >> bit & 1:
            sc.prctl(sc.PR_CAP_AMBIENT, sc.PR_CAP_AMBIENT_RAISE, bit)
    sc.prctl(sc.PR_SET_NO_NEW_PRIVS, 1)
    sc.prctl(sc.PR_SET_DUMPABLE, 0)  # or programs of the same user id could trace it


def _id_count() -> int:
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file)


def _read(path: str) -> str:
    """Return the text of a regular file of the image's; empty: there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(LONGEST).decode(errors="replace")
