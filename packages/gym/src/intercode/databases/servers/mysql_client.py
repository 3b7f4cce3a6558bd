"""Connection to MySQL or MariaDB, by the driver PyMySQL.

InterCode uses the engines' own drivers, not SQLAlchemy. A thin interpreter needs errors, types and
cancellation exactly as the engine gives them.

PyMySQL connects and sends the query, but `MySQLQueryResponse` reads the response. Rows are read as
they arrive, so a result without end never fills this process. PyMySQL's own reader, including its
``SSCursor``, needs 1.1 to 2.5 times the processor time. That reader also decodes every row that is
only counted, and fails on text that is not UTF-8. MySQL's text protocol is stable since version
4.1. A packet has a length, a number and a body. A result is the count of its columns, their
definitions, and its rows.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, BinaryIO

from intercode.databases.base import Row, SqlActionOutcome, StatementFailure, StatementResult
from intercode.databases.servers import driver
from intercode.databases.servers.session import (
    DatabaseConnection,
    DatabaseConnectionLoss,
    ResultRowBuffer,
    UnreachableDatabaseServer,
)
from intercode.errors import DatabaseError, UsageError
from intercode_sandbox.base import Limits

pymysql = driver("MySQL")
CLIENT = pymysql.constants.CLIENT

_CONNECT_SECONDS = 10.0
_QUERY, _RESET_CONNECTION = 0x03, 0x1F
_LOSS_CODES = {1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2014, 2055, 3169, 4031}
"""Error codes of a lost connection: the server shuts down, has ended it, or misses packets."""
_UNREACHABLE_CODES = {1040, 1053, 2002, 2003, 2006, 2013}
_TIMEOUT_CODES = {1969, 3024}
_EMPTY_RESULT = StatementResult(affected_rows=0)
_EMPTY_QUERY_CODE = 1065
_GAP = re.compile(r"(?:;|\A)\s*;\s*[^\s;]")
"""An empty statement before another statement. The server stops at the empty statement."""
_COMMENT = r"(?:--(?=\s)[^\n]*|\#[^\n]*|/\*(?!M?!)(?:(?!\*/).)*\*/)"
_ENDS_IN_COMMENT = re.compile(rf"(?:;|\A)\s*(?:{_COMMENT}\s*)+\Z", re.DOTALL)
READ_ONLY = "1792"
_OK, _NULL, _END, _ERROR = 0x00, 0xFB, 0xFE, 0xFF
_MAX_PACKET_BYTES = 0xFFFFFF
_MORE_RESULTS = 0x0008
_BINARY = 63
_FIELD = pymysql.constants.FIELD_TYPE
_TEXT_FIELDS = {
    *(_FIELD.BIT, _FIELD.BLOB, _FIELD.LONG_BLOB, _FIELD.MEDIUM_BLOB, _FIELD.TINY_BLOB),
    *(_FIELD.STRING, _FIELD.VAR_STRING, _FIELD.VARCHAR, _FIELD.GEOMETRY),
}
_INTEGER_FIELDS = {
    _FIELD.TINY,
    _FIELD.SHORT,
    _FIELD.LONG,
    _FIELD.LONGLONG,
    _FIELD.INT24,
    _FIELD.YEAR,
}
_FLOAT_FIELDS = {_FIELD.FLOAT, _FIELD.DOUBLE}

Decode = Callable[[bytes], Any]


class MySQLConnection(DatabaseConnection):
    """A connection to MySQL or MariaDB; see `session.DatabaseConnection`.

    Attributes:
        thread: The number of the connection on the server, unique until the server is restarted.
        user: The account of the connection.
        connect_time: The time at which the connection was made, by `time.monotonic`.
        is_mariadb: Whether the server is MariaDB, not MySQL.

    Args:
        connect_args: The arguments of `pymysql.connect`.

    Raises:
        UnreachableServer: The server does not respond.
        DatabaseError: The server refuses the connection.
        UsageError: The driver cannot connect, for instance without the package ``cryptography``.
    """

    product = "MySQL"

    def __init__(self, connect_args: Mapping[str, Any]) -> None:
        _check_socket(connect_args.get("unix_socket"))
        try:
            self._driver_connection = pymysql.connect(
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.MULTI_STATEMENTS,
                connect_timeout=_CONNECT_SECONDS,
                local_infile=False,
                **connect_args,
            )
        except pymysql.err.OperationalError as error:
            code, message = _code_and_message(error)
            if code in _UNREACHABLE_CODES:
                raise UnreachableDatabaseServer(message) from None
            raise DatabaseError(f"the MySQL server refuses: {message}") from None
        except (pymysql.err.Error, RuntimeError) as error:  # the package `cryptography` is missing
            raise UsageError(f"cannot connect to the MySQL server: {error}") from None
        self.thread: int = self._driver_connection.thread_id()
        self.user = str(connect_args["user"])
        self.connect_time = time.monotonic()
        self.is_mariadb = "MariaDB" in self._driver_connection.get_server_info()

    # --- for InterCode's statements ----------------------------------------------------------

    def with_literals(self, sql: str, arguments: Sequence[Any]) -> str:
        """Return statements in which quoted arguments replace each ``%s``."""
        return str(self._driver_connection.cursor().mogrify(sql, arguments))

    def insert(self, sql: str, rows: list[Row]) -> None:
        """Insert many rows.

        Args:
            sql: A statement that ends in ``VALUES (%s, …)``.
            rows: The rows.

        Raises:
            ConnectionLoss: The connection was lost.
            DatabaseError: The server refuses a row.
        """
        try:
            with self._driver_connection.cursor() as cursor:
                cursor.executemany(sql, rows)
        except pymysql.err.Error as error:
            code, message = _code_and_message(error)
            if code in _LOSS_CODES or code == 0:
                raise DatabaseConnectionLoss(message) from None
            raise self.refusal(message) from None

    def ping(self) -> None:
        """Check the connection. Raises `DatabaseConnectionLoss` if it was lost."""
        self.query("DO 0")

    def reset(self, database: str) -> None:
        """Start a new session on this connection, without variables, locks and temporary tables.

        Args:
            database: The database that the new session uses.

        Raises:
            ConnectionLoss: The connection was lost.
        """
        try:
            self._driver_connection._execute_command(_RESET_CONNECTION, b"")
            self._driver_connection._read_ok_packet()
            self._driver_connection.select_db(database)
        except (pymysql.err.Error, OSError) as error:
            raise DatabaseConnectionLoss(str(error)) from None

    def cut(self) -> None:
        """End the connection from another thread. The thread that reads from it gets an error."""
        with suppress(OSError, AttributeError):  # the connection is closed already
            self._driver_connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._driver_connection._force_close()

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
        timed_out = False
        try:
            self._driver_connection._execute_command(_QUERY, text)
            reply = MySQLQueryResponse(self._driver_connection._rfile)
            row_buffer: ResultRowBuffer | None = None
            while reply.has_more:
                row_buffer = ResultRowBuffer(max_rows, limits, row_buffer)
                results.append(reply.result(row_buffer))
        except MySQLServerError as error:
            if error.code in _LOSS_CODES:
                raise DatabaseConnectionLoss(error.message) from None
            # The rest of the text may be only a comment, which the server reports as an empty
            # statement.
            if error.code != _EMPTY_QUERY_CODE or _GAP.search(text):
                failure = StatementFailure(error.message, f"{error.code} ({error.state})")
                timed_out = error.code in _TIMEOUT_CODES
        except pymysql.err.Error as error:
            raise DatabaseConnectionLoss(_code_and_message(error)[1]) from None
        except (OSError, ValueError, AttributeError) as error:
            # Another thread has closed the connection.
            raise DatabaseConnectionLoss(str(error)) from None
        except ArithmeticError:  # the agent has chosen a character set without ASCII
            raise DatabaseConnectionLoss("a number cannot be read") from None
        if results and results[-1] == _EMPTY_RESULT and _ENDS_IN_COMMENT.search(text):
            results.pop()  # MariaDB gives a result for a comment, as for a statement
        return SqlActionOutcome(tuple(results), failure, timed_out)


def _check_socket(path: str | None) -> None:
    """Check that a socket accepts connections; otherwise the driver would leak a descriptor."""
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            raise UnreachableDatabaseServer(f"{path}: {error.strerror}") from None


def _code_and_message(error: Exception) -> tuple[int, str]:
    """Return the code and message of an error; the code is 0 if the error has none."""
    match error.args:
        case (int(code), str(message)):
            return code, message or "the connection is closed"
    return 0, str(error)


class MySQLServerError(Exception):
    """An error of a statement, in a packet of the server.

    Attributes:
        code: The server's error number.
        state: The SQLSTATE.
        message: The server's message.
    """

    def __init__(self, packet: bytes) -> None:
        self.code = int.from_bytes(packet[1:3], "little")
        has_state = packet[3:4] == b"#"
        self.state = packet[4:9].decode("ascii", "replace") if has_state else ""
        self.message = packet[9 if has_state else 3 :].decode("utf-8", "replace")
        super().__init__(self.message)


class MySQLQueryResponse:
    """The server's response to one query, with a result for each statement.

    Args:
        file: The bytes that arrive on the connection.

    Attributes:
        has_more: Whether another result follows.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.has_more = True
        self._read = file.read

    def result(self, row_buffer: ResultRowBuffer) -> StatementResult:
        """Read the next result.

        Raises:
            MySQLServerError: The statement failed. No result follows.
            ConnectionLoss: The connection was lost.
        """
        packet = self._packet()
        if packet[0] == _OK:
            affected_rows, position = _read_length(packet, 1)
            _, position = _read_length(packet, position)  # the last inserted row's number
            self._end(packet, position)
            return StatementResult(affected_rows=affected_rows)
        if packet[0] == _NULL:
            raise DatabaseConnectionLoss("the server asks for a file")
        columns = [_column(self._packet()) for _ in range(_read_length(packet, 0)[0])]
        self._packet()  # the packet that marks the end of the columns
        decoders = [decode for _, decode in columns]
        packet = self._packet()
        while packet[0] != _END or len(packet) >= 9:
            if row_buffer.is_full:
                row_buffer.total += 1
            else:
                row_buffer.extend([_row(packet, decoders)])
            packet = self._packet()
        self._end(packet, 3)
        return StatementResult(
            tuple(name for name, _ in columns), row_buffer.rows, row_buffer.total
        )

    def _end(self, packet: bytes, position: int) -> None:
        self.has_more = bool(
            int.from_bytes(packet[position : position + 2], "little") & _MORE_RESULTS
        )

    def _packet(self) -> bytes:
        packet = self._read_packet_part()
        if len(packet) == _MAX_PACKET_BYTES:
            packet_parts = [packet]
            while len(packet_parts[-1]) == _MAX_PACKET_BYTES:
                packet_parts.append(self._read_packet_part())
            packet = b"".join(packet_parts)
        if not packet:
            raise DatabaseConnectionLoss("the server sent nothing")
        if packet[0] == _ERROR:
            self.has_more = False
            raise MySQLServerError(packet)
        return packet

    def _read_packet_part(self) -> bytes:
        header = self._read(4)
        size = int.from_bytes(header[:3], "little")
        payload = self._read(size)
        if len(header) < 4 or len(payload) < size:
            raise DatabaseConnectionLoss("Lost connection to MySQL server during query")
        return payload


def _read_length(packet: bytes, position: int) -> tuple[int, int]:
    """Read a number of variable length; return the number and the position after it."""
    first_byte = packet[position]
    if first_byte < _NULL:
        return first_byte, position + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first_byte]
    end = position + 1 + size
    return int.from_bytes(packet[position + 1 : end], "little"), end


@lru_cache(maxsize=4096)
def _column(packet: bytes) -> tuple[str, Decode | None]:
    """Return the name and the decoder of a column; None as the decoder leaves values as bytes.

    Args:
        packet: The packet that defines the column.
    """
    position = 0
    fields = []
    for _ in range(6):  # catalogue, database, alias, table, name, name in the table
        size, start = _read_length(packet, position)
        position = start + size
        fields.append(packet[start:position])
    charset = int.from_bytes(packet[position + 1 : position + 3], "little")
    return _text(fields[4]), _decoder(packet[position + 7], charset)


def _decoder(field: int, charset: int) -> Decode | None:
    if field in _TEXT_FIELDS:
        return None if charset == _BINARY else _text
    if field in _INTEGER_FIELDS:
        return int
    if field in _FLOAT_FIELDS:
        return float
    convert = pymysql.converters.decoders.get(field)
    if convert is None or field == _FIELD.JSON:
        return _text
    return lambda value: convert(value.decode("ascii"))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _row(packet: bytes, decoders: list[Decode | None]) -> Row:
    row: list[Any] = []
    position = 0
    for decode in decoders:
        size = packet[position]
        if size == _NULL:
            row.append(None)
            position += 1
            continue
        if size < _NULL:
            start = position + 1
        else:
            size, start = _read_length(packet, position)
        position = start + size
        value = packet[start:position]
        row.append(value if decode is None else decode(value))
    return tuple(row)
