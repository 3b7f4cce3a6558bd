"""Docker's client, which must not leave sockets open: its own does where nothing listens.

Imported only where the package docker is to be had.
"""

from __future__ import annotations

import socket
from typing import Any

import docker
from docker.transport import UnixHTTPAdapter

_LOCAL = "http+docker://"
_CONNECTIONS = 4


class Client(docker.APIClient):  # type: ignore[misc]
    """See `docker.APIClient`; over a Unix socket it first asks whether anything listens.

    Args:
        url: Where the engine listens.
        options: For `docker.APIClient`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._socket = "/" + url.removeprefix("unix://").lstrip("/")
        self._knocks = url.startswith("unix://")
        super().__init__(**{**options, "base_url": url, "version": "auto"})
        if self._knocks:
            # Its own keeps a connection for each of 25 paths, and containers' names are in these.
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
            OSError: Nothing listens.
        """
        if self._knocks:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
                knock.settimeout(self.timeout)
                knock.connect(self._socket)
        return super().send(request, **options)
