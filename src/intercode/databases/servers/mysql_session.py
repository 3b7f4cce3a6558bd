"""A session on MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intercode.databases.base import Failure, Outcome, Role, Row, Table
from intercode.databases.servers.kept_rows import (
    NOT_READ,
    Kind,
    check_size,
    read_table,
    size_of,
    state_limits,
)
from intercode.databases.servers.mysql_client import READ_ONLY, MySQLConnection
from intercode.databases.servers.session import (
    ConnectionLost,
    ServerSession,
    Unreachable,
)
from intercode.databases.source import Source
from intercode.errors import DatabaseError
from intercode.sandbox.base import Limits
from intercode.syntax import quoted

if TYPE_CHECKING:
    from intercode.databases.servers.mysql import MySQLEngine

_HARMLESS = {
    *("Com_select", "Com_change_db", "Com_help", "Com_empty_query", "Com_admin_commands"),
    *("Com_reset_connection", "Com_explain_other"),
}
_RAN = "SHOW SESSION STATUS WHERE Variable_name LIKE 'Com\\_%' AND Value <> '0'"
_TABLES = (
    "SELECT table_name, table_type FROM information_schema.tables "
    "WHERE table_schema = %s AND table_type IN ('BASE TABLE', 'VIEW') ORDER BY table_name"
)
_COLUMNS = (
    "SELECT column_name, column_type FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)


@dataclass(slots=True)
class MySQLClone:
    """A clone, with the agent's connection to it; the account has the clone's name."""

    name: str
    password: str
    generation: int
    connection: MySQLConnection


class MySQLSession(ServerSession[MySQLConnection]):
    """A session over a clone.

    Raises:
        ConnectionLost: The clone's connection is gone.
    """

    dialect = "mysql"

    def __init__(
        self, engine: MySQLEngine, clone: MySQLClone, source: Source, role: Role, limits: Limits
    ) -> None:
        super().__init__(source, role, clone.name, limits, engine.watchdog)
        self._engine = engine
        self._clone = clone
        self._settings = 0
        self._seconds = limits.timeout
        self._configure()

    @property
    def _connection(self) -> MySQLConnection:
        return self._clone.connection

    # --- running -----------------------------------------------------------------------------

    def _run(self, text: str, seconds: float, max_rows: int) -> Outcome:
        if seconds != self._seconds:
            self._seconds = seconds
            self._configure()
        return self._connection.run(text, max_rows, self.limits)

    def _refused(self, failure: Failure) -> bool:
        return failure.code.startswith(READ_ONLY)

    def _make_writable(self) -> None:
        # No transaction can be open: what would begin one is given write access before it runs.
        self._configure()

    def _configure(self) -> None:
        self._settings += 1
        self._connection.query(self._engine.settings(not self.written, self._seconds))

    def _strike(self, connection: MySQLConnection, whole: bool) -> None:
        self._engine.interrupt(connection, whole)
        if whole:
            connection.cut()

    def _ping(self) -> None:
        self._connection.run("DO 0")

    def _reconnect(self, lost: ConnectionLost) -> None:
        self._connection.close()
        try:
            self._engine.check_still_there(self._clone)
            self._clone.connection = self._engine.connect_to(self._clone)
            self._configure()
        except (ConnectionLost, Unreachable, DatabaseError):
            raise DatabaseError(f"the connection to the MySQL server was lost: {lost}") from None

    # --- ending ------------------------------------------------------------------------------

    def _release(self) -> None:
        pristine = self._is_pristine()
        if not pristine:
            self._connection.close()  # what it holds that others could want, it lets go
        self._engine.give_back(self, self._clone, pristine)

    def _is_pristine(self) -> bool:
        """Whether nothing but reading was done, by the server's own count; if so, begin anew."""
        if self.written or self._clone.generation != self._engine.generation:
            return False
        try:
            ran = {str(name): int(str(count)) for name, count in self._connection.query(_RAN)}
            if ran.pop("Com_set_option", 0) != self._settings:
                return False
            if any(not name.startswith("Com_show") for name in ran.keys() - _HARMLESS):
                return False
            self._connection.reset(self.name)
        except (ConnectionLost, DatabaseError):
            return False
        return True

    # --- the state ---------------------------------------------------------------------------

    def _commit(self) -> None:
        try:
            self._connection.run("COMMIT")
            self._connection.run("UNLOCK TABLES")
        except ConnectionLost as lost:
            self._reconnect(lost)

    def _connect_for_state(self) -> MySQLConnection:
        # With the clone's own rights, for its views run with those of who reads them; over a
        # connection of its own, for on the agent's a temporary table may hide the real one.
        return self._engine.connect_to(self._clone)

    def _read_tables(self, connection: MySQLConnection, with_views: bool) -> dict[str, Table]:
        connection.query(self._engine.settings(True, self.limits.timeout))
        tables: dict[str, Table] = {}
        size = 0
        for name, type_ in connection.query(_TABLES, self.name):
            kind: Kind = "view" if type_ == "VIEW" else "table"
            columns, outcome = NOT_READ
            if with_views or kind == "table":
                columns, outcome = self._read(connection, str(name), kind)
            table = read_table(str(name), kind, columns, outcome)
            size += size_of(table.rows)
            check_size(self.source.name, outcome, size, self.limits)
            tables[str(name)] = table
        return tables

    def _read(
        self, connection: MySQLConnection, name: str, kind: Kind
    ) -> tuple[Sequence[Row], Outcome]:
        try:
            columns = connection.query(_COLUMNS, self.name, name)
        except DatabaseError as error:
            if kind == "table":
                raise
            return (), Outcome(failure=Failure(str(error)))  # there is too much in the view
        # Each by its name, for ``*`` leaves out those that are invisible.
        shown = ", ".join(quoted(str(column), "`") for column, _ in columns)
        text = f"SELECT {shown} FROM {quoted(self.name, '`')}.{quoted(name, '`')}"
        return columns, connection.run(text, limits=state_limits(self.limits))
