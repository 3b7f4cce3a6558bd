"""Connection to PostgreSQL, by the driver psycopg.

InterCode uses the engines' own drivers, not SQLAlchemy. A thin interpreter needs errors, types and
cancellation exactly as the engine gives them. An action goes to the server as one text, by the
simple query protocol, because an action may contain several statements. Rows arrive in chunks, so a
result without end never fills this process.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from intercode.databases.base import Row, SqlActionOutcome, StatementFailure, StatementResult
from intercode.databases.servers import driver
from intercode.databases.servers.session import (
    DatabaseConnection,
    DatabaseConnectionLoss,
    ResultRowBuffer,
    UnreachableDatabaseServer,
)
from intercode.errors import DatabaseError
from intercode.sql_identifiers import quote_identifier
from intercode_sandbox.base import Limits

psycopg = driver("PostgreSQL")
pq = psycopg.pq
Transformer = psycopg.adapt.Transformer

READ_ONLY = "25006"
_CONNECT_SECONDS = 10
_CHUNK = 4
"""The rows of a chunk. More rows would be faster, but a row may be as large as server memory."""
_CANCELLED = "57014"
_TIMEOUT_MESSAGE = "canceling statement due to statement timeout"
_LOSS_CODES = ("57P01", "57P02", "57P03", "57P05")
_REFUSAL_CODES = ("28", "3D", "42")
_CHANGE_TAGS = (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY")
_READ_TAGS = (b"SELECT", b"SHOW", b"EXPLAIN")
_ROWS = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.SINGLE_TUPLE, 12)  # 12: TUPLES_CHUNK, since 17
_COPIES = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH)
_HAS_CHUNKS = hasattr(pq.PGconn, "set_chunked_rows_mode") and pq.version() >= 170000
_TEXT_TYPES = (
    *("uuid", "inet", "cidr", "record", "int4range", "int8range", "numrange", "daterange"),
    *("tsrange", "tstzrange", "int4multirange", "int8multirange", "nummultirange"),
    *("datemultirange", "tsmultirange", "tstzmultirange"),
)
"""Types for which psycopg has special classes. Results have the server's text instead."""
_MAX_DEPTH = 64
"""Maximum levels of a JSON value. A deeper value stays text, because later code is recursive."""


class PostgreSQLConnection(DatabaseConnection):
    """A connection to PostgreSQL; see `session.DatabaseConnection`.

    Args:
        connect_args: The arguments of `psycopg.connect`.
        settings: Run-time parameters of the session, which ``DISCARD ALL`` restores.

    Raises:
        UnreachableServer: The server does not respond.
        DatabaseError: The server refuses the connection.
    """

    product = "PostgreSQL"

    def __init__(
        self, connect_args: Mapping[str, Any], settings: Mapping[str, object] | None = None
    ) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in (settings or {}).items())
        try:
            self._driver_connection = psycopg.connect(
                **{"connect_timeout": _CONNECT_SECONDS, **connect_args},
                autocommit=True,
                client_encoding="utf8",
                options=options,
                context=_adapters(),
            )
        except psycopg.OperationalError as error:
            if (error.sqlstate or "").startswith(_REFUSAL_CODES) or "authentication" in str(error):
                raise DatabaseError(f"the PostgreSQL server refuses: {error}") from None
            raise UnreachableDatabaseServer(str(error).strip()) from None
        self._pg: Any = self._driver_connection.pgconn
        self._has_only_reads = True
        self.pid: int = self._pg.backend_pid
        self.version: int = self._pg.server_version

    # --- for InterCode's statements ----------------------------------------------------------

    def with_literals(self, sql: str, arguments: Sequence[str]) -> str:
        """Return statements in which quoted texts replace each ``{}``."""
        return sql.format(*[quote_identifier(text, "'") for text in arguments])

    def insert(self, table: str, rows: Iterator[Row]) -> None:
        """Insert many rows into a table.

        Raises:
            DatabaseError: The server refuses the rows, or was lost.
        """
        try:
            with self._driver_connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            raise self.refusal(error) from None

    def ping(self) -> None:
        """Check the connection. Raises `DatabaseConnectionLoss` if it was lost."""
        self.run("")

    @property
    def read_only(self) -> bool:
        """Whether transactions start read-only. The server reports each change of this setting."""
        return bool(self._pg.parameter_status(b"default_transaction_read_only") == b"on")

    @property
    def has_only_reads(self) -> bool:
        """Whether the last action ran entirely in one read-only transaction."""
        return self._has_only_reads and self.read_only

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return bool(self._pg.transaction_status == pq.TransactionStatus.IDLE)

    def cancel(self) -> None:
        """Cancel the running statement, from any thread."""
        with suppress(psycopg.Error):  # the connection was lost, and its statement with it
            self._pg.get_cancel().cancel()

    def cut(self) -> None:
        """End the connection from another thread. The thread that reads from it gets an error."""
        with (
            suppress(OSError, psycopg.Error),  # the connection is closed already
            socket.socket(fileno=os.dup(self._pg.socket)) as wire,
        ):
            wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._driver_connection.close()

    # --- for an agent's actions --------------------------------------------------------------

    def run(
        self, text: str, max_rows: int | None = None, limits: Limits | None = None
    ) -> SqlActionOutcome:
        """Run an action; see `session.DatabaseConnection.run`.

        Raises:
            ConnectionLoss: The connection was lost.
        """
        results: list[StatementResult] = []
        failure: StatementFailure | None = None
        pending_rows: _PostgreSQLRowCollector | None = None
        row_buffer: ResultRowBuffer | None = None
        self._has_only_reads = True
        try:
            self._send(text)
            while (
                result := self._driver_connection.wait(psycopg.generators.fetch(self._pg))
            ) is not None:
                status = result.status
                self._note(result.command_status or b"")
                if status == pq.ExecStatus.FATAL_ERROR:
                    failure = _failure(result)
                elif status in _COPIES:
                    self._copy(status)
                elif status in _ROWS:
                    if pending_rows is None:
                        row_buffer = ResultRowBuffer(max_rows, limits, row_buffer)
                        pending_rows = _PostgreSQLRowCollector(result, row_buffer)
                    pending_rows.add(Transformer(self._driver_connection), result)
                    if status == pq.ExecStatus.TUPLES_OK:
                        results.append(pending_rows.result())
                        pending_rows = None
                elif status == pq.ExecStatus.COMMAND_OK:
                    results.append(StatementResult(affected_rows=_affected_rows(result)))
        except psycopg.Error as error:
            raise DatabaseConnectionLoss(_first_line(error)) from None
        if self._pg.status != pq.ConnStatus.OK or (failure and failure.code in _LOSS_CODES):
            raise DatabaseConnectionLoss(failure.message if failure else "the connection is closed")
        timed_out = failure is not None and failure.message == _TIMEOUT_MESSAGE
        return SqlActionOutcome(tuple(results), failure, timed_out=timed_out)

    def _send(self, text: str) -> None:
        self._pg.send_query(text.encode())
        if _HAS_CHUNKS:
            self._pg.set_chunked_rows_mode(_CHUNK)
        else:
            self._pg.set_single_row_mode()
        while self._pg.flush():
            pass

    def _note(self, tag: bytes) -> None:
        # If one of the statements is a COMMIT, it ends the read-only transaction. A later statement
        # can then write, and restore all settings before InterCode checks them. Of the chunks of a
        # result, only the last has a tag (the name of the statement).
        if tag and not tag.startswith(_READ_TAGS):
            self._has_only_reads = False

    def _copy(self, status: int) -> None:
        """Handle a COPY statement: refuse input from the client, discard output to the client."""
        if status == pq.ExecStatus.COPY_OUT:
            while self._pg.get_copy_data(0)[0] > 0:
                pass
        else:
            self._pg.put_copy_end(b"there is no input to copy from")


class _PostgreSQLRowCollector:
    """A collector of the rows of one result, which arrive in chunks."""

    def __init__(self, result: Any, row_buffer: ResultRowBuffer) -> None:
        self._columns = tuple(
            (result.fname(i) or b"").decode("utf-8", "surrogateescape")
            for i in range(result.nfields)
        )
        self._row_buffer = row_buffer

    def add(self, transformer: Any, result: Any) -> None:
        """Add a chunk of rows."""
        if self._row_buffer.is_full:
            self._row_buffer.total += result.ntuples
            return
        self._row_buffer.extend(_load(transformer, result))

    def result(self) -> StatementResult:
        """Return the result, when all rows have arrived."""
        return StatementResult(self._columns, self._row_buffer.rows, self._row_buffer.total)


def _failure(result: Any) -> StatementFailure:
    """Return the failure with the text that the server's own client (psql) would show."""

    def field(name: str) -> str:
        value = result.error_field(getattr(pq.DiagnosticField, name))
        return (value or b"").decode("utf-8", "replace")

    message = field("MESSAGE_PRIMARY")
    for name, title in (("MESSAGE_DETAIL", "DETAIL"), ("MESSAGE_HINT", "HINT")):
        if detail := field(name):
            message += f"\n{title}:  {detail}"
    position = field("STATEMENT_POSITION")
    return StatementFailure(message, field("SQLSTATE"), int(position) - 1 if position else None)


def _affected_rows(result: Any) -> int | None:
    tag = result.command_status or b""
    return result.command_tuples if tag.startswith(_CHANGE_TAGS) else None


def _first_line(error: Exception) -> str:
    text = str(error).strip().removeprefix("consuming input failed: ")
    return text.partition("\n")[0] or "the connection is closed"


def _adapters() -> Any:
    """Return psycopg's map of converters from the server's values to Python's."""
    adapters = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in _TEXT_TYPES:
        adapters.register_loader(name, psycopg.types.string.TextLoader)
    psycopg.types.json.set_json_loads(_read_json, adapters)
    return adapters


def _read_json(text: str | bytes) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for value in level for child in _child_values(value)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def _child_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _load(transformer: Any, result: Any) -> list[Row]:
    """Return the rows of a chunk, as Python values."""
    transformer.set_pgresult(result)
    try:
        return list(transformer.load_rows(0, result.ntuples, tuple))
    except (psycopg.Error, ValueError, OverflowError):
        loaders = [
            transformer.get_loader(result.ftype(column), pq.Format.TEXT)
            for column in range(result.nfields)
        ]
        return [
            tuple(_cell(loader, result.get_value(row, i)) for i, loader in enumerate(loaders))
            for row in range(result.ntuples)
        ]


def _cell(loader: Any, value: bytes | None) -> Any:
    """Return a value; if Python has no such value (``infinity``, the year 4713 BC), its text."""
    if value is None:
        return None
    try:
        return loader.load(value)
    except (psycopg.Error, ValueError, OverflowError):
        return value.decode("utf-8", "surrogateescape")
