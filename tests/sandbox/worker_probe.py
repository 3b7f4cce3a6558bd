"""A worker for the tests: it answers an expression of Python, one in a packet, with its value."""

from __future__ import annotations

import gc
import os
import signal
import socket

MODULES = {"gc": gc, "os": os, "signal": signal, "socket": socket}


def main(channel: socket.socket) -> None:
    while True:
        text, fds, _, _ = socket.recv_fds(channel, 65536, 1)
        if text in (b"", b"end"):
            return
        try:
            value = repr(eval(text, {**MODULES, "received": fds}))
        except Exception as error:  # noqa: BLE001 - it is the answer
            value = repr(error)
        channel.sendall(value.encode())
