"""The static process 1, as the spawner and a caller see it: its zygote, and what it is told."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Mapping
from typing import Any

from intercode.capabilities import mask
from intercode.sandbox.native import wire
from intercode.sandbox.native.identity import Identity
from intercode.sandbox.native.launch import SHARED_PART, Machine

PROGRAM = os.path.join(os.path.dirname(__file__), "static", "process1")
"""The program that the build of this package makes, for the machines that it knows."""
CHOICE = "INTERCODE_STATIC"
"""The variable by which ``0`` makes a fork of Python process 1 of all sandboxes."""
_SOCKET = 3


def available() -> bool:
    """Return whether process 1 can be the static program."""
    return os.environ.get(CHOICE) != "0" and os.access(PROGRAM, os.X_OK)


class Zygote:
    """A process of the static program, forked for each sandbox. Its forks are this process's.

    Args:
        machine: The machine's facts.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._begin()

    def _begin(self) -> None:
        self._link, theirs = wire.pair()
        with theirs:
            given = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), _SOCKET)]
            os.posix_spawn(PROGRAM, ["init"], {}, file_actions=given)
        filters = [self._machine.filters[key] for key in sorted(self._machine.filters)]
        told = {"root": self._machine.root, "masks": self._machine.masks, "filters": filters}
        wire.send(self._link, told, packed=True)

    def fork(self, network: bool, link: socket.socket, cgroups: list[str]) -> int:
        """Return the pid of a new child, which waits at the other end of `link`.

        Args:
            network: Whether it shares the machine's network.
            link: Its own socket.
            cgroups: The folders of cgroups that it enters.

        Raises:
            OSError: The kernel refused.
        """
        request = {"network": network, "cgroups": cgroups}
        try:
            reply = self._ask(request, link)
        except (EOFError, OSError):  # something has killed it
            self._link.close()
            self._begin()
            reply = self._ask(request, link)
        if "errno" in reply:
            raise OSError(reply["errno"], f"clone: {os.strerror(reply['errno'])}")
        return int(reply["pid"])

    def _ask(self, request: dict[str, Any], link: socket.socket) -> dict[str, Any]:
        wire.send(self._link, request, [link.fileno()], packed=True)
        return wire.receive(self._link)[0]


def plan(spec: dict[str, Any], identity: Identity, machine: Machine, ahead: bool) -> dict[str, Any]:
    """Return what a child is told to become, without its descriptors.

    Args:
        spec: A caller's request, with its layers as names on the stage.
        identity: Who it is to be.
        machine: The machine's facts.
        ahead: Whether it is made ready ahead of a request for it.
    """
    limits, used = spec["limits"], spec["used"]
    kept = limits["capabilities"]
    return {
        **{name: limits[name] for name in ("memory", "disk", "files", "processes", "open_files")},
        **{name: spec[name] for name in ("layers", "image", "programs", "hide")},
        "used_bytes": used[0],
        "used_files": used[1],
        "shared_pages": limits["memory"] // SHARED_PART // resource.getpagesize(),
        # The machine's own network would be changed for all. A capability does nothing there, nor
        # here: the network belongs to the namespace of users that is left.
        "low_ports": "net_bind_service" in kept and not spec["network"],
        "kept": mask(kept),
        "rights": machine.rights,
        "filter": 2 * limits["debugger"] + ("sys_chroot" in kept),
        "special": list(spec["special"].items()),
        "frozen": len(spec["frozen"]),
        "user": ids(spec["user"]),
        "first_id": identity.first,
        "own_id": identity.own,
        "ahead": ahead,
        "program": first_program(spec["first"]) if ahead and spec["first"] else None,
    }


def first_program(first: dict[str, Any]) -> dict[str, Any]:
    """Return the request for the program that a sandbox starts ahead of its caller's."""
    numbers = [number for number, _ in first["channels"]] + [2] * first["merge_stderr"]
    return packed({**first, "numbers": numbers})


def packed(message: dict[str, Any]) -> dict[str, Any]:
    """Return a request in the form that the static process 1 has."""
    told = dict(message)
    if "env" in told:
        variables: Mapping[str, str] = told["env"]
        told["env"] = [f"{name}={value}" for name, value in variables.items()]
        told["user"] = ids(told["user"]) if told["user"] else None
    if "timeout" in told:
        told["timeout"] = int(told["timeout"] * 1000)
    return told


def ids(user: str) -> list[int]:
    """Return the numbers of ``uid[:gid[,group…]]``; without any, those of user 0."""
    return [int(part) for part in (user.replace(":", ",") or "0,0").split(",")]


def spelled_out(failure: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a child that did not start, with the kernel's words for its error."""
    said = f"{failure['failed']}: {os.strerror(failure['errno'])}"
    return {**failure, "failed": said}
