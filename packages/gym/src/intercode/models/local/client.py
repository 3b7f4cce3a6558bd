"""The client of local models: a server that is started when it is needed, and OpenAI's protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from intercode.errors import UsageError
from intercode.models.base import Answer, AttemptError, Request
from intercode.models.local import server
from intercode.models.local.store import find_weights
from intercode.models.openai import ChatClient

SILENCE = 3600.0
"""Seconds for which a server may be silent: slowness is not a failure, and its end is noticed."""
_HOSTS = ("127.0.0.1", "localhost")


@contextmanager
def run_server(
    name: str, base_url: str | None = None, calls: int = 1
) -> Iterator[server.LocalServer]:
    """Run the server of a model while the block runs.

    Raises:
        UsageError: There is no such model or file, no server for it, or too little memory.
        ModelAccessError: The server cannot be started.
    """
    server.check_package()
    port = parse_port(name, base_url)
    local_server, release = server.acquire_server(name, find_weights(name), calls, port)
    try:
        yield local_server
    finally:
        release()


def parse_port(name: str, base_url: str | None) -> int:
    """Return the port that a base URL names; 0 without one.

    Raises:
        UsageError: The URL is not of this machine.
    """
    if base_url is None:
        return 0
    parts = urlsplit(base_url)
    if (
        parts.hostname not in _HOSTS
        or parts.port is None
        or parts.path.strip("/") not in ("", "v1")
    ):
        raise UsageError(
            f"local/{name} is served on this machine: its base URL only selects the port, such as "
            "http://127.0.0.1:8080"
        )
    return parts.port


class LocalClient:
    """The client of a model's file.

    Args:
        name: A name of the catalog, or a path that ends in ``.gguf``.
        base_url: Chooses the server's port; None: one that is free.

    Raises:
        UsageError: There is no such model or file, no server for it, or too little memory.
    """

    def __init__(self, name: str, base_url: str | None = None) -> None:
        self._name = name
        self._port = parse_port(name, base_url)
        server.check_package()
        self._weights = find_weights(name)
        if not server.is_running(self._weights, self._port):
            server.plan_server(name, self._weights, 1)  # refuses what does not fit
        self.weights = self._weights.sha256
        """The SHA-256 of the model's file, in hexadecimal."""
        self.endpoint = f"llama.cpp/{self.weights}"
        self._lock = threading.Lock()
        self._connection: tuple[server.LocalServer, ChatClient] | None = None
        self._release: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"LocalClient({self._name!r})"

    def start(self, calls: int = 1) -> None:
        """Start the server, unless it runs.

        Args:
            calls: Calls that will be made at a time.

        Raises:
            UsageError: The memory that is free is too small.
            ModelAccessError: The server cannot be started.
        """
        self._connect(calls)

    def send(self, request: Request) -> Answer:
        """Make one call."""
        local_server, chat = self._connect(1)
        try:
            return chat.send(request)
        except AttemptError:
            local_server.check()
            raise

    def _connect(self, calls: int) -> tuple[server.LocalServer, ChatClient]:
        with self._lock:
            if self._connection is None:
                local_server, self._release = server.acquire_server(
                    self._name, self._weights, calls, self._port
                )
                chat = ChatClient(self._name, f"{local_server.url}/v1", local_server.key, SILENCE)
                self._connection = local_server, chat
            return self._connection

    def close(self) -> None:
        """Close all connections, and end the server unless others use it."""
        with self._lock:
            if self._connection is not None:
                self._connection[1].close()
                self._connection = None
            self._release()


def local(model: str, *, base_url: str | None, timeout: float) -> LocalClient:
    """Make the client of a model of this machine."""
    return LocalClient(model, base_url)
