"""PostgreSQL: a server at a URL, or a private one.

Each session has a clone of the source's template, and a role of its own that owns that clone and
may connect to nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from intercode.databases.base import EngineOptions, Role
from intercode.databases.servers import naming, postgresql_template
from intercode.databases.servers.engine import ServerEngine
from intercode.databases.servers.postgresql_client import PostgreSQLConnection
from intercode.databases.servers.postgresql_session import PostgreSQLClone, PostgreSQLSession
from intercode.databases.servers.private import start_postgresql
from intercode.databases.servers.session import AnySession, Unreachable
from intercode.databases.source import Source
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.sandbox.base import Limits

_OLDEST = 140000
_DEFAULT_SECONDS = 10
_SETTINGS = {
    "default_transaction_read_only": "on",
    "statement_timeout": f"{_DEFAULT_SECONDS}s",
    "timezone": "UTC",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
}
_STATE_SETTINGS = {
    "default_transaction_read_only": "off",
    "search_path": "pg_catalog",
    "row_security": "on",
}
_MENDED = """
ALTER ROLE {name} RESET ALL; ALTER ROLE {name} IN DATABASE {name} RESET ALL;
ALTER ROLE {name} PASSWORD '{password}';
ALTER DATABASE {name} RESET ALL; ALTER DATABASE {name} CONNECTION LIMIT -1;
GRANT CONNECT ON DATABASE {name} TO {name}
"""
"""What lets an agent in again that has locked itself out: all this is its own to change."""
_STARTED = "SELECT pg_catalog.pg_postmaster_start_time()::text"
_FILE_COPY = 150000
"""Since when there is another way; it is what there was before."""
_OPTIONS = {"host", "sslmode", "sslrootcert", "sslcert", "sslkey"}


class PostgreSQLEngine(ServerEngine[PostgreSQLConnection, PostgreSQLClone, PostgreSQLClone]):
    """Databases on PostgreSQL, 14 or newer.

    Args:
        options: The URL, if it has one.

    Raises:
        UsageError: The URL is malformed, or nothing is installed.
        DatabaseError: The server cannot be started or reached.
    """

    name = "postgresql"
    dialect = "postgres"

    def __init__(self, options: EngineOptions) -> None:
        self._is_superuser = True
        super().__init__(options, start_postgresql)

    # --- for sessions ------------------------------------------------------------------------

    def connect_to(self, clone: PostgreSQLClone, for_state: bool = False) -> PostgreSQLConnection:
        """Connect to a clone with its own role.

        Raises:
            Unreachable: The server does not answer.
            DatabaseError: It refuses.
        """
        settings = {**_SETTINGS, **_STATE_SETTINGS} if for_state else _SETTINGS
        try:
            return self._connect_as(clone.name, clone.password, settings)
        except (Unreachable, DatabaseError):
            with self.admin(patient=False) as admin:
                admin.query(_MENDED.format(name=clone.name, password=clone.password))
            return self._connect_as(clone.name, clone.password, settings)

    def check_still_there(self, clone: PostgreSQLClone) -> None:
        """See whether the server is the one that a clone was made on, and has not been restarted.

        Raises:
            DatabaseError: It does not answer, or was restarted.
        """
        with self.admin() as admin:  # patient: it recovers if the agent has crashed its process
            started = admin.query(_STARTED)[0][0]
        if clone.generation != self.generation or clone.started != started:
            raise DatabaseError("the PostgreSQL server was restarted")

    # --- the server --------------------------------------------------------------------------

    def _parse(self, url: str) -> dict[str, Any]:
        parts = urlsplit(url)
        try:
            port = parts.port or 5432
        except ValueError:
            raise UsageError("the URL of a PostgreSQL server has no valid port") from None
        found: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": port,
            "user": unquote(parts.username or "postgres"),
            "password": unquote(parts.password or ""),
            "dbname": unquote(parts.path.strip("/")) or "postgres",
        }
        for key, value in parse_qsl(parts.query):
            if key not in _OPTIONS:
                raise UsageError(f"the URL of a PostgreSQL server has no option {key!r}")
            found[key] = value
        return found

    def _connect(self, connect_args: Mapping[str, Any]) -> PostgreSQLConnection:
        return PostgreSQLConnection(connect_args, {"timezone": "UTC"})

    def _connect_as(
        self, name: str, password: str, settings: Mapping[str, object]
    ) -> PostgreSQLConnection:
        account = {"user": name, "password": password, "dbname": name}
        return PostgreSQLConnection({**self._connect_args, **account}, settings)

    def _look(self, admin: PostgreSQLConnection) -> dict[str, Any]:
        if admin.version < _OLDEST:
            raise UsageError(f"PostgreSQL 14 or newer is needed, not {admin.version // 10000}")
        self._is_superuser = admin.query("SHOW is_superuser") == [("on",)]
        version = str(admin.query("SHOW server_version")[0][0])
        return {"engine": self.name, "product": "PostgreSQL", "version": version}

    def _sweep(self, admin: PostgreSQLConnection) -> None:
        for (name,) in admin.query("SELECT datname FROM pg_database WHERE datname LIKE 'ic%'"):
            if naming.is_left_over(str(name)):
                admin.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for (name,) in admin.query("SELECT rolname FROM pg_roles WHERE rolname LIKE 'ic%'"):
            if naming.is_left_over(str(name)):
                admin.run(f"DROP ROLE IF EXISTS {name}")

    # --- templates and clones ----------------------------------------------------------------

    def _fill(self, source: Source) -> PostgreSQLClone:
        self._say(f"loading {source.name} into {self.name}")
        with self.admin() as admin:
            template = self._make_database(admin, "template1", {"timezone": "UTC"})
            try:
                postgresql_template.fill(template.connection, source, self._progress)
                if self._is_superuser:
                    self._close_off(template.name)
            except TaskError:
                self._drop(admin, template)
                raise
            finally:
                template.connection.close()  # nobody may be in what is being copied
            admin.query(f"ALTER ROLE {template.name} NOLOGIN")
        return template

    def _close_off(self, name: str) -> None:
        connection = self._connect({**self._connect_args, "dbname": name})
        try:
            postgresql_template.close_off(connection)
        finally:
            connection.close()

    def _clone(self, template: PostgreSQLClone, source: Source) -> PostgreSQLClone:
        with self.admin() as admin:
            try:
                return self._make_database(admin, template.name, _SETTINGS)
            except DatabaseError as error:
                found = "SELECT 1 FROM pg_database WHERE datname = {}"
                if not admin.query(found, template.name):
                    raise LookupError(template.name) from error
                raise

    def _make_database(
        self, admin: PostgreSQLConnection, template: str, settings: Mapping[str, object]
    ) -> PostgreSQLClone:
        """A copy of a database with a role of its own, and a connection to it."""
        name, password = naming.new(), secrets.token_urlsafe(18)
        admin.query(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        if not self._is_superuser:
            admin.query(f"GRANT {name} TO CURRENT_USER")  # else it could not be made the owner
        try:
            how = "STRATEGY file_copy" if admin.version >= _FILE_COPY else ""
            admin.query(f"CREATE DATABASE {name} TEMPLATE {template} OWNER {name} {how}")
            admin.query(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
        except DatabaseError:
            admin.run(f"DROP ROLE {name}")
            raise
        started = str(admin.query(_STARTED)[0][0])
        connection = self._connect_as(name, password, settings)
        return PostgreSQLClone(name, password, self.generation, started, connection)

    def _drop(self, admin: PostgreSQLConnection, clone: PostgreSQLClone) -> None:
        clone.connection.close()
        admin.query(f"DROP DATABASE IF EXISTS {clone.name} WITH (FORCE)")
        admin.query(f"DROP ROLE IF EXISTS {clone.name}")

    def _forget(self, clone: PostgreSQLClone) -> None:
        clone.connection.close()

    def _drop_templates(self) -> None:
        with self.admin(patient=False) as admin:
            for template in self._templates.values():
                self._drop(admin, template)

    def _session(
        self, clone: PostgreSQLClone, source: Source, role: Role, limits: Limits
    ) -> AnySession:
        return PostgreSQLSession(self, clone, source, role, limits)
