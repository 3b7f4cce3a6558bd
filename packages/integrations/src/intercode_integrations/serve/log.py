"""The log of a server: a line of JSON for each event, on standard error.

Neither actions nor observations are in it, and no token.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

from intercode_integrations.serve import wire


def log(event: str, **facts: Any) -> None:
    """Write a line. Without a reader, nothing happens."""
    line = wire.json({"time": round(time.time(), 3), "event": event, "pid": os.getpid(), **facts})
    with suppress(OSError, ValueError):
        sys.stderr.write(line.decode() + "\n")
        sys.stderr.flush()
