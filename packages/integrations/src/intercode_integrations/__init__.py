"""Adapters between InterCode and other frameworks, in both directions.

Other frameworks use InterCode's environments, and InterCode runs their agents. An adapter imports
its framework and no other adapter. The framework is an extra of the same name
(``intercode-gym[harbor]``), because no single Python environment can install all of them. Public
names are imported at their first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import intercode
from intercode_sandbox.errors import UsageError
from intercode_sandbox.extensions import PACKAGES
from intercode_sandbox.lazy_imports import PROJECT_MODULES
from intercode_sandbox.origin import check_package

if TYPE_CHECKING:
    from intercode_integrations.async_env import AsyncEnv
    from intercode_integrations.pool import SandboxPool
    from intercode_integrations.serve.client import connect, connect_vec

check_package(intercode, __name__, __file__)
PACKAGES[__name__] = Path(__file__).parent
ORIGIN = "https://github.com/intercode-gym/intercode"
"""URL of the project. `intercode_sandbox.origin` reads this line before it imports the package."""

__all__ = ["AsyncEnv", "SandboxPool", "connect", "connect_vec"]

_MODULES = {
    "AsyncEnv": "async_env",
    "SandboxPool": "pool",
    **dict.fromkeys(("connect", "connect_vec"), "serve.client"),
}


def __getattr__(name: str) -> Any:
    """Import and return a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@contextmanager
def require_framework(framework: str, package: str) -> Iterator[None]:
    """Run an import of an adapter's framework; if it is missing, explain how to install it.

    Args:
        framework: The framework's name, for the message.
        package: The package that pip installs.

    Raises:
        UsageError: The import fails because a module outside InterCode is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in PROJECT_MODULES:
            raise
        raise UsageError(
            f"{framework} is not installed, which this needs: pip install '{package}' ({error})"
        ) from error
