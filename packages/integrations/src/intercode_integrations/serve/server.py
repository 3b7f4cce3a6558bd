"""The server of one process: it admits clients, serves their sessions, and shuts down."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from intercode.connection_admission import ConnectionQueue
from intercode.errors import CapacityError
from intercode.request_guard import RequestGuard
from intercode_integrations.serve import messages
from intercode_integrations.serve.catalog import ServedEnvironment
from intercode_integrations.serve.http import RequestConnection, refusal, response
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import ServerMetrics
from intercode_integrations.serve.routes import HttpRoutes
from intercode_integrations.serve.session import (
    CLOSE_SECONDS,
    ServerSession,
    SessionEnd,
    SessionLimits,
)

_TRY_AGAIN_LATER = 1013
_OPEN_SECONDS = 30.0
"""Maximum seconds until a client's handshake has its response."""
_END_SECONDS = 10.0
"""Maximum seconds in which sessions free their resources when the server ends."""
_MAX_STARTS = 16
"""Maximum number of sandboxes of an environment that start at the same time."""


class EnvironmentServer:
    """A server of environments, over WebSockets and HTTP.

    Args:
        entries: The environments. An address without a name denotes the first one.
        limits: The limits of client sessions.
        guard: A filter that refuses requests without the token or from foreign web pages.
        metrics: The metrics to update.
        admission: The quota of connections that have not shown the token yet.
    """

    def __init__(
        self,
        entries: Sequence[ServedEnvironment],
        limits: SessionLimits,
        guard: RequestGuard,
        metrics: ServerMetrics,
        admission: ConnectionQueue | None = None,
    ) -> None:
        self._admission = admission or ConnectionQueue()
        self._routes = HttpRoutes({entry.name: entry for entry in entries})
        self._limits, self._guard, self._metrics = limits, guard, metrics
        self._sessions: dict[ServerSession, asyncio.Task[Any]] = {}
        """Each open session → the asyncio task that serves the session."""
        self._starts = {entry: asyncio.Semaphore(_MAX_STARTS) for entry in entries}
        self._freed_event = asyncio.Event()
        self._draining = False
        self._stop_event = asyncio.Event()

    async def run(
        self,
        listener: socket.socket,
        stop_signals: Iterable[signal.Signals],
        parent_death_fd: int | None = None,
    ) -> None:
        """Serve clients until a signal arrives.

        After the first signal, running episodes may continue for `SessionLimits.drain` seconds. A
        second signal ends them at once.

        Args:
            listener: The socket that clients connect to.
            stop_signals: The signals that end the server.
            parent_death_fd: A descriptor that becomes readable when the parent process dies. The
                server then ends at once.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: log("error", error=str(context)))
        for signal_number in stop_signals:
            loop.add_signal_handler(signal_number, self.end)
        if parent_death_fd is not None:
            loop.add_reader(parent_death_fd, self._stop_event.set)
        connection_logger = logging.getLogger("intercode_integrations.serve.connections")
        # websockets logs a traceback for each malformed request, and asyncio logs warnings about
        # messages to clients that have gone. Clients could fill the log with such entries.
        connection_logger.setLevel(logging.CRITICAL)
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        async with serve(
            self._handle,
            sock=listener,
            create_connection=cast(
                "type[ServerConnection]", partial(RequestConnection, admission=self._admission)
            ),
            process_request=self._request,
            compression=None,
            max_size=self._limits.max_message,
            max_queue=4,
            open_timeout=_OPEN_SECONDS,
            ping_timeout=None,  # a busy client may not answer pings; the kernel finds dead clients
            close_timeout=CLOSE_SECONDS,
            logger=connection_logger,
            server_header=None,
        ):
            self._metrics.add("serving")
            await self._stop_event.wait()
            for session in self._sessions:
                session.stop()
            if self._sessions:
                await asyncio.wait([*self._sessions.values()], timeout=_END_SECONDS)

    def end(self) -> None:
        """Start the shutdown of the server; a second call ends the server at once."""
        if self._draining:
            self._stop_event.set()
            return
        self._draining = True
        log("draining", sessions=len(self._sessions))
        asyncio.get_running_loop().call_later(self._limits.drain, self._stop_event.set)
        for session in self._sessions:
            session.drain()
        if not self._sessions:
            self._stop_event.set()

    async def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer an HTTP request; return None for a WebSocket handshake, which starts a session."""
        assert isinstance(connection, RequestConnection)
        path = unquote(request.path.partition("?")[0])
        path_parts = path.strip("/").split("/")
        denial = self._guard.refusal(request.headers, is_token_free=path == "/health")
        if denial is not None:
            self._metrics.add("forbidden")
            return refusal(*denial)
        if path != "/health":  # health checks need no token
            connection.admit()
        is_session = path_parts[-1] == "ws" and connection.method == "GET"
        if is_session and self._routes.find_entry(path_parts) is not None:
            return None
        if path == "/health":
            return self._health()
        if path == "/metrics":
            metrics_text = self._metrics.metrics(self._limits.max_sessions)
            return response(HTTPStatus.OK, metrics_text.encode(), "text/plain; version=0.0.4")
        return await self._routes.answer(connection.method, path_parts, connection.body)

    def _health(self) -> Response:
        if self._draining:
            return response(HTTPStatus.SERVICE_UNAVAILABLE, messages.json({"status": "draining"}))
        return response(HTTPStatus.OK, messages.json({"status": "healthy"}))

    async def _handle(self, connection: ServerConnection) -> None:
        """Serve a session over a new WebSocket, or refuse the client if no session is free."""
        assert connection.request is not None  # the handshake has been answered
        path = unquote(connection.request.path.partition("?")[0])
        entry = self._routes.find_entry(path.strip("/").split("/"))
        assert entry is not None  # `_request` has refused unknown environments
        if not await self._admit_session():
            await self._refuse(connection)
            return
        session = ServerSession(entry, self._limits, self._metrics, self._starts[entry])
        self._sessions[session] = cast("asyncio.Task[Any]", asyncio.current_task())
        self._metrics.add("opened")
        log("opened", session=session.id, env=entry.name, client=_name(connection))
        session_end = SessionEnd("failed", 1011)
        try:
            session_end = await session.serve(connection)
        finally:
            del self._sessions[session]
            self._metrics.add("sessions", -1)
            self._metrics.add(f"ended {session_end.reason}")
            log("ended", session=session.id, why=session_end.reason)
            self._freed_event.set()
            if self._draining and not self._sessions:
                self._stop_event.set()

    async def _admit_session(self) -> bool:
        """Count a new session if the maximum permits one; return whether it may open.

        If the maximum is reached, the method waits for any session that is closing already.
        """
        while not self._draining:
            if self._metrics.admit(self._limits.max_sessions):
                return True
            if not any(session.closing for session in self._sessions):
                return False
            self._freed_event.clear()
            await self._freed_event.wait()
        return False

    async def _refuse(self, connection: ServerConnection) -> None:
        self._metrics.add("refused")
        log("refused", client=_name(connection))
        max_sessions = self._limits.max_sessions
        reason = (
            "is ending"
            if self._draining
            else f"has all of its {max_sessions} sessions: try again later"
        )
        message = messages.error("CAPACITY_REACHED", CapacityError(f"the server {reason}"))
        self._metrics.add("error CAPACITY_REACHED")
        with suppress(ConnectionClosed):
            await connection.send(message, text=True)
            await connection.close(_TRY_AGAIN_LATER)


def _name(connection: ServerConnection) -> str:
    """Return the address of a client, for the log."""
    host, port, *_ = connection.remote_address or ("?", 0)
    return f"{host}:{port}"
