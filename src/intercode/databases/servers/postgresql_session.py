"""A session on PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intercode.databases.base import Failure, Outcome, Role, Table
from intercode.databases.servers.kept_rows import (
    NOT_READ,
    Kind,
    check_size,
    read_table,
    size_of,
    state_limits,
)
from intercode.databases.servers.postgresql_client import READ_ONLY, PostgreSQLConnection
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
    from intercode.databases.servers.postgresql import PostgreSQLEngine

_OTHERS_CRASH = "crash of another server process"
_LARGE_OBJECTS = "SELECT 1 FROM pg_catalog.pg_largeobject_metadata LIMIT 1"
_RELATIONS = """
SELECT c.oid::text, n.nspname, c.relname, c.relkind IN ('v', 'm'), c.relforcerowsecurity
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relpersistence <> 't'
AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY n.nspname <> 'public', n.nspname, c.relname
"""
_COLUMNS = """
SELECT attname, pg_catalog.format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute
WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(slots=True)
class PostgreSQLClone:
    """A clone, with the agent's connection to it; the role has the clone's name."""

    name: str
    password: str
    generation: int
    started: str
    """When the server was."""
    connection: PostgreSQLConnection


class PostgreSQLSession(ServerSession[PostgreSQLConnection]):
    """A session over a clone.

    Raises:
        ConnectionLost: The clone's connection is gone.
    """

    dialect = "postgres"

    def __init__(
        self,
        engine: PostgreSQLEngine,
        clone: PostgreSQLClone,
        source: Source,
        role: Role,
        limits: Limits,
    ) -> None:
        super().__init__(source, role, clone.name, limits, engine.watchdog)
        self._engine = engine
        self._clone = clone
        self._seconds = limits.timeout
        self._configure()

    @property
    def _connection(self) -> PostgreSQLConnection:
        return self._clone.connection

    # --- running -----------------------------------------------------------------------------

    def _run(self, text: str, seconds: float, max_rows: int) -> Outcome:
        if seconds != self._seconds:
            self._seconds = seconds
            self._configure()
        outcome = self._connection.run(text, max_rows, self.limits)
        # A function can do what SET does, and a SELECT can then write.
        self.written = self.written or not self._connection.only_reads
        return outcome

    def _refused(self, failure: Failure) -> bool:
        return failure.code == READ_ONLY

    def _make_writable(self) -> None:
        # No transaction can be open: what would begin one is given write access before it runs.
        self._connection.run("SET default_transaction_read_only = off")

    def _configure(self) -> None:
        self._connection.run(f"SET statement_timeout = {max(1, round(self._seconds * 1000))}")

    def _strike(self, connection: PostgreSQLConnection, whole: bool) -> None:
        connection.cancel()
        if whole:
            connection.cut()

    def _ping(self) -> None:
        self._connection.run("SELECT 1")

    def _reconnect(self, lost: ConnectionLost) -> None:
        self._connection.close()
        try:
            if _OTHERS_CRASH in str(lost):
                raise DatabaseError(str(lost))
            self._engine.check_still_there(self._clone)
            self._clone.connection = self._engine.connect_to(self._clone)
            self._configure()
            if self.written:
                self._make_writable()
        except (ConnectionLost, Unreachable, DatabaseError):
            raise DatabaseError(
                f"the connection to the PostgreSQL server was lost: {lost}"
            ) from None

    # --- ending ------------------------------------------------------------------------------

    def _release(self) -> None:
        pristine = self._is_pristine()
        if not pristine:
            self._connection.close()
        self._engine.give_back(self, self._clone, pristine)

    def _is_pristine(self) -> bool:
        """Whether all transactions were read-only; if so, begin anew."""
        if self.written or self._clone.generation != self._engine.generation:
            return False
        connection = self._connection
        try:
            # Before PostgreSQL 16 a large object can be made even read-only.
            if not connection.idle or connection.query(_LARGE_OBJECTS):
                return False
            connection.query("DISCARD ALL")
        except (ConnectionLost, DatabaseError):
            return False
        return connection.read_only

    # --- the state ---------------------------------------------------------------------------

    def _commit(self) -> None:
        try:
            if not self._connection.idle:
                self._connection.run("COMMIT")
        except ConnectionLost as lost:
            self._reconnect(lost)

    def _connect_for_state(self) -> PostgreSQLConnection:
        # With the clone's own rights, for its views and functions run with those of who reads
        # them; over a connection of its own, for on the agent's a temporary table may hide the
        # real one, and `search_path` may point anywhere.
        return self._engine.connect_to(self._clone, for_state=True)

    def _read_tables(self, connection: PostgreSQLConnection, with_views: bool) -> dict[str, Table]:
        connection.query(f"SET statement_timeout = {round(self.limits.timeout * 1000)}")
        tables: dict[str, Table] = {}
        size = 0
        for oid, space, name, is_view, hides in connection.query(_RELATIONS):
            kind: Kind = "view" if is_view else "table"
            columns, outcome = NOT_READ
            if with_views or not is_view:
                columns = connection.query(_COLUMNS.format(oid))
                where = f"{quoted(str(space))}.{quoted(str(name))}"
                outcome = self._read(connection, where, hides=bool(hides))
            shown = str(name) if space == "public" else f"{space}.{name}"
            tables[shown] = table = read_table(shown, kind, columns, outcome)
            size += size_of(table.rows)
            check_size(self.source.name, outcome, size, self.limits)
        return tables

    def _read(self, connection: PostgreSQLConnection, where: str, hides: bool) -> Outcome:
        limits = state_limits(self.limits)
        if not hides:
            return connection.run(f"SELECT * FROM {where}", limits=limits)
        # An owner may hide rows from himself; he is not to hide them from us.
        connection.query(f"BEGIN; ALTER TABLE {where} NO FORCE ROW LEVEL SECURITY")
        outcome = connection.run(f"SELECT * FROM {where}", limits=limits)
        connection.query("ROLLBACK")
        return outcome
