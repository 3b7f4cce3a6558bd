"""What a process leaves behind when it ends: nothing."""

from __future__ import annotations

import atexit
import weakref
from contextlib import suppress

from intercode.errors import SandboxError
from intercode.sandbox.base import Provider


def close_at_exit(provider: Provider) -> None:
    """Have a provider closed when the process ends, if it is still there then."""
    atexit.register(_close, weakref.ref(provider))


def _close(provider: weakref.ref[Provider]) -> None:
    if (live := provider()) is not None:
        with suppress(SandboxError, OSError):
            live.close()
