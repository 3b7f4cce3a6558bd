"""The processes of a server."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Sequence

from intercode.errors import UsageError
from intercode.serve.counts import Counts
from intercode.serve.guard import Guard
from intercode.serve.offers import Offer
from intercode.serve.server import Server
from intercode.serve.session import Terms

_BACKLOG = 1024
"""Clients that wait to be accepted."""


def listen(host: str, port: int, workers: int = 1) -> socket.socket:
    """Take a port.

    Args:
        host: The address.
        port: The port; 0: any that is free.
        workers: How many processes listen there.

    Raises:
        UsageError: It cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if workers > 1:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(found[4])
    except OSError as error:
        raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    return listener


def run(
    offers: Sequence[Offer],
    terms: Terms,
    guard: Guard,
    listener: socket.socket,
    ready: Callable[[], None],
) -> None:
    """Serve until a signal ends it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def main() -> None:
        listener.listen(_BACKLOG)
        await Server(offers, terms, guard, Counts()).run(listener, ready)

    asyncio.run(main())
