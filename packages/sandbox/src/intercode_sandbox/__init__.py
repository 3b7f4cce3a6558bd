"""Sandboxes for an agent's code: `Sandbox`, and its event-loop twin `AsyncSandbox`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intercode_sandbox.async_sandbox import AsyncSandbox
    from intercode_sandbox.base import (
        Change,
        Completed,
        Limits,
        Process,
        Provider,
        SandboxBackend,
        Snapshot,
        Worker,
    )
    from intercode_sandbox.providers import get_provider
    from intercode_sandbox.sandbox import Sandbox

__version__ = "2.0.0"
"""The version of all packages of InterCode."""
ORIGIN = "https://github.com/intercode-gym/intercode"
"""The project of this package: `intercode_sandbox.origin`."""

__all__ = [
    "AsyncSandbox",
    "Change",
    "Completed",
    "Limits",
    "Process",
    "Provider",
    "Sandbox",
    "SandboxBackend",
    "Snapshot",
    "Worker",
    "get_provider",
]
_MODULES = {"AsyncSandbox": "async_sandbox", "Sandbox": "sandbox", "get_provider": "providers"}
"""Public name → its module, if that is not `base`."""


def __getattr__(name: str) -> Any:
    """Import a public name on its first use.

    Raises:
        SandboxUnavailableError: This system is not Linux.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intercode_sandbox.errors import SandboxUnavailableError
    from intercode_sandbox.privileges import unsupported_system

    if system := unsupported_system():  # before an import of a module that only Linux has
        raise SandboxUnavailableError(system)
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
