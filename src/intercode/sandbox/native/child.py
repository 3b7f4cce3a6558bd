"""A fork of the spawner, on its way to be a sandbox's process 1."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from intercode.sandbox.native import cgroup, launch, wire
from intercode.sandbox.native.identity import Identity


class Child:
    """A forked process that is, or waits to become, a sandbox's process 1."""

    def __init__(
        self,
        machine: launch.Machine,
        network: bool,
        layers_mounted: int,
        cgroups: list[str],
        forget: Callable[[], None],
    ) -> None:
        self.layers_mounted = layers_mounted
        """How many layers it sees: its copy of the mounts is as old as itself."""
        self.spec: dict[str, Any] | None = None
        """What it is made ready for ahead of a request."""
        self.link, theirs = wire.pair()
        self.pid = launch.clone(network)
        if self.pid == 0:
            forget()
            become_sandbox(theirs, machine, network, cgroups)
        theirs.close()


def become_sandbox(
    link: socket.socket, machine: launch.Machine, network: bool, cgroups: list[str]
) -> None:
    """In the child: never returns into the spawner's loop."""
    failure: BaseException | None = None
    control: socket.socket | None = None
    peak: int | None = None
    try:
        link = wire.keep_only(link)
        try:
            cgroup.join(cgroups)
            peak = cgroup.open_peak(cgroups)
            prepared = launch.prepare(network, machine)
        except OSError as error:
            failure = error
        message, fds = wire.receive(link)
        identity = Identity.received(message["identity"], fds)
        control = socket.socket(fileno=fds[0]) if fds else None
        try:
            if failure is None:
                inside = launch.enter(message["spec"], identity, link, machine, prepared)
                os.close(identity.namespace)
                message.clear()
                if control is None:  # it is ready ahead of the request
                    control = socket.socket(fileno=wire.receive(link)[1][0])
                link.close()
                launch.serve(control, inside, peak)
        except BaseException as error:  # noqa: BLE001 - must not unwind into the spawner
            failure = error
        if failure is not None and control is not None:
            report(control, failure)
    finally:
        os._exit(failure is not None)


def report(control: socket.socket, error: BaseException) -> None:
    """Tell the caller why a sandbox did not start."""
    known = isinstance(error, OSError)
    message = {
        "failed": str(error) if known else traceback.format_exc(),
        "errno": (error.errno or 0) if isinstance(error, OSError) else 0,
    }
    with suppress(OSError):
        wire.send(control, message)
