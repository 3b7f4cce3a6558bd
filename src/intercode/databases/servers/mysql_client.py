"""One connection to MySQL or MariaDB, over PyMySQL.

The engines' own drivers are used, not SQLAlchemy: one thin interpreter needs errors, types and
cancellation exactly as the engine gives them. Results are read as they come (`mysql_protocol`), so
that one without end never fills this process.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from intercode.databases.base import Failure, Outcome, Result, Row
from intercode.databases.servers.kept_rows import Keeper
from intercode.databases.servers.mysql_protocol import Reply, ServerError
from intercode.databases.servers.private_mysql import driver
from intercode.databases.servers.session import ConnectionLost, Unreachable
from intercode.errors import DatabaseError, UsageError
from intercode.sandbox.base import Limits

pymysql = driver()
CLIENT = pymysql.constants.CLIENT

_CONNECT_SECONDS = 10.0
_QUERY, _RESET_CONNECTION = 0x03, 0x1F
_GONE = {1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2014, 2055, 3169, 4031}
"""The server shuts down, or has ended this connection; or packets are missing."""
_UNREACHABLE = {1040, 1053, 2002, 2003, 2006, 2013}
_TIMED_OUT = {1969, 3024}
_NOTHING = Result(changed=0)
_EMPTY = 1065
_GAP = re.compile(r"(?:;|\A)\s*;\s*[^\s;]")
"""An empty statement with something after it, which the server does not come to."""
_COMMENT = r"(?:--(?=\s)[^\n]*|\#[^\n]*|/\*(?!M?!)(?:(?!\*/).)*\*/)"
_ENDS_IN_COMMENT = re.compile(rf"(?:;|\A)\s*(?:{_COMMENT}\s*)+\Z", re.DOTALL)
READ_ONLY = "1792"


class MySQLConnection:
    """A connection.

    Attributes:
        thread: Its number on the server, until that is restarted.
        user: Whose it is.
        since: When it was made, by `time.monotonic`.

    Args:
        connect_args: What `pymysql.connect` takes.

    Raises:
        Unreachable: The server does not answer.
        DatabaseError: It refuses.
    """

    def __init__(self, connect_args: Mapping[str, Any]) -> None:
        _check_socket(connect_args.get("unix_socket"))
        try:
            self._raw = pymysql.connect(
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.MULTI_STATEMENTS,
                connect_timeout=_CONNECT_SECONDS,
                local_infile=False,
                **connect_args,
            )
        except pymysql.err.OperationalError as error:
            code, message = _parts(error)
            if code in _UNREACHABLE:
                raise Unreachable(message) from None
            raise DatabaseError(f"the MySQL server refuses: {message}") from None
        except (pymysql.err.Error, RuntimeError) as error:  # the driver lacks `cryptography`
            raise UsageError(f"cannot connect to the MySQL server: {error}") from None
        self.thread: int = self._raw.thread_id()
        self.user = str(connect_args["user"])
        self.since = time.monotonic()
        self.is_mariadb = "MariaDB" in self._raw.get_server_info()

    # --- for ourselves -----------------------------------------------------------------------

    def query(self, sql: str, *arguments: Any) -> list[Row]:
        """The rows of the last of some statements, for statements of our own.

        Raises:
            ConnectionLost: The connection is gone.
            DatabaseError: A statement failed.
        """
        outcome = self.run(self._raw.cursor().mogrify(sql, arguments) if arguments else sql)
        if outcome.failure is not None:
            raise DatabaseError(f"the MySQL server says: {outcome.failure.message}")
        return list(outcome.results[-1].rows)

    def insert(self, sql: str, rows: list[Row]) -> None:
        """Insert many rows with one statement that ends in ``VALUES (%s, …)``."""
        try:
            with self._raw.cursor() as cursor:
                cursor.executemany(sql, rows)
        except pymysql.err.Error as error:
            code, message = _parts(error)
            if code in _GONE or code == 0:
                raise ConnectionLost(message) from None
            raise DatabaseError(f"the MySQL server says: {message}") from None

    def ping(self) -> None:
        """Raise `ConnectionLost` if the connection is gone."""
        self.query("DO 0")

    def reset(self, database: str) -> None:
        """A new session on the same connection: variables, locks and temporary tables go.

        Raises:
            ConnectionLost: The connection is gone.
        """
        try:
            self._raw._execute_command(_RESET_CONNECTION, b"")
            self._raw._read_ok_packet()
            self._raw.select_db(database)
        except (pymysql.err.Error, OSError) as error:
            raise ConnectionLost(str(error)) from None

    def cut(self) -> None:
        """End the connection from another thread, so that who reads from it wakes up."""
        with suppress(OSError, AttributeError):  # it is closed
            self._raw._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it. Idempotent."""
        self._raw._force_close()

    # --- for an agent ------------------------------------------------------------------------

    def run(self, text: str, max_rows: int | None = None, limits: Limits | None = None) -> Outcome:
        """Run an action; all rows are kept unless it is said how many.

        Raises:
            ConnectionLost: The connection is gone.
        """
        results: list[Result] = []
        failure: Failure | None = None
        timed_out = False
        try:
            self._raw._execute_command(_QUERY, text)
            reply = Reply(self._raw._rfile)
            while reply.more:
                results.append(reply.result(Keeper(max_rows, limits)))
        except ServerError as error:
            if error.code in _GONE:
                raise ConnectionLost(error.message) from None
            # What is left may be a comment: then nothing is wrong.
            if error.code != _EMPTY or _GAP.search(text):
                failure = Failure(error.message, f"{error.code} ({error.state})")
                timed_out = error.code in _TIMED_OUT
        except pymysql.err.Error as error:
            raise ConnectionLost(_parts(error)[1]) from None
        except (OSError, ValueError, AttributeError) as error:  # it was closed meanwhile
            raise ConnectionLost(str(error)) from None
        except ArithmeticError:  # the agent has chosen a character set without ASCII
            raise ConnectionLost("a number cannot be read") from None
        if results and results[-1] == _NOTHING and _ENDS_IN_COMMENT.search(text):
            results.pop()  # to MariaDB a comment is a statement
        return Outcome(tuple(results), failure, timed_out)


def _check_socket(path: str | None) -> None:
    """The driver leaves a socket open that it cannot connect; so it is not to try in vain."""
    if path is None:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError as error:
            raise Unreachable(f"{path}: {error.strerror}") from None


def _parts(error: Exception) -> tuple[int, str]:
    """Number and message; 0 for what is no error of the server's."""
    match error.args:
        case (int(code), str(message)):
            return code, message or "the connection is closed"
    return 0, str(error)
