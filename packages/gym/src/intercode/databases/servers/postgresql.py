"""PostgreSQL engine, on a server at a URL or a private one.

Each session has a clone, a copy of the template database that holds the source's content. Each
clone has its own role, which owns the clone and may connect to no other clone or template.

The tables of a template belong to ``pg_database_owner``. The owner of any database is a member of
this role. So the owner of a clone owns its tables, without any change in the clone. A clone is a
copy of the template's files. Median times on PostgreSQL 15 with 2 cores: 28 ms with the strategy
``file_copy``, 62 ms with ``wal_log``, and 5 ms to drop the clone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import unquote

from intercode.databases.base import EngineOptions, Row, SqlActionOutcome, StatementFailure
from intercode.databases.convert import schema_ddl
from intercode.databases.convert.schema import TableSchema
from intercode.databases.servers.database_names import new_name
from intercode.databases.servers.engine import DatabaseServerEngine, parse_url
from intercode.databases.servers.introspection import RelationSchema, postgresql_schema
from intercode.databases.servers.postgresql_client import READ_ONLY, PostgreSQLConnection
from intercode.databases.servers.private_server import start_postgresql
from intercode.databases.servers.session import (
    DatabaseClone,
    DatabaseConnectionLoss,
    DatabaseRelation,
    DatabaseServerSession,
    UnreachableDatabaseServer,
)
from intercode.databases.source import DatabaseSource
from intercode.errors import DatabaseError, UsageError
from intercode.sql_identifiers import quote_identifier
from intercode_sandbox.base import Limits

_MIN_VERSION = 140000
_FILE_COPY_VERSION = 150000
"""The first version that offers a choice of the strategy. Earlier versions copy files."""
_OPTIONS = ("host", "sslmode", "sslrootcert", "sslcert", "sslkey")
_SETTINGS = {
    "default_transaction_read_only": "on",
    "statement_timeout": "10s",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
}
_STATE_SETTINGS = {
    **_SETTINGS,
    "default_transaction_read_only": "off",
    "search_path": "pg_catalog",
    "row_security": "on",
}
_ACCESS_REPAIR = """
ALTER ROLE {name} RESET ALL; ALTER ROLE {name} IN DATABASE {name} RESET ALL;
ALTER ROLE {name} PASSWORD '{password}';
ALTER DATABASE {name} RESET ALL; ALTER DATABASE {name} CONNECTION LIMIT -1;
GRANT CONNECT ON DATABASE {name} TO {name}
"""
"""Statements that restore an agent's access after the agent has changed these settings."""
_START_TIME_QUERY = "SELECT pg_catalog.pg_postmaster_start_time()::text"
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
_OWNER = "pg_database_owner"
_OWNED_RELATIONS = (
    "SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, "
    "oid::regclass::text FROM pg_class "
    "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') ORDER BY oid"
)
_SECRETS = ("pg_database", "pg_stat_activity", "pg_stat_database", "pg_roles", "pg_user")
"""Views that show the server's other databases and their activity."""

PostgreSQLClone = DatabaseClone[PostgreSQLConnection]


class PostgreSQLSession(DatabaseServerSession[PostgreSQLConnection]):
    """A session on PostgreSQL."""

    dialect = "postgres"
    idle_statement = "SELECT 1"

    def _run(self, text: str, seconds: float, max_rows: int) -> SqlActionOutcome:
        outcome = super()._run(text, seconds, max_rows)
        # A function can have the effect of SET, after which even a SELECT can write.
        self.is_written = self.is_written or not self._connection.has_only_reads
        return outcome

    def _configure(self) -> None:
        settings = f"SET statement_timeout = {max(1, round(self._seconds * 1000))}"
        if self.is_written:
            settings += "; SET default_transaction_read_only = off"
        self._connection.run(settings)

    def _is_refused(self, failure: StatementFailure) -> bool:
        return failure.code == READ_ONLY

    def _strike(self, connection: PostgreSQLConnection, should_disconnect: bool) -> None:
        connection.cancel()
        if should_disconnect:
            connection.cut()

    def _reconnect(self, loss: DatabaseConnectionLoss) -> None:
        if _OTHERS_CRASH in str(loss):
            self._connection.close()
            raise self._loss(loss) from None
        super()._reconnect(loss)

    def _commit(self) -> None:
        if not self._connection.idle:
            self._connection.run("COMMIT")

    def _reset_if_unwritten(self) -> bool:
        connection = self._connection
        # Before PostgreSQL 16 even a read-only session can create a large object.
        if not connection.idle or connection.query(_LARGE_OBJECTS):
            return False
        connection.query("DISCARD ALL")
        return connection.read_only

    def _relations(self, connection: PostgreSQLConnection) -> list[DatabaseRelation]:
        connection.query(f"SET statement_timeout = {round(self.limits.timeout * 1000)}")
        relations = []
        for row in connection.query(_RELATIONS):
            _, namespace, name, is_view, _ = row
            display_name = str(name) if namespace == "public" else f"{namespace}.{name}"
            relations.append(DatabaseRelation(display_name, "view" if is_view else "table", row))
        return relations

    def _read(
        self, connection: PostgreSQLConnection, relation: DatabaseRelation, limits: Limits
    ) -> tuple[Sequence[Row], SqlActionOutcome]:
        relation_id, namespace, name, _, is_row_security_forced = relation.row
        columns = connection.query(_COLUMNS.format(relation_id))
        qualified_name = f"{quote_identifier(str(namespace))}.{quote_identifier(str(name))}"
        if not is_row_security_forced:
            return columns, connection.run(f"SELECT * FROM {qualified_name}", limits=limits)
        # An owner may hide rows from itself. This reading must see all rows.
        connection.query(f"BEGIN; ALTER TABLE {qualified_name} NO FORCE ROW LEVEL SECURITY")
        outcome = connection.run(f"SELECT * FROM {qualified_name}", limits=limits)
        connection.query("ROLLBACK")
        return columns, outcome

    def _schema(
        self, connection: PostgreSQLConnection, relation: DatabaseRelation
    ) -> RelationSchema:
        return postgresql_schema(connection.query, str(relation.row[0]))


class PostgreSQLEngine(DatabaseServerEngine[PostgreSQLConnection, PostgreSQLClone]):
    """Databases on PostgreSQL, 14 or newer.

    Args:
        options: The engine's options; without a URL the server is private.

    Raises:
        UsageError: The URL is malformed, no server is installed, or the server is too old.
        DatabaseError: The server cannot be started or reached.
    """

    name = "postgresql"
    dialect = "postgres"
    session = PostgreSQLSession
    leftover_queries = (
        (
            "SELECT datname FROM pg_database WHERE datname LIKE 'ic%'",
            "DROP DATABASE IF EXISTS {} WITH (FORCE)",
        ),
        ("SELECT rolname FROM pg_roles WHERE rolname LIKE 'ic%'", "DROP ROLE IF EXISTS {}"),
    )
    database_query = "SELECT 1 FROM pg_database WHERE datname = {}"

    def __init__(self, options: EngineOptions) -> None:
        self._is_superuser = True
        super().__init__(options, start_postgresql)

    # --- for sessions ------------------------------------------------------------------------

    def connect_to(self, clone: PostgreSQLClone, for_state: bool = False) -> PostgreSQLConnection:
        """Connect to a clone, and repair its access if necessary; see `session.CloneProvider`."""
        settings = _STATE_SETTINGS if for_state else _SETTINGS
        try:
            return self._connect_as(clone.name, clone.password, settings)
        except (UnreachableDatabaseServer, DatabaseError):
            with self.admin(should_wait=False) as admin:
                admin.query(_ACCESS_REPAIR.format(name=clone.name, password=clone.password))
            return self._connect_as(clone.name, clone.password, settings)

    def check_same_server(self, clone: PostgreSQLClone) -> None:
        """Check that the server was not restarted; see `session.CloneProvider`."""
        # `admin` waits for a server that recovers: one of its processes has crashed in an action.
        with self.admin() as admin:
            start_time = admin.query(_START_TIME_QUERY)[0][0]
        if clone.generation != self.generation or clone.start_time != start_time:
            raise DatabaseError("the PostgreSQL server was restarted")

    # --- the server --------------------------------------------------------------------------

    def _parse(self, url: str) -> dict[str, Any]:
        connect_args, url_parts = parse_url(
            url, "PostgreSQL", 5432, "postgres", "PGPASSWORD", _OPTIONS
        )
        return {**connect_args, "dbname": unquote(url_parts.path.strip("/")) or "postgres"}

    def _connect(self, connect_args: Mapping[str, Any]) -> PostgreSQLConnection:
        return PostgreSQLConnection(connect_args, {"timezone": "UTC"})

    def _connect_as(
        self, name: str, password: str, settings: Mapping[str, object]
    ) -> PostgreSQLConnection:
        account = {"user": name, "password": password, "dbname": name}
        return PostgreSQLConnection({**self._connect_args, **account}, settings)

    def _inspect_server(self, admin: PostgreSQLConnection) -> dict[str, Any]:
        if admin.version < _MIN_VERSION:
            raise UsageError(f"PostgreSQL 14 or newer is needed, not {admin.version // 10000}")
        self._is_superuser = admin.query("SHOW is_superuser") == [("on",)]
        version = str(admin.query("SHOW server_version")[0][0])
        return {"engine": self.name, "product": "PostgreSQL", "version": version}

    # --- templates and clones ----------------------------------------------------------------

    def _make_empty(self, admin: PostgreSQLConnection) -> PostgreSQLClone:
        return self._make_database(admin, "template1", {"timezone": "UTC"})

    def _make_database(
        self, admin: PostgreSQLConnection, template: str, settings: Mapping[str, object]
    ) -> PostgreSQLClone:
        """Copy a database, create a role that owns the copy, and connect to the copy."""
        name, password = new_name(), secrets.token_urlsafe(18)
        admin.query(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        if not self._is_superuser:
            admin.query(f"GRANT {name} TO CURRENT_USER")  # needed to make the role the owner
        try:
            strategy = "STRATEGY file_copy" if admin.version >= _FILE_COPY_VERSION else ""
            admin.query(f"CREATE DATABASE {name} TEMPLATE {template} OWNER {name} {strategy}")
            admin.query(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        except DatabaseError:
            admin.run(f"DROP ROLE {name}")
            raise
        start_time = str(admin.query(_START_TIME_QUERY)[0][0])
        connection = self._connect_as(name, password, settings)
        return PostgreSQLClone(name, password, self.generation, connection, start_time)

    def _load(
        self, admin: PostgreSQLConnection, clone: PostgreSQLClone, source: DatabaseSource
    ) -> PostgreSQLClone:
        self._convert(clone.connection, source)
        for kind, name in clone.connection.query(_OWNED_RELATIONS):
            clone.connection.query(f"ALTER {kind} {name} OWNER TO {_OWNER}")
        clone.connection.query("ANALYZE")
        if self._is_superuser:
            with closing(
                self._connect({**self._connect_args, "dbname": clone.name})
            ) as template_connection:
                _close_off(template_connection)
        # A database with open connections cannot be a template, so its role must not connect.
        admin.query(f"ALTER ROLE {clone.name} NOLOGIN")
        return clone

    def _insert(
        self, connection: PostgreSQLConnection, table: TableSchema, rows: Iterator[Row]
    ) -> None:
        connection.insert(schema_ddl.identifier(table.name, "postgres"), rows)

    def _copy(self, admin: PostgreSQLConnection, template: PostgreSQLClone) -> PostgreSQLClone:
        return self._make_database(admin, template.name, _SETTINGS)

    def _drop_named(self, admin: PostgreSQLConnection, name: str) -> None:
        admin.query(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.query(f"DROP ROLE IF EXISTS {name}")


def _close_off(connection: PostgreSQLConnection) -> None:
    """Hide the server's other databases from the users of a template's clones.

    Args:
        connection: A superuser's connection to the template.
    """
    connection.query("; ".join(f"REVOKE SELECT ON pg_catalog.{s} FROM PUBLIC" for s in _SECRETS))
    # This function looks up the database's encoding in one of the hidden views. The view
    # ``information_schema.columns`` needs the function.
    connection.query(
        "ALTER FUNCTION information_schema._pg_char_octet_length(oid, int4) SECURITY DEFINER"
    )
