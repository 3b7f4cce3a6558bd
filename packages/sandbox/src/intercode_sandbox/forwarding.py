"""Port forwards: a port of a sandbox's loopback leads to one address, or function, of the host.

The sandbox's process 1 creates a socket in the sandbox's network, and passes the socket to the host
once, before any connection. The host's process binds the socket and accepts connections by it. So
the sandbox gets no route, and no process in the sandbox listens. No process in the sandbox can end
a forward, take the forward over, or pass descriptors to it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

from intercode_sandbox.errors import CausedInsideError, SandboxError, UsageError
from intercode_sandbox.ownership import disown_in_forks

Handler = Callable[[socket.socket], None]
"""A function that serves one connection. The socket is closed when the function returns or raises.
"""

CONNECTIONS = 64
"""Default maximum of simultaneous connections of a forward. Further connections wait in the backlog
of the socket, like the connections of any busy server."""
IDLE_SECONDS = 600.0
"""Seconds without a byte from either side after which a connection is closed."""
_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
"""Time limit for the end of the accepting thread when a forward is closed."""
_SCARCITY_SECONDS = 0.2
"""Seconds between two attempts to accept a connection after an error of `_SCARCITY_ERRORS`."""
_CHUNK = 65_536
_SCARCITY_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""Errors because the machine or this process has too few descriptors or too little memory."""
_SO_DOMAIN, _SO_PROTOCOL, _SO_NETNS_COOKIE = 39, 38, 71  # Python has no names for these options


@dataclass(slots=True)
class ForwardingCounts:
    """Counts of the connections to one forwarded port: accepted, active and failed."""

    accepted: int = 0
    active: int = 0
    failed: int = 0
    """Connections that were not served: the target address was unreachable, the handler raised an
    error, or no thread could be started."""


class Forward:
    """A forward of one port of a sandbox's loopback, open until `close`. Thread-safe.

    Args:
        listener: A new socket of the sandbox's network, from `adopt_socket`.
        port: The port of 127.0.0.1, from 1 to 65535.
        serve: The handler, called for each connection on a new thread.
        connections: Maximum of simultaneous connections.

    Raises:
        CausedInsideError: A program in the sandbox, or another forward, uses that port.
        UsageError: `connections` is below 1, or the port needs privileges that this process lacks.
        SandboxError: The port cannot be opened, for another reason.
    """

    def __init__(
        self, listener: socket.socket, port: int, serve: Handler, connections: int = CONNECTIONS
    ) -> None:
        if connections < 1:
            raise UsageError(f"connections must be at least 1, not {connections}")
        self.port = port
        self.error: Exception | None = None
        """The error of the last failed connection."""
        self._listener: socket.socket | None = None
        self._thread = threading.Thread()
        self._serve = serve
        self._max_connections = connections
        self._counts = ForwardingCounts()
        self._connections: set[socket.socket] = set()
        self._closed = False
        self._condition = threading.Condition()
        self.move(listener)
        disown_in_forks(self)

    @property
    def counts(self) -> ForwardingCounts:
        """The numbers of connections so far."""
        with self._condition:
            return replace(self._counts, active=len(self._connections))

    @property
    def closed(self) -> bool:
        """Whether the forward was closed."""
        return self._closed

    def move(self, listener: socket.socket) -> None:
        """Reopen the port in another network namespace of the same sandbox.

        A sandbox that was frozen continues in new namespaces: see `SupportsFork.freeze`.

        Args:
            listener: A new socket of the other network. Errors are those of the constructor.
        """
        try:
            _listen(listener, self.port, self._max_connections)
        except BaseException:
            listener.close()
            raise
        self._replace_listener(listener)
        self._wait()
        self._thread = threading.Thread(
            target=self._accept_all,
            args=(listener,),
            name=f"intercode-forward-{self.port}",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Close the port and all its connections. Idempotent."""
        self.hang_up()
        self._wait()

    def hang_up(self) -> None:
        """Start closing the port and all its connections, without waiting for the threads."""
        self._closed = True
        self._replace_listener(None)

    def _replace_listener(self, listener: socket.socket | None) -> None:
        """Replace the listening socket, or remove it if `listener` is None; end all connections."""
        with self._condition:
            previous_listener, self._listener = self._listener, listener
            for open_socket in (
                *self._connections,
                *([previous_listener] if previous_listener else []),
            ):
                with suppress(OSError):  # the peer has already disconnected
                    open_socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that uses the socket
            self._condition.notify_all()

    def _wait(self) -> None:
        """Wait for the end of the thread that accepts connections."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def disown(self) -> None:
        """Close the inherited sockets in a fork of this process: see `SupportsDisown`.

        A fork has no thread that could serve the connections.
        """
        self._condition = threading.Condition()
        self._closed = True
        for open_socket in (*self._connections, *([self._listener] if self._listener else [])):
            open_socket.close()

    def _accept_all(self, listener: socket.socket) -> None:
        with listener:
            while self._wait_for_room(listener):
                try:
                    connection, _ = listener.accept()
                except OSError as error:
                    if error.errno in _SCARCITY_ERRORS:
                        self._pause(listener)
                    elif error.errno != errno.ECONNABORTED:
                        return  # the listener was closed
                    continue
                self._begin(connection, listener)

    def _wait_for_room(self, listener: socket.socket) -> bool:
        """Wait for a free connection slot; return False if the listener was closed."""
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._listener is not listener or len(self._connections) < self._max_connections
                )
            )
            return self._listener is listener

    def _pause(self, listener: socket.socket) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._listener is not listener, _SCARCITY_SECONDS)

    def _begin(self, connection: socket.socket, listener: socket.socket) -> None:
        with self._condition:
            if self._listener is not listener:
                connection.close()
                return
            self._counts.accepted += 1
            self._connections.add(connection)
        thread = threading.Thread(target=self._handle, args=(connection,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no further thread can be started
            self._end(connection, error)

    def _handle(self, connection: socket.socket) -> None:
        failure: Exception | None = None
        try:
            self._serve(connection)
        except Exception as error:  # noqa: BLE001 - a handler may raise any: it is kept
            failure = error
        finally:
            self._end(connection, failure)

    def _end(self, connection: socket.socket, failure: Exception | None) -> None:
        with self._condition:
            self._connections.discard(connection)
            if failure is not None and not self._closed:
                self._counts.failed += 1
                self.error = failure
            self._condition.notify_all()
        connection.close()


@runtime_checkable
class SupportsForwarding(Protocol):
    """Optional ability of a sandbox: to forward ports."""

    def forward(
        self,
        port: int,
        to: str | Handler,
        *,
        connections: int = CONNECTIONS,
        idle: float = IDLE_SECONDS,
    ) -> Forward:
        """Forward a port of the sandbox's loopback to one address, or function, of the host.

        Programs of the sandbox connect to ``127.0.0.1:port``, and reach no other address by the
        forward. The forward survives `kill` and the end of every process in the sandbox, and ends
        with the sandbox. No snapshot contains the forward, because a snapshot has files only.

        Args:
            port: From 1 to 65535; below 1024 only if this process has the privilege.
            to: ``host:port``, the absolute path of a Unix socket, or a function that a new thread
                calls with the socket of each connection.
            connections: Maximum of simultaneous connections, at least 1. Further connections wait.
            idle: Seconds without a byte after which a connection to an address is closed.

        Raises:
            UsageError: The port or the address is invalid, or the sandbox shares the machine's
                network.
            CausedInsideError: The port is in use inside the sandbox.
            SandboxError: The sandbox failed.
        """


def _listen(listener: socket.socket, port: int, max_connections: int) -> None:
    # Otherwise lingering connections of a closed forward would keep the same port in use.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # The buffers are limited, because they count as memory of this process, not of the sandbox.
    # Accepted sockets inherit the sizes of the listener's buffers.
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, _CHUNK)
    set_no_delay(listener)
    listener.settimeout(None)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(max(max_connections, CONNECTIONS))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CausedInsideError(f"port {port} of the sandbox is in use there") from error
        if error.errno == errno.EACCES:
            raise UsageError(
                f"port {port} of the sandbox is not permitted: choose a port from 1024 on"
            ) from error
        raise SandboxError(f"port {port} of the sandbox cannot be forwarded: {error}") from error


def checked_port(port: int) -> int:
    """Validate and return a port's number.

    Raises:
        UsageError: The port is not from 1 to 65535.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
        raise UsageError(f"a port must be a whole number from 1 to 65535, not {port!r}")
    return port


def adopt_socket(fds: list[int]) -> socket.socket:
    """Return the socket that the sandbox's process 1 has passed, after validating it.

    The only valid message is one descriptor of a new TCP socket of the sandbox's own network. In
    case of an error the descriptors are closed.

    Args:
        fds: The descriptors received from process 1.

    Raises:
        UsageError: The socket belongs to this machine's network, which the sandbox shares.
        SandboxError: The descriptors are not one new TCP socket.
    """
    if len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise SandboxError(f"the sandbox passed {len(fds)} descriptors for a socket")
    try:
        passed_socket = socket.socket(fileno=fds[0])
    except OSError as error:
        os.close(fds[0])
        raise SandboxError(
            f"the sandbox passed a descriptor that is not a socket: {error}"
        ) from error
    try:
        traits = [
            passed_socket.getsockopt(socket.SOL_SOCKET, option)
            for option in (_SO_DOMAIN, socket.SO_TYPE)
        ]
        traits += [passed_socket.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL)]
        if traits != [socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP]:
            raise SandboxError(f"the sandbox passed a socket that is not TCP: {traits}")
        if passed_socket.getsockname() != ("0.0.0.0", 0):
            raise SandboxError(f"the sandbox passed a socket in use: {passed_socket.getsockname()}")
        if _network_cookie(passed_socket) == _machine_network_cookie():
            raise UsageError(
                "this sandbox shares the machine's network (network=True): a forward needs a "
                "sandbox with a separate network"
            )
    except OSError as error:
        passed_socket.close()
        raise SandboxError(f"the sandbox's socket cannot be used: {error}") from error
    except BaseException:
        passed_socket.close()
        raise
    return passed_socket


def _network_cookie(sock: socket.socket) -> int:
    cookie: int = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0]
    return cookie


def _machine_network_cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return _network_cookie(probe)


def handler(target: str | Handler, idle_seconds: float = IDLE_SECONDS) -> Handler:
    """Return a handler for the connections of a forward to `target`.

    Args:
        target: A handler, which is returned unchanged. Or ``host:port``, or the absolute path of a
            Unix socket: the returned handler relays each connection to this address.
        idle_seconds: See `IDLE_SECONDS`.

    Raises:
        UsageError: `target` is none of these.
    """
    if callable(target):
        return target
    if isinstance(target, str) and target.startswith("/"):
        return partial(_relay, lambda: _connect_unix(target), idle_seconds)
    host, port = address(target)
    return partial(_relay, partial(_connect, host, port), idle_seconds)


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of an address ``host:port``. An IPv6 address has brackets.

    Raises:
        UsageError: The text is not an address.
    """
    host, _, port = str(text).rpartition(":")
    bare_host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if (
        not bare_host
        or (":" in host and bare_host == host)
        or not (port.isascii() and port.isdigit())
    ):
        raise UsageError(f"not an address such as 127.0.0.1:8000 or [::1]:8000: {text!r}")
    return bare_host, checked_port(int(port))


def set_no_delay(sock: socket.socket) -> None:
    """Make a socket send small parts of a stream at once, by the option TCP_NODELAY.

    Without the option each part, such as a model's next word, waits until the peer acknowledges the
    previous part. The peer delays an acknowledgement by up to 40 ms. Sockets that a listening
    socket accepts inherit the option.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    set_no_delay(connection)
    return connection


def _connect_unix(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def _relay(
    connect: Callable[[], socket.socket], idle_seconds: float, connection: socket.socket
) -> None:
    with connect() as upstream:
        join(connection, upstream, idle_seconds)


def join(
    client: socket.socket, upstream: socket.socket, idle_seconds: float = IDLE_SECONDS
) -> None:
    """Relay data between two sockets in both directions, until both directions have ended.

    At most 64 KiB are buffered for each direction. A peer that does not read therefore makes the
    other peer wait.

    Args:
        client: A connected socket.
        upstream: The other connected socket.
        idle_seconds: Seconds without a byte after which the function returns.
    """
    for endpoint in (client, upstream):
        endpoint.setblocking(False)
    flows = [_RelayFlow(client, upstream), _RelayFlow(upstream, client)]
    with suppress(ConnectionError):  # a peer has disconnected, which ends both directions
        while any(not flow.done for flow in flows):
            poll = select.poll()
            for sock in (client, upstream):
                if event_mask := flows[0].events(sock) | flows[1].events(sock):
                    poll.register(sock, event_mask)
            if not poll.poll(idle_seconds * 1000):
                return
            for flow in flows:
                flow.move()


@dataclass(slots=True)
class _RelayFlow:
    """One direction of a relayed connection: data from `source` to `target`."""

    source: socket.socket
    target: socket.socket
    pending_data: bytes = b""
    """Received data that is not yet sent."""
    ended: bool = False
    """Whether the source has sent its last data."""
    done: bool = False
    """Whether all data, and the end of the stream, were sent to the target."""

    def events(self, sock: socket.socket) -> int:
        """Return the events of `select.poll` that this direction waits for at a socket."""
        if sock is self.source and not self.pending_data and not self.ended:
            return select.POLLIN
        return select.POLLOUT if sock is self.target and self.pending_data else 0

    def move(self) -> None:
        """Receive data from the source, and send data to the target, without waiting."""
        with suppress(BlockingIOError):
            if not self.pending_data and not self.ended:
                self.pending_data = self.source.recv(_CHUNK)
                self.ended = not self.pending_data
            if self.pending_data:
                self.pending_data = self.pending_data[self.target.send(self.pending_data) :]
        if self.ended and not self.pending_data and not self.done:
            self.done = True
            with suppress(OSError):  # the peer has disconnected
                self.target.shutdown(socket.SHUT_WR)
