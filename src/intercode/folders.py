"""Where InterCode keeps things between runs."""

from __future__ import annotations

import os
from pathlib import Path

from intercode.rights import needs_stand_in


def cache_root() -> Path:
    """Where InterCode keeps what it can make again."""
    if own := os.environ.get("INTERCODE_CACHE"):
        return Path(own).expanduser().absolute()
    if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return Path(xdg) / "intercode"
    home = Path.home()
    if home == Path("/root") and needs_stand_in():
        return Path("/var/cache/intercode")  # the sandboxes' user cannot enter root's home
    return home / ".cache" / "intercode"
