"""InterCode in other frameworks, and agents of others in InterCode.

An adapter imports its framework and no other adapter. The framework is an extra of the same name
(``intercode-gym[harbor]``); no environment can hold all of them. Public names are imported at their
first use.
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
"""The project of this package: `intercode_sandbox.origin` reads this line before the import."""

__all__ = ["AsyncEnv", "SandboxPool", "connect", "connect_vec"]

_MODULES = {
    "AsyncEnv": "async_env",
    "SandboxPool": "pool",
    **dict.fromkeys(("connect", "connect_vec"), "serve.client"),
}


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@contextmanager
def require_framework(framework: str, package: str) -> Iterator[None]:
    """Import what an adapter needs of its framework.

    Args:
        framework: The framework's name, for the message.
        package: What pip installs.

    Raises:
        UsageError: A module is not installed, and it is none of InterCode's own.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in PROJECT_MODULES:
            raise
        raise UsageError(
            f"{framework} is not installed, which this needs: pip install '{package}' ({error})"
        ) from error
