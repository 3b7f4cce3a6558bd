"""For a spawner to load: its sandboxes wait for what moves as long as it takes."""

from __future__ import annotations

import socket

from intercode.sandbox.native import inside

inside._STILL_SECONDS = 1e9


def main(channel: socket.socket) -> None:
    """Nobody starts it."""
