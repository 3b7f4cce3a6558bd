"""The limits of the paper protocol: its own."""

from __future__ import annotations

from intercode.errors import UsageError
from intercode.sandbox.base import Limits


def refuse(limits: Limits | None) -> None:
    """Refuse limits that were given.

    Raises:
        UsageError: They are not the defaults.
    """
    if limits not in (None, Limits()):
        raise UsageError("the paper protocol has limits of its own: leave yours away")
