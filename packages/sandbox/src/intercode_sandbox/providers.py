"""The registry of sandbox providers, and `get_provider`, which creates one instance per process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from intercode_sandbox.base import Provider
from intercode_sandbox.errors import UsageError
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.user_code import absolute

PROVIDERS = LazyRegistry(
    "sandbox provider",
    {
        "native": "intercode_sandbox.native.provider:NativeProvider",
        "docker": "intercode_sandbox.docker.provider:DockerProvider",
    },
    "intercode.sandboxes",
)
"""A provider's name → a function or class that creates the `Provider`.

`get_provider` passes the arguments ``preload`` and ``path`` only if the caller preloads modules.
"""

_shared_providers: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Provider] = {}
"""The name, the preloaded modules, and their folders → the provider that this process uses."""
_lock = threading.Lock()


def get_provider(
    name: str = "native", preload: Sequence[str] = (), path: Sequence[str | os.PathLike[str]] = ()
) -> Provider:
    """Return the provider of a name: all environments of this process share one instance.

    Calls with different `preload` or `path` get different instances.

    Args:
        name: ``native`` or ``docker``; or your own provider, by ``path/to/file.py:name`` or an
            entry point.
        preload: Modules of the sandboxes' workers, each with ``main(socket)``. The modules can
            import Python's standard library, and modules in `path`.
        path: Folders with your own modules.

    Raises:
        UsageError: No provider has that name, or `preload` or `path` is a text.
        ImportError: The provider's module, or a dependency of the module, is not installed.
    """
    for option, value in {"preload": preload, "path": path}.items():
        if isinstance(value, str | os.PathLike):
            raise UsageError(f"{option} must be a list, such as [{os.fspath(value)!r}]")
    module_folders = tuple(str(Path(folder).absolute()) for folder in path)
    provider_key = (absolute(name), tuple(preload), module_folders)
    with _lock:
        if provider_key not in _shared_providers:
            make_provider = PROVIDERS.resolve(name)
            _shared_providers[provider_key] = (
                make_provider(preload=preload, path=module_folders) if preload else make_provider()
            )
        return _shared_providers[provider_key]
