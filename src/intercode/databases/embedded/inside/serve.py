"""The loop of a worker: one request, one reply."""

from __future__ import annotations

import os
import socket
from typing import Any, Protocol

from intercode.databases.embedded.inside import files, wire
from intercode.databases.embedded.inside.results import Collector, Message

_REQUEST_BYTES = 1 << 30


class Database(Protocol):
    """What an engine's worker module provides."""

    def open(self, pristine: int, name: str, resume: bool, memory: int) -> bool:
        """Begin a session.

        Args:
            pristine: A descriptor of the pristine file, its own to keep.
            name: What the database is called.
            resume: Whether to go on with the session's own copy, if there is one.
            memory: Bytes that the engine may use.

        Returns:
            Whether it goes on with a copy.

        Raises:
            OSError: With the engine's words, if it cannot.
        """

    def close(self) -> None:
        """End the session and delete its copy."""

    def execute(self, sql: str, collector: Collector) -> Message:
        """Run an action; its outcome."""

    def state(self, collector: Collector) -> Message:
        """``[name, kind, [[column, type], …], rows]`` of all tables and views.

        Raises:
            OSError: With the engine's words, if it cannot, or the limits do not allow it.
        """


def serve(channel: socket.socket, database: Database) -> None:
    """A worker's main: serve until the other end closes."""
    os.umask(0o077)
    files.prepare()
    while True:
        try:
            request, fds = wire.receive(channel, _REQUEST_BYTES)
        except EOFError:
            return
        operation, limit, *arguments = wire.decode(request)
        reply = wire.encode(_answer(database, operation, arguments, fds))
        if len(reply) > limit:
            reply = wire.encode(_too_large(operation, limit))
        wire.send(channel, reply)


def _answer(database: Database, operation: str, arguments: list[Any], fds: list[int]) -> Message:
    """``[True, value]``, or ``[False, why not]``."""
    try:
        if operation == "open":
            return [True, database.open(fds[0], *arguments)]
        if operation == "execute":
            sql, *limits = arguments
            return [True, database.execute(sql, Collector(*limits))]
        if operation == "close":
            database.close()
            return [True, None]
        return [True, database.state(Collector(*arguments))]
    except OSError as error:
        return [False, str(error)]


def _too_large(operation: str, limit: int) -> Message:
    why = f"the result is larger than {limit:,} bytes"
    if operation == "execute":  # the agent's doing, as an endless column name is
        return [True, [[], [why, "", None], False, True]]
    return [False, why]
