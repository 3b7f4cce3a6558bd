"""How tests wait for what comes by itself: for the thing, and however slow the machine is."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds for what ends by itself: no machine, however slow, should reach them."""


def eventually(holds: Callable[[], object]) -> bool:
    """Wait until something holds; whether it does within our patience."""
    deadline = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(held)


def becomes_readable(fd: int) -> bool:
    """Whether a descriptor is readable within our patience; of any number, unlike `select`."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(PATIENCE * 1000))


def new_marker() -> str:
    """How long a sleeper sleeps that no other test or suite on this machine has."""
    return f"4321.{secrets.randbelow(10**15):015}"
