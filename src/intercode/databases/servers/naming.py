"""Names for what we make on a server that others use, too: they tell whose it is.

A name says which machine and container made it, which process there, and when that started. So
the next start can drop what a killed run has left, and nothing else. It has 32 characters at
most (the limit for MySQL's accounts) and none that is a wildcard in a ``GRANT``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from pathlib import Path

from intercode.sandbox.ownership import start_time

_NAME = re.compile(r"ic([0-9a-f]{8})p([0-9a-f]+)t([0-9a-f]+)n[0-9a-f]+\Z")
_numbers = itertools.count(1)


def new() -> str:
    """A name that belongs to this process, and no other has."""
    pid = os.getpid()
    return f"ic{_place()}p{pid:x}t{start_time(pid) or 0:x}n{next(_numbers):x}"


def is_left_over(name: str) -> bool:
    """Whether a name is one of ours whose process has ended.

    Of another machine or container nothing is known: then False.
    """
    found = _NAME.match(name)
    if found is None or found[1] != _place():
        return False
    return start_time(int(found[2], 16)) != int(found[3], 16)


def _place() -> str:
    """This machine since it was started, and this container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - no path of a file
    return hashlib.blake2b(f"{boot}{namespace}".encode(), digest_size=4).hexdigest()
