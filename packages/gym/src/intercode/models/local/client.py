"""The client of local models, which starts llama.cpp's server on demand.

The client and the server use OpenAI's protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from intercode.errors import UsageError
from intercode.models.base import Answer, AttemptError, Request
from intercode.models.local import server
from intercode.models.local.store import find_weights
from intercode.models.openai import ChatCompletionsClient

SILENCE = 3600.0
"""Maximum seconds for which a server may send nothing. The value is large: a slow reply is not a
failure, and the crash of a server is detected separately."""
_HOSTS = ("127.0.0.1", "localhost")


@contextmanager
def run_server(
    name: str, base_url: str | None = None, calls: int = 1
) -> Iterator[server.LocalModelServer]:
    """Run a model's server for the duration of the block.

    Args:
        name: A name of the catalog, or a path that ends in ``.gguf``.
        base_url: A URL that selects the server's port; None: a free port.
        calls: The number of concurrent calls to expect.

    Raises:
        UsageError: The model, its file or the server's package is missing, the URL selects no port
            of this machine, or the memory is too small.
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
    """Return the port of a base URL; 0 without a URL.

    Args:
        name: The model's name, for the message.
        base_url: The URL.

    Raises:
        UsageError: The URL's host is not this machine, or the URL has no valid port, or the URL's
            path is neither empty nor ``/v1``.
    """
    if base_url is None:
        return 0
    try:
        url_parts = urlsplit(base_url)
        port = url_parts.port
    except ValueError:  # the port is not a number, or is above 65535; or the URL is malformed
        port = None
    if (
        port is None
        or url_parts.hostname not in _HOSTS
        or url_parts.path.strip("/") not in ("", "v1")
    ):
        raise UsageError(
            f"local/{name} is served on this machine: its base URL only selects the port, such as "
            "http://127.0.0.1:8080"
        )
    return port


class LocalModelClient:
    """The client of a local model.

    Args:
        name: A name of the catalog, or a path that ends in ``.gguf``.
        base_url: A URL that selects the server's port; None: a free port.

    Raises:
        UsageError: The model, its file or the server's package is missing, the URL selects no port
            of this machine, or the memory is too small.
    """

    def __init__(self, name: str, base_url: str | None = None) -> None:
        self._name = name
        self._port = parse_port(name, base_url)
        server.check_package()
        self._weights = find_weights(name)
        if not server.is_running(self._weights, self._port):
            # The result is unused: the call refuses a model that exceeds the free memory.
            server.plan_server(name, self._weights, 1)
        self.weights = self._weights.sha256
        """The SHA-256 of the model's file, in hexadecimal."""
        self.endpoint = f"llama.cpp/{self.weights}"
        self._lock = threading.Lock()
        self._connection: tuple[server.LocalModelServer, ChatCompletionsClient] | None = None
        self._release: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"LocalModelClient({self._name!r})"

    def start(self, calls: int = 1) -> None:
        """Start the server unless it runs.

        Args:
            calls: The number of concurrent calls to expect.

        Raises:
            UsageError: The free memory is too small.
            ModelAccessError: The server cannot be started.
        """
        self._connect(calls)

    def send(self, request: Request) -> Answer:
        """Send one request, after starting the server if necessary; see `ModelClient.send`.

        Raises:
            UsageError: The free memory is too small for the server.
            ModelAccessError: The server cannot be started, or has ended.
        """
        local_server, chat = self._connect(1)
        try:
            return chat.send(request)
        except AttemptError:
            local_server.check()
            raise

    def _connect(self, calls: int) -> tuple[server.LocalModelServer, ChatCompletionsClient]:
        with self._lock:
            if self._connection is None:
                local_server, self._release = server.acquire_server(
                    self._name, self._weights, calls, self._port
                )
                chat = ChatCompletionsClient(
                    self._name, f"{local_server.url}/v1", local_server.key, SILENCE
                )
                self._connection = local_server, chat
            return self._connection

    def close(self) -> None:
        """Close all connections, and end the server unless other clients use it."""
        with self._lock:
            if self._connection is not None:
                self._connection[1].close()
                self._connection = None
            self._release()


def local(model: str, *, base_url: str | None, timeout: float) -> LocalModelClient:
    """Return the client of a local model.

    Args:
        model: A name of the catalog, or a path that ends in ``.gguf``.
        base_url: A URL that selects the server's port; None: a free port.
        timeout: Ignored, because `SILENCE` is the timeout of local models.

    Raises:
        UsageError: See `LocalModelClient`.
    """
    return LocalModelClient(model, base_url)
