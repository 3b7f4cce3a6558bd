"""A child of the spawner, and the resources of a sandbox's process 1 that it owns."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from intercode_sandbox.native import wire
from intercode_sandbox.native.identity import Identity
from intercode_sandbox.native.pipes import close_all, exit_pipe, open_channels


class Child:
    """A forked process that is, or waits to become, a sandbox's process 1.

    The kernel reports events of a child in any order: its end may arrive before its last message.
    Therefore each descriptor of a child belongs to this object alone, and is closed with it.

    Args:
        name: The child's unique name in the spawner.
        cgroup: The name of its cgroup.
        layer_count: The number of mounted layers at the fork: a child's copy of the mounts is as
            old as the child.
        clone: Forks the child, which waits at the other end of a socket, and returns its pid.

    Raises:
        OSError: The kernel refused.
    """

    def __init__(
        self, name: str, cgroup: str, layer_count: int, clone: Callable[[socket.socket], int]
    ) -> None:
        self.name = name
        self.cgroup = cgroup
        self.layer_count = layer_count
        self.spec: dict[str, Any] | None = None
        """The expected request for which the child is prepared."""
        self.prepared_fds: list[int] = []
        """The caller's ends of the prepared program's channels."""
        self.files: int | None = None
        """A detached mount of the child's files, if these can be frozen."""
        self.identity: Identity | None = None
        """The identity of the child, once it has received a request."""
        self.oom_kills = 0
        """The value of `Cgroups.oom_kills` at the fork of the child."""
        self.ending = False
        """Whether the caller has closed the sandbox, and no longer waits for its end."""
        self.link, child_socket = wire.pair()
        with child_socket:
            self.pid = clone(child_socket)
        # The pid is not reused until the spawner has waited for the child.
        try:
            self.process = os.pidfd_open(self.pid)
        except OSError:
            self.link.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def receive_files(self) -> None:
        """Receive the child's message once it has a file system, or has failed."""
        with suppress(EOFError, OSError):
            for fd in wire.receive(self.link)[1]:
                self.files = fd

    @contextmanager
    def first_program(self) -> Iterator[list[int]]:
        """Yield the child's ends of the prepared program's channels, if a program is prepared."""
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
        """Return the child's exit code; None until the child and all processes in it have ended."""
        status = os.waitid(os.P_PIDFD, self.process, os.WEXITED | os.WNOHANG)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def close(self) -> None:
        """Close the link, which ends a child without a caller. Idempotent."""
        self.link.close()
        fds, self.prepared_fds = self.prepared_fds, []
        close_all(*fds)

    def release(self) -> None:
        """Close all descriptors of a child that has ended."""
        self.close()
        os.close(self.process)
        if self.files is not None:
            os.close(self.files)
