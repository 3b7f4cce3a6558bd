"""Where InterCode keeps things between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Where InterCode keeps what it can make again."""
    if own := os.environ.get("INTERCODE_CACHE"):
        return Path(own).expanduser().absolute()
    if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return Path(xdg) / "intercode"
    return Path.home() / ".cache" / "intercode"
