"""The server of one process: whom it admits, and how it ends."""

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

from intercode.admission import Admission
from intercode.errors import CapacityError
from intercode.guard import Guard
from intercode_integrations.serve import wire
from intercode_integrations.serve.catalog import Offer
from intercode_integrations.serve.http import Front, refusal, response
from intercode_integrations.serve.log import log
from intercode_integrations.serve.metrics import Counts
from intercode_integrations.serve.routes import Routes
from intercode_integrations.serve.session import CLOSING, Ended, Session, Terms

_TRY_AGAIN_LATER = 1013
_OPENING = 30.0
"""Seconds for a client that was admitted to be answered."""
_ENDING = 10.0
"""Seconds for sessions to free what they have, once the server ends."""
_STARTS = 16
"""Sandboxes of an environment that start at a time."""


class Server:
    """Serves environments.

    Args:
        offers: The environments; the first one is also that of addresses that name none.
        terms: The terms on which clients have sessions.
        guard: Refuses requests.
        counts: The numbers to keep.
        admission: Has the connections that have not shown the token yet.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        terms: Terms,
        guard: Guard,
        counts: Counts,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission or Admission()
        self._routes = Routes({offer.name: offer for offer in offers})
        self._terms, self._guard, self._counts = terms, guard, counts
        self._sessions: dict[Session, asyncio.Task[Any]] = {}
        """The open ones, each with the task that serves it."""
        self._starts = {offer: asyncio.Semaphore(_STARTS) for offer in offers}
        self._freed = asyncio.Event()
        self._draining = False
        self._stopped = asyncio.Event()

    async def run(
        self,
        listener: socket.socket,
        ending: Iterable[signal.Signals],
        alive: int | None = None,
    ) -> None:
        """Serve until a signal ends it.

        The first one lets the episodes that run end, for a while; the second one ends them.

        Args:
            listener: Where clients connect.
            ending: The signals.
            alive: A descriptor; once it is readable, the server ends at once.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, what: log("error", error=str(what)))
        for number in ending:
            loop.add_signal_handler(number, self.end)
        if alive is not None:
            loop.add_reader(alive, self._stopped.set)
        quiet = logging.getLogger("intercode_integrations.serve.connections")
        quiet.setLevel(logging.CRITICAL)  # what clients do wrong is counted
        # asyncio warns of each message to a client that has gone: pings would fill the log.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        async with serve(
            self._handle,
            sock=listener,
            create_connection=cast(
                "type[ServerConnection]", partial(Front, admission=self._admission)
            ),
            process_request=self._request,
            compression=None,
            max_size=self._terms.max_message,
            max_queue=4,
            open_timeout=_OPENING,
            ping_timeout=None,  # a client may be busy; of a dead one the kernel tells
            close_timeout=CLOSING,
            logger=quiet,
            server_header=None,
        ):
            self._counts.add("serving")
            await self._stopped.wait()
            for session in self._sessions:
                session.stop()
            if self._sessions:
                await asyncio.wait([*self._sessions.values()], timeout=_ENDING)

    def end(self) -> None:
        """Begin to end, or end at once if it has begun."""
        if self._draining:
            self._stopped.set()
            return
        self._draining = True
        log("draining", sessions=len(self._sessions))
        asyncio.get_running_loop().call_later(self._terms.drain, self._stopped.set)
        for session in self._sessions:
            session.drain()
        if not self._sessions:
            self._stopped.set()

    async def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a request; None: a session is to begin."""
        assert isinstance(connection, Front)
        path = unquote(request.path.partition("?")[0])
        words = path.strip("/").split("/")
        refused = self._guard.refusal(request.headers, free=path == "/health")
        if refused is not None:
            self._counts.add("forbidden")
            return refusal(*refused)
        if path != "/health":  # which needs no token
            connection.admit()
        is_session = words[-1] == "ws" and connection.method == "GET"
        if is_session and self._routes.offer(words) is not None:
            return None
        if path == "/health":
            return self._health()
        if path == "/metrics":
            text = self._counts.metrics(self._terms.max_sessions)
            return response(HTTPStatus.OK, text.encode(), "text/plain; version=0.0.4")
        return await self._routes.answer(connection.method, words, connection.body)

    def _health(self) -> Response:
        if self._draining:
            return response(HTTPStatus.SERVICE_UNAVAILABLE, wire.json({"status": "draining"}))
        return response(HTTPStatus.OK, wire.json({"status": "healthy"}))

    async def _handle(self, connection: ServerConnection) -> None:
        """Have a session with a client, or refuse it."""
        assert connection.request is not None  # it was answered
        path = unquote(connection.request.path.partition("?")[0])
        offer = self._routes.offer(path.strip("/").split("/"))
        assert offer is not None  # else it was refused
        if not await self._admitted():
            await self._refuse(connection)
            return
        session = Session(offer, self._terms, self._counts, self._starts[offer])
        self._sessions[session] = cast("asyncio.Task[Any]", asyncio.current_task())
        self._counts.add("opened")
        log("opened", session=session.id, env=offer.name, client=_name(connection))
        end = Ended("failed", 1011)
        try:
            end = await session.serve(connection)
        finally:
            del self._sessions[session]
            self._counts.add("sessions", -1)
            self._counts.add(f"ended {end.why}")
            log("ended", session=session.id, why=end.why)
            self._freed.set()
            if self._draining and not self._sessions:
                self._stopped.set()

    async def _admitted(self) -> bool:
        """Tell whether there is room for a session, which is taken then.

        A session of which the client has gone, and which is being freed, is waited for.
        """
        while not self._draining:
            if self._counts.admit(self._terms.max_sessions):
                return True
            if not any(session.closing for session in self._sessions):
                return False
            self._freed.clear()
            await self._freed.wait()
        return False

    async def _refuse(self, connection: ServerConnection) -> None:
        self._counts.add("refused")
        log("refused", client=_name(connection))
        most = self._terms.max_sessions
        why = "is ending" if self._draining else f"has all of its {most} sessions: try again later"
        said = wire.error("CAPACITY_REACHED", CapacityError(f"the server {why}"))
        self._counts.add("error CAPACITY_REACHED")
        with suppress(ConnectionClosed):
            await connection.send(said, text=True)
            await connection.close(_TRY_AGAIN_LATER)


def _name(connection: ServerConnection) -> str:
    """Name a client, for the log."""
    host, port, *_ = connection.remote_address or ("?", 0)
    return f"{host}:{port}"
