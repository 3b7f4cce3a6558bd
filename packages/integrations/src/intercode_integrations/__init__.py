"""Adapters to other frameworks: each imports its own, none imports another adapter.

An adapter's framework is an extra of the same name (``intercode-gym[harbor]``); no environment can
hold them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from intercode.errors import UsageError


@contextmanager
def needing(framework: str, package: str) -> Iterator[None]:
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
        if (error.name or "").partition(".")[0] in ("intercode", "intercode_sandbox"):
            raise
        raise UsageError(
            f"{framework} is not installed, which this needs: pip install '{package}' ({error})"
        ) from error
