"""`SandboxInitChild`: the spawner's object for a process that the spawner has forked.

The object owns the spawner's descriptors for this process, such as a socket and a pidfd.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from intercode_sandbox.native import wire
from intercode_sandbox.native.pipes import close_all, exit_pipe, open_channels
from intercode_sandbox.native.user_ids import SandboxUserIds


class SandboxInitChild:
    """A forked process that is, or waits to become, a sandbox's process 1.

    The kernel reports the events of a child in any order: the end may arrive before the last
    message. Therefore each descriptor of a child belongs to this object alone, and stays open until
    this object closes it.

    Args:
        name: The child's unique name in the spawner.
        cgroup: The name of the child's cgroups.
        layer_count: The value of `MountedLayers.mount_count` at the fork. The child copies the
            mounts, and lacks any layer that is mounted later.
        clone: A function that forks the child and returns its pid. The argument is the child's
            socket, at which the child waits for a request.

    Raises:
        OSError: The kernel refused the fork.
    """

    def __init__(
        self, name: str, cgroup: str, layer_count: int, clone: Callable[[socket.socket], int]
    ) -> None:
        self.name = name
        self.cgroup = cgroup
        self.layer_count = layer_count
        self.spec: dict[str, Any] | None = None
        """The request for which the child's sandbox is prepared; None: the child is not prepared.
        """
        self.prepared_fds: list[int] = []
        """The caller's ends of the prepared program's channels and of its exit pipe."""
        self.files: int | None = None
        """A descriptor of a detached mount of the sandbox's files, if the files can be frozen."""
        self.identity: SandboxUserIds | None = None
        """The identity of the sandbox, as soon as the child has received a request."""
        self.oom_kills = 0
        """The value of `SandboxCgroups.oom_kills` at the fork of the child. Cgroups are reused, so
        the value may be above 0."""
        self.ending = False
        """Whether the caller has closed the sandbox, and no longer waits for its end."""
        self.link, child_socket = wire.pair()
        with child_socket:
            self.pid = clone(child_socket)
        # The pid denotes the child: the kernel does not reuse it before the spawner waits for the
        # child.
        try:
            self.process = os.pidfd_open(self.pid)
        except OSError:
            self.link.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def receive_files(self) -> None:
        """Receive the message that the child sends after building its file system.

        A child that has failed sends no descriptor, or has closed its socket.
        """
        with suppress(EOFError, OSError):
            for mount_fd in wire.receive(self.link)[1]:
                self.files = mount_fd

    @contextmanager
    def first_program(self) -> Iterator[list[int]]:
        """Open the prepared program's channels and exit pipe, and yield the child's ends of them.

        The list is empty if the request has no program to prepare. The caller's ends are stored in
        `prepared_fds`.
        """
        assert self.spec is not None
        if (program := self.spec["first"]) is None:
            yield []
            return
        caller_ends, child_ends = open_channels(program["channels"], program["merge_stderr"])
        exit_read, exit_write = exit_pipe()
        self.prepared_fds = [*caller_ends.values(), exit_read]
        try:
            yield [*child_ends.values(), exit_write]
        except OSError:
            self.close()
            raise
        finally:
            close_all(*child_ends.values(), exit_write)

    def kill(self) -> None:
        """Kill the child, and thereby all processes of the sandbox. Does not wait."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def exit_code(self) -> int | None:
        """Return the child's exit code; None: a process of the sandbox has not ended yet.

        The code is minus N if signal N killed the child.
        """
        status = os.waitid(os.P_PIDFD, self.process, os.WEXITED | os.WNOHANG)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def close(self) -> None:
        """Close the socket to the child, and the prepared program's channels. Idempotent.

        A child that no caller has taken over then ends.
        """
        self.link.close()
        program_fds, self.prepared_fds = self.prepared_fds, []
        close_all(*program_fds)

    def release(self) -> None:
        """Close all descriptors of a child that has ended."""
        self.close()
        os.close(self.process)
        if self.files is not None:
            os.close(self.files)
