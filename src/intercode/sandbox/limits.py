"""Which limits a sandbox can have."""

from __future__ import annotations

from intercode.errors import UsageError
from intercode.sandbox.base import Limits

_FEWEST_FILES = 512
CAPABILITIES = ("chown", "dac_override", "fowner", "fsetid", "setgid", "setuid")
"""Those that can be kept."""


def check_limits(limits: Limits) -> None:
    """Refuse limits within which no sandbox can run.

    Raises:
        UsageError: Says which.
    """
    for name in ("timeout", "memory", "processes", "disk", "files", "output", "open_files"):
        if not getattr(limits, name) > 0:
            raise UsageError(f"limit {name!r} must be above 0, not {getattr(limits, name)!r}")
    limits.seconds(None)
    if limits.open_files < _FEWEST_FILES:
        raise UsageError(f"limit 'open_files' must be at least {_FEWEST_FILES}, for a shell")
    if unknown := set(limits.capabilities) - set(CAPABILITIES):
        allowed = ", ".join(CAPABILITIES)
        raise UsageError(f"capability {sorted(unknown)[0]!r} is not one of {allowed}")
