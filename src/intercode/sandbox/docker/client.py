"""Docker's client, which must not leave sockets open: its own does where nothing listens.

Imported only where the package docker is to be had.
"""

from __future__ import annotations

import socket
from typing import Any

import docker


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
