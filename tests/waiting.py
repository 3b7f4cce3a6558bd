"""How tests wait for what comes by itself: for the thing, and however slow the machine is."""

from __future__ import annotations

import secrets
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


def new_marker() -> str:
    """How long a sleeper sleeps that no other test or suite on this machine has."""
    return f"4321.{secrets.randbelow(10**15):015}"
