"""Linux capabilities that root of a sandbox may have: a table of names, bits and meanings.

A capability in a sandbox applies only to the sandbox's own files, users, processes and ports. No
program in a sandbox gets a capability that is not in this table, for instance over mounts, devices,
the network or the kernel.

This module imports the standard library only, because the spawner and containers load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LinuxCapability(NamedTuple):
    """A Linux capability."""

    bit: int
    """Number of the capability's bit in the kernel's masks."""
    permits: str
    """Actions that the capability permits to root of the sandbox, in words for messages."""


CAPABILITIES = {
    "chown": LinuxCapability(0, "give files to other users"),
    "dac_override": LinuxCapability(1, "read and write files whatever their modes are"),
    "fowner": LinuxCapability(3, "change modes and times of other users' files"),
    "fsetid": LinuxCapability(4, "keep setuid and setgid bits of a changed file"),
    "kill": LinuxCapability(5, "send signals to other users' processes"),
    "net_bind_service": LinuxCapability(10, "listen at ports below 1024; so may other users"),
    "setgid": LinuxCapability(6, "become other groups"),
    "setuid": LinuxCapability(7, "become other users"),
    "sys_chroot": LinuxCapability(18, "change the root folder of a process"),
}
"""The capability's name, without ``CAP_`` and in lower case → the capability."""

MULTI_USER_CAPABILITIES = ("chown", "setgid", "setuid")
"""The capabilities that are useless in a sandbox with a single user id."""


def parse_capabilities(value: object) -> tuple[str, ...]:
    """Return capabilities in a fixed order, from a list of names or a comma-separated text.

    Raises:
        ValueError: A name is not a capability; the message lists all.
    """
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise ValueError(f"must be a list of names, not {value!r}")
    names = [name.strip() if isinstance(name, str) else name for name in names]
    for name in names:
        if not isinstance(name, str) or name not in {"", *CAPABILITIES}:
            raise ValueError(f"must be among {', '.join(CAPABILITIES)}, not {name!r}")
    return tuple(name for name in CAPABILITIES if name in names)


def mask(names: Iterable[str]) -> int:
    """Return the bit mask of capabilities, in the kernel's format."""
    return sum(1 << CAPABILITIES[name].bit for name in names)
