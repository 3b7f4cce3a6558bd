"""A client of Docker's engine that leaves no sockets open.

The client of the package docker leaves sockets open if no engine listens. This module is imported
only if that package is installed.
"""

from __future__ import annotations

import socket
from typing import Any

import docker
from docker.transport import UnixHTTPAdapter

_LOCAL = "http+docker://"
_CONNECTIONS = 4
"""Maximum number of connection pools that the client keeps."""


class DockerApiClient(docker.APIClient):  # type: ignore[misc]
    """A `docker.APIClient` that first checks, over a Unix socket, whether an engine listens.

    Args:
        url: The engine's address.
        **options: Options of `docker.APIClient`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._socket = "/" + url.removeprefix("unix://").lstrip("/")
        self._knocks = url.startswith("unix://")
        super().__init__(**{**options, "base_url": url, "version": "auto"})
        if self._knocks:
            # The adapter of the package docker keeps connections for 25 different paths of
            # requests. Paths contain the names of containers, so too many connections would stay
            # open.
            self.get_adapter(_LOCAL).close()
            self.mount(
                _LOCAL,
                UnixHTTPAdapter(
                    f"http+unix://{self._socket}", self.timeout, pool_connections=_CONNECTIONS
                ),
            )

    def send(self, request: Any, **options: Any) -> Any:
        """Send an HTTP request to the engine.

        Raises:
            OSError: No engine listens.
        """
        if self._knocks:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe_socket:
                probe_socket.settimeout(self.timeout)
                probe_socket.connect(self._socket)
        return super().send(request, **options)
