"""Sandboxes for an agent's code: `Sandbox`, and `AsyncSandbox` for programs with an event loop."""

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
"""The address of the project. `intercode_sandbox.origin` compares it between packages."""

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
"""Public name → the module that defines it. All other public names are defined in `base`."""


def __getattr__(name: str) -> Any:
    """Import a public name on its first use.

    Raises:
        AttributeError: The package has no such public name.
        SandboxUnavailableError: This system is not Linux.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intercode_sandbox.errors import SandboxUnavailableError
    from intercode_sandbox.privileges import unsupported_system

    # This check precedes the import, because the modules with the public names import modules that
    # only Linux has.
    if message := unsupported_system():
        raise SandboxUnavailableError(message)
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
