"""The capabilities that root of a sandbox may have: names, bits and meanings, once for all readers.

They hold over the sandbox's own files, users, processes and ports. Those that are missing here,
over mounts, devices, the network or the kernel, no sandbox gets.

Standard library only: the spawner and containers load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Capability(NamedTuple):
    """A capability of Linux."""

    bit: int
    permits: str
    """The rights of root inside, for people."""


CAPABILITIES = {
    "chown": Capability(0, "give files to other users"),
    "dac_override": Capability(1, "read and write files whatever their modes are"),
    "fowner": Capability(3, "change modes and times of other users' files"),
    "fsetid": Capability(4, "keep setuid and setgid bits of a changed file"),
    "kill": Capability(5, "send signals to other users' processes"),
    "net_bind_service": Capability(10, "listen at ports below 1024; so may other users"),
    "setgid": Capability(6, "become other groups"),
    "setuid": Capability(7, "become other users"),
    "sys_chroot": Capability(18, "change the root folder of a process"),
}
"""Name → what it is."""

MULTI_USER_CAPABILITIES = ("chown", "setgid", "setuid")
"""The capabilities that need more users than one."""


def parse_capabilities(value: object) -> tuple[str, ...]:
    """Return capabilities in one order, from a list of names or a text with commas between them.

    Raises:
        ValueError: There is no such capability; the message lists all.
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
    """Return the bits of capabilities, as the kernel has them."""
    return sum(1 << CAPABILITIES[name].bit for name in names)
