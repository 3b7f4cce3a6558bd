"""A client of Docker that closes its sockets: Docker's own leaves them open if no engine listens.

This module is imported only if the package docker is installed.
"""

from __future__ import annotations

import socket
from typing import Any

import docker
from docker.transport import UnixHTTPAdapter

_LOCAL = "http+docker://"
_CONNECTIONS = 4


class Client(docker.APIClient):  # type: ignore[misc]
    """A `docker.APIClient` that first checks, over a Unix socket, whether an engine listens.

    Args:
        url: The engine's address.
        options: Options of `docker.APIClient`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._socket = "/" + url.removeprefix("unix://").lstrip("/")
        self._knocks = url.startswith("unix://")
        super().__init__(**{**options, "base_url": url, "version": "auto"})
        if self._knocks:
            # Docker's adapter keeps a connection for each of 25 paths, and paths contain
            # containers' names.
            self.get_adapter(_LOCAL).close()
            self.mount(
                _LOCAL,
                UnixHTTPAdapter(
                    f"http+unix://{self._socket}", self.timeout, pool_connections=_CONNECTIONS
                ),
            )

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request.

        Raises:
            OSError: No engine listens.
        """
        if self._knocks:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe_socket:
                probe_socket.settimeout(self.timeout)
                probe_socket.connect(self._socket)
        return super().send(request, **options)
