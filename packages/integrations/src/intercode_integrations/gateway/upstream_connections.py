"""Connections from the gateway to the upstream server, and single requests to it."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11

from intercode.models import response_parsing
from intercode.models.base import AttemptError
from intercode.models.upstream import Upstream
from intercode_integrations.gateway.http import MAX_HEAD_BYTES
from intercode_sandbox.ownership import disown_in_forks

CHUNK = 65_536
MAX_IDLE_CONNECTIONS = 64
"""Maximum number of idle connections that a pool keeps open."""
_PORTS = {"http": 80, "https": 443}


class UpstreamConnectionPool:
    """Connections to a server, kept open between requests and shared by threads.

    Args:
        upstream: The server's URL and credentials.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        parsed_url = urlsplit(upstream.url)
        self._host = parsed_url.netloc.rpartition("@")[2]
        self._server = parsed_url.hostname or "", parsed_url.port or _PORTS[parsed_url.scheme]
        self._tls = ssl.create_default_context() if parsed_url.scheme == "https" else None
        # The proxy comes from the environment variables, as in the SDKs that agents use.
        proxy = None if proxy_bypass(self._host) else getproxies().get(parsed_url.scheme)
        self._proxy = urlsplit(proxy) if proxy else None
        self._base = parsed_url.path.removesuffix("/v1")
        if self._proxy and not self._tls:
            self._base = f"http://{self._host}{self._base}"
        self._lock = threading.Lock()
        self._idle_connections: list[socket.socket] = []
        self._closed = False
        disown_in_forks(self)

    def disown(self) -> None:
        """Forget the connections in a forked process: they belong to the parent process."""
        self._lock, self._idle_connections = threading.Lock(), []

    def close(self) -> None:
        """Close the idle connections now, and each other connection when it becomes idle.

        Idempotent.
        """
        with self._lock:
            self._closed, connections, self._idle_connections = True, self._idle_connections, []
        for connection in connections:
            connection.close()

    def open(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> UpstreamResponse:
        """Send a request, and return the response with its body still unread.

        Args:
            method: GET or POST.
            path: The path from ``/v1`` onwards. The upstream's own ``/v1`` is removed.
            body: The request's body.
            headers: The request's headers, without host, credentials, encoding and length.
            timeout: The seconds without data from the server after which the request fails.

        Raises:
            AttemptError: The connection failed, or broke before a response.
        """
        # A request inside a TLS tunnel does not reach the proxy, so it needs no proxy headers.
        host_headers = {"Host": self._host} if self._tls else self._proxy_headers(self._host)
        request_headers = {
            **host_headers,
            **headers,
            **self._upstream.credentials(),
            "Accept-Encoding": "identity",
            "Content-Length": str(len(body)),
        }
        connection = self._take_idle() or self._connect(timeout)
        try:
            connection.settimeout(timeout)
            return UpstreamResponse(
                connection, self._release, method, self._base + path, request_headers, body
            )
        except (OSError, h11.RemoteProtocolError) as error:
            connection.close()
            raise AttemptError(
                f"the connection broke: {_error_text(error)}", charged=True
            ) from None

    def _take_idle(self) -> socket.socket | None:
        """Remove and return an idle connection that the server has not closed; None without one."""
        while True:
            with self._lock:
                if not self._idle_connections:
                    return None
                connection = self._idle_connections.pop()
            poller = select.poll()
            poller.register(connection, select.POLLIN)
            # A readable idle connection has been closed: no response is due on it.
            if not poller.poll(0):
                return connection
            connection.close()

    def _connect(self, timeout: float) -> socket.socket:
        connect_timeout, address = min(response_parsing.CONNECT, timeout), self._server
        if self._proxy is not None:
            address = self._proxy.hostname or "", self._proxy.port or _PORTS["http"]
        try:
            connection = socket.create_connection(address, connect_timeout)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is None:
                    return connection
                if self._proxy is not None:
                    self._tunnel(connection)
                return self._tls.wrap_socket(connection, server_hostname=self._server[0])
            except BaseException:
                connection.close()
                raise
        except (OSError, h11.RemoteProtocolError) as error:
            raise AttemptError(
                f"no connection to {self._upstream.url}: {error}", unreachable=True
            ) from None

    def _tunnel(self, proxy_connection: socket.socket) -> None:
        """Open a tunnel through the proxy to the server."""
        target = "{}:{}".format(*self._server)
        answer = UpstreamResponse(
            proxy_connection, socket.socket.close, "CONNECT", target, self._proxy_headers(target)
        )
        if answer.status // 100 != 2:
            raise OSError(f"the proxy replied with status {answer.status}")

    def _proxy_headers(self, host: str) -> dict[str, str]:
        """Return the ``Host`` header, and the proxy's credentials if the proxy needs any."""
        proxy = self._proxy
        if proxy is None or proxy.username is None:
            return {"Host": host}
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        return {"Host": host, "Proxy-Authorization": f"Basic {b64encode(credentials).decode()}"}

    def _release(self, connection: socket.socket) -> None:
        with self._lock:
            if not self._closed and len(self._idle_connections) < MAX_IDLE_CONNECTIONS:
                self._idle_connections.append(connection)
                return
        connection.close()


class UpstreamResponse:
    """A response of the upstream server; the constructor sends the request and reads the head.

    Args:
        connection: The connection to the server, on which no other request is running.
        release: A function that receives the connection if another request can use it.
        method, target, headers, body: The request.

    Raises:
        OSError: The connection broke, or ended before a response.
        h11.RemoteProtocolError: The answer is not valid HTTP.
    """

    def __init__(
        self,
        connection: socket.socket,
        release: Callable[[socket.socket], None],
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> None:
        self._socket, self._release = connection, release
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        request_head = h11.Request(method=method, target=target, headers=[*headers.items()])
        request_events = (request_head, h11.Data(data=body), h11.EndOfMessage())
        connection.sendall(b"".join(self._http.send(event) or b"" for event in request_events))
        self.status = 0
        while not isinstance(event := self._read_event(), h11.Response):
            pass  # skip interim responses (status 1xx)
        self.status = event.status_code
        self.headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}

    def read(self, max_bytes: int) -> bytes:
        """Read the whole body of the response.

        Raises:
            AttemptError: The body was cut off, or is longer than `max_bytes` bytes.
        """
        content = bytearray()
        while data := self.read_available():
            content += data
            if len(content) > max_bytes:
                raise AttemptError("the response is too long", charged=True)
        return bytes(content)

    def read_available(self) -> bytes:
        """Return all bytes that have arrived, and wait if there are none; empty at the end.

        Raises:
            AttemptError: The connection broke.
        """
        chunks: list[bytes] = []
        try:
            while self._http.their_state is h11.SEND_BODY:
                if isinstance(event := self._read_event(wait=not chunks), h11.Data):
                    chunks.append(event.data)
                elif event is h11.NEED_DATA:
                    break
        except (OSError, h11.RemoteProtocolError) as error:
            raise AttemptError(
                f"the response was cut off: {_error_text(error)}", charged=True
            ) from None
        return b"".join(chunks)

    def abort(self) -> None:
        """End the connection from another thread: the thread that reads it gets an error."""
        with suppress(OSError):  # the connection may have already ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the connection for reuse if the body was read, or close it.

        The server stops generating an unread answer when the connection closes.
        """
        done_state = h11.DONE
        if (
            self._http.our_state is self._http.their_state is done_state
            and not self._http.trailing_data[0]
        ):
            self._release(self._socket)
        else:
            self._socket.close()

    def _read_event(self, *, wait: bool = True) -> Any:
        """Return the next h11 event; without `wait`, ``NEED_DATA`` if no event is complete."""
        while (event := self._http.next_event()) is h11.NEED_DATA and wait:
            data = self._socket.recv(CHUNK)
            if not data and not self.status:
                raise ConnectionError("the connection was closed without a response")
            self._http.receive_data(data)
        return event


def _error_text(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else repr(error)
