"""One connection to PostgreSQL, over psycopg.

The engines' own drivers are used, not SQLAlchemy: one thin interpreter needs errors, types and
cancellation exactly as the engine gives them. An action goes to the server as it is, over the
simple query protocol, for it may hold several statements; rows come in chunks, so that a result
without end never fills this process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from intercode.databases.base import Failure, Outcome, Result, Row
from intercode.databases.servers.kept_rows import Keeper
from intercode.databases.servers.postgresql_values import adapters, load
from intercode.databases.servers.private_postgresql import driver
from intercode.databases.servers.session import ConnectionLost, Unreachable
from intercode.errors import DatabaseError
from intercode.sandbox.base import Limits

psycopg = driver()
pq = psycopg.pq
Transformer = psycopg.adapt.Transformer

READ_ONLY = "25006"
_CONNECT_SECONDS = 10
_CHUNK = 4
"""Rows read at once: more would be faster, but each may be as large as the server's memory."""
_CANCELLED = "57014"
_TIMED_OUT = "canceling statement due to statement timeout"
_GONE = ("57P01", "57P02", "57P03", "57P05")
_REFUSED = ("28", "3D", "42")
_CHANGING = (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY")
_READING = (b"SELECT", b"SHOW", b"EXPLAIN")


class PostgreSQLConnection:
    """A connection.

    Args:
        connect_args: What `psycopg.connect` takes.
        settings: Run-time parameters, which `reset` goes back to.

    Raises:
        Unreachable: The server does not answer.
        DatabaseError: It refuses.
    """

    def __init__(
        self, connect_args: Mapping[str, Any], settings: Mapping[str, object] | None = None
    ) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in (settings or {}).items())
        try:
            self._raw = psycopg.connect(
                **{"connect_timeout": _CONNECT_SECONDS, **connect_args},
                autocommit=True,
                client_encoding="utf8",
                options=options,
                context=adapters(),
            )
        except psycopg.OperationalError as error:
            if (error.sqlstate or "").startswith(_REFUSED) or "authentication" in str(error):
                raise DatabaseError(f"the PostgreSQL server refuses: {error}") from None
            raise Unreachable(str(error).strip()) from None
        self._pg: Any = self._raw.pgconn
        self._only_reads = True
        self.pid: int = self._pg.backend_pid
        self.version: int = self._pg.server_version

    # --- for ourselves -----------------------------------------------------------------------

    def query(self, sql: str, *arguments: str) -> list[Row]:
        """The rows of the last of some statements, for statements of our own.

        Args:
            sql: With ``{}`` where a literal goes.
            arguments: The literals.

        Raises:
            ConnectionLost: The connection is gone.
            DatabaseError: A statement failed.
        """
        outcome = self.run(sql.format(*map(_literal, arguments)) if arguments else sql)
        if outcome.failure is not None:
            raise DatabaseError(f"the PostgreSQL server says: {outcome.failure.message}")
        return list(outcome.results[-1].rows) if outcome.results else []

    def insert(self, table: str, rows: Iterator[Row]) -> None:
        """Insert many rows.

        Raises:
            DatabaseError: The server refuses them, or was lost.
        """
        try:
            with self._raw.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            raise DatabaseError(f"the PostgreSQL server says: {error}") from None

    def ping(self) -> None:
        """Raise `ConnectionLost` if the connection is gone."""
        self.run("")

    @property
    def read_only(self) -> bool:
        """Whether transactions begin read-only: the server reports each change of that."""
        return bool(self._pg.parameter_status(b"default_transaction_read_only") == b"on")

    @property
    def only_reads(self) -> bool:
        """Whether the last action only read: all of it in one read-only transaction."""
        return self._only_reads and self.read_only

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return bool(self._pg.transaction_status == pq.TransactionStatus.IDLE)

    def cancel(self) -> None:
        """Have the server cancel what runs; from any thread."""
        with suppress(psycopg.Error):  # it is gone, and so is what ran
            self._pg.get_cancel().cancel()

    def cut(self) -> None:
        """End the connection from another thread, so that who reads from it wakes up."""
        with (
            suppress(OSError, psycopg.Error),  # it is closed
            socket.socket(fileno=os.dup(self._pg.socket)) as wire,
        ):
            wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it. Idempotent."""
        self._raw.close()

    # --- for an agent ------------------------------------------------------------------------

    def run(self, text: str, max_rows: int | None = None, limits: Limits | None = None) -> Outcome:
        """Run an action; all rows are kept unless it is said how many.

        Raises:
            ConnectionLost: The connection is gone.
        """
        results: list[Result] = []
        failure: Failure | None = None
        kept: Any = None
        self._only_reads = True
        try:
            self._send(text)
            while (result := self._raw.wait(psycopg.generators.fetch(self._pg))) is not None:
                status = result.status
                self._note(result.command_status or b"")
                if status == pq.ExecStatus.FATAL_ERROR:
                    failure = _failure(result)
                elif status in _COPIES:
                    self._copy(status)
                elif status in _ROWS:
                    kept = kept or _Rows(result, max_rows, limits)
                    kept.add(Transformer(self._raw), result)
                    if status == pq.ExecStatus.TUPLES_OK:
                        results.append(kept.result())
                        kept = None
                elif status == pq.ExecStatus.COMMAND_OK:
                    results.append(Result(changed=_changed(result)))
        except psycopg.Error as error:
            raise ConnectionLost(_first_line(error)) from None
        if self._pg.status != pq.ConnStatus.OK or (failure and failure.code in _GONE):
            raise ConnectionLost(failure.message if failure else "the connection is closed")
        timed_out = failure is not None and failure.message == _TIMED_OUT
        return Outcome(tuple(results), failure, timed_out=timed_out)

    def _send(self, text: str) -> None:
        self._pg.send_query(text.encode())
        if _IN_CHUNKS:
            self._pg.set_chunked_rows_mode(_CHUNK)
        else:
            self._pg.set_single_row_mode()
        while self._pg.flush():
            pass

    def _note(self, tag: bytes) -> None:
        # A COMMIT among the statements ends the read-only transaction; what comes after it can
        # write, and have all settings as they were before anybody looks. Of the chunks of a
        # result, only the last has a tag.
        if tag and not tag.startswith(_READING):
            self._only_reads = False

    def _copy(self, status: int) -> None:
        """A ``COPY`` from us fails, for we have nothing; one to us is read and dropped."""
        if status == pq.ExecStatus.COPY_OUT:
            while self._pg.get_copy_data(0)[0] > 0:
                pass
        else:
            self._pg.put_copy_end(b"there is no input to copy from")


class _Rows:
    """The rows of one result, as they come."""

    def __init__(self, result: Any, max_rows: int | None, limits: Limits | None) -> None:
        self._columns = tuple(
            (result.fname(i) or b"").decode("utf-8", "surrogateescape")
            for i in range(result.nfields)
        )
        unlimited = max_rows is None or limits is None
        self._keeper = Keeper(None if unlimited else max_rows, limits)

    def add(self, transformer: Any, result: Any) -> None:
        """A chunk of them."""
        if self._keeper.full:
            self._keeper.total += result.ntuples
            return
        self._keeper.extend(load(transformer, result))

    def result(self) -> Result:
        """When all have come."""
        return Result(self._columns, self._keeper.kept, self._keeper.total)


_ROWS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE, 12)  # 12: TUPLES_CHUNK, since 17
_COPIES = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH)
_IN_CHUNKS = hasattr(pq.PGconn, "set_chunked_rows_mode") and pq.version() >= 170000


def _failure(result: Any) -> Failure:
    """An error in the server's words, as its own client shows them."""

    def field(name: str) -> str:
        value = result.error_field(getattr(pq.DiagnosticField, name))
        return (value or b"").decode("utf-8", "replace")

    message = field("MESSAGE_PRIMARY")
    for name, title in (("MESSAGE_DETAIL", "DETAIL"), ("MESSAGE_HINT", "HINT")):
        if said := field(name):
            message += f"\n{title}:  {said}"
    position = field("STATEMENT_POSITION")
    return Failure(message, field("SQLSTATE"), int(position) - 1 if position else None)


def _changed(result: Any) -> int | None:
    tag = result.command_status or b""
    return result.command_tuples if tag.startswith(_CHANGING) else None


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    text = str(error).strip().removeprefix("consuming input failed: ")
    return text.partition("\n")[0] or "the connection is closed"
