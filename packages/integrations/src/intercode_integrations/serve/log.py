"""The log of a server: one line of JSON for each event, on standard error.

The log contains no actions, observations or tokens.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

from intercode_integrations.serve import messages


def log(event: str, **facts: Any) -> None:
    """Write a line of the log; if standard error is closed, the line is lost.

    Args:
        event: The kind of the event, such as ``opened``.
        **facts: Further fields of the line.
    """
    line = messages.json(
        {"time": round(time.time(), 3), "event": event, "pid": os.getpid(), **facts}
    )
    with suppress(OSError, ValueError):
        sys.stderr.write(line.decode() + "\n")
        sys.stderr.flush()
