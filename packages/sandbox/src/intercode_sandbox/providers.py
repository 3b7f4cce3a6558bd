"""The providers of sandboxes by name: `get_provider`."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from intercode_sandbox.base import Provider
from intercode_sandbox.errors import UsageError
from intercode_sandbox.lazy_imports import Registry
from intercode_sandbox.user_code import absolute

PROVIDERS = Registry(
    "sandbox provider",
    {
        "native": "intercode_sandbox.native.provider:NativeProvider",
        "docker": "intercode_sandbox.docker.provider:DockerProvider",
    },
    "intercode.sandboxes",
)
"""Name → a function or class that makes a `Provider`; from ``preload`` and ``path`` where it is to
run modules."""

_shared_providers: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Provider] = {}
_lock = threading.Lock()


def get_provider(
    name: str = "native", preload: Sequence[str] = (), path: Sequence[str | os.PathLike[str]] = ()
) -> Provider:
    """Return the process-wide provider of that name: all environments share what it has started.

    There is one for each list of modules to preload.

    Args:
        name: ``native`` or ``docker``; or your own, as ``path/to/file.py:name`` or by an entry
            point.
        preload: The modules that its sandboxes' workers run: they have ``main(socket)``. They can
            import Python's standard library, and what is in `path`.
        path: Folders with modules of your own.

    Raises:
        UsageError: There is none of that name.
    """
    for option, value in {"preload": preload, "path": path}.items():
        if isinstance(value, str | os.PathLike):
            raise UsageError(f"{option} must be a list, such as [{os.fspath(value)!r}]")
    folders = tuple(str(Path(folder).absolute()) for folder in path)
    key = (absolute(name), tuple(preload), folders)
    with _lock:
        if key not in _shared_providers:
            make = PROVIDERS.resolve(name)
            _shared_providers[key] = make(preload=preload, path=folders) if preload else make()
        return _shared_providers[key]
