"""A child of the spawner: the one owner of all that goes with a sandbox's process 1."""

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

    The kernel's events of a child come in any order: its end may be heard before its last message.
    Therefore each descriptor of a child belongs to this object alone, and goes with it.

    Args:
        name: The name that no other child of the spawner has.
        cgroup: The name of its cgroup.
        layer_count: The number of mounted layers. A child's copy of the mounts is as old as the
            child.
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
        """The request that the child is prepared for ahead of."""
        self.prepared_fds: list[int] = []
        """Our ends of the channels of the program that the child starts ahead of a request."""
        self.files: int | None = None
        """A detached mount of the child's files, if these can be frozen."""
        self.identity: Identity | None = None
        """The identity of a child that was told what to become."""
        self.oom_kills = 0
        """The value of `Cgroups.oom_kills` when the child was forked."""
        self.ending = False
        """Whether the child's caller has closed the sandbox, and waits for its end no longer."""
        self.link, child_socket = wire.pair()
        with child_socket:
            self.pid = clone(child_socket)
        # No other process has this pid as long as the spawner has not waited for the child.
        try:
            self.process = os.pidfd_open(self.pid)
        except OSError:
            self.link.close()
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def receive_files(self) -> None:
        """Take what the child sends when it has a file system, or has failed."""
        with suppress(EOFError, OSError):
            for fd in wire.receive(self.link)[1]:
                self.files = fd

    @contextmanager
    def first_program(self) -> Iterator[list[int]]:
        """Yield the other ends of the channels of the first program, if there is to be one."""
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
        """Kill the child, and with it all that runs in the sandbox. Returns at once."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def exit_code(self) -> int | None:
        """Return how the child has ended; None while it, or a process in the sandbox, has not."""
        status = os.waitid(os.P_PIDFD, self.process, os.WEXITED | os.WNOHANG)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def close(self) -> None:
        """Close the link: a child without a caller ends by that. Idempotent."""
        self.link.close()
        fds, self.prepared_fds = self.prepared_fds, []
        close_all(*fds)

    def release(self) -> None:
        """Close all descriptors of a child that has ended."""
        self.close()
        os.close(self.process)
        if self.files is not None:
            os.close(self.files)
