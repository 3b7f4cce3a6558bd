"""An adapter for Harbor, a framework for agents' evaluation, in both directions.

InterCode's runner can run Harbor's task folders, without Harbor. Harbor's runner can use
InterCode's sandboxes and tasks, and only that direction imports Harbor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from intercode_integrations import require_framework

if TYPE_CHECKING:
    from intercode_integrations.harbor.backend import InterCodeEnvironment, InterCodeVerifier

__all__ = ["InterCodeEnvironment", "InterCodeVerifier"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with require_framework("Harbor", "intercode-gym[harbor]"):
        from intercode_integrations.harbor import backend

    return getattr(backend, name)
