"""Sandboxes: where an agent's code runs. `get_provider` gives one by name."""

from __future__ import annotations

import importlib
import threading

from intercode.errors import UsageError
from intercode.sandbox.base import (
    Change,
    Completed,
    Limits,
    Process,
    Provider,
    Sandbox,
    Snapshot,
    Worker,
)

__all__ = [
    "Change",
    "Completed",
    "Limits",
    "Process",
    "Provider",
    "Sandbox",
    "Snapshot",
    "Worker",
    "get_provider",
]

PROVIDERS = {
    "native": "intercode.sandbox.native.provider:NativeProvider",
    "docker": "intercode.sandbox.docker.provider:DockerProvider",
}
"""Name → class, imported when first asked for."""

_shared: dict[str, Provider] = {}
_lock = threading.Lock()


def get_provider(name: str = "native") -> Provider:
    """The process-wide provider of that name: all environments share its spawner.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in PROVIDERS:
        known = ", ".join(sorted(PROVIDERS))
        raise UsageError(f"there is no sandbox provider {name!r}; known: {known}")
    with _lock:
        if name not in _shared:
            module, _, attribute = PROVIDERS[name].partition(":")
            _shared[name] = getattr(importlib.import_module(module), attribute)()
        return _shared[name]
