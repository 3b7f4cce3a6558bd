"""MySQL and MariaDB: a server at a URL, or a private one.

Each session has a clone of the source's template, and an account of its own with rights on that
clone alone: none on other databases, on files, on the server or on other accounts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from intercode.databases.base import EngineOptions, Role
from intercode.databases.servers import mysql_template, naming
from intercode.databases.servers.engine import ServerEngine
from intercode.databases.servers.mysql_client import MySQLConnection
from intercode.databases.servers.mysql_session import MySQLClone, MySQLSession
from intercode.databases.servers.mysql_template import Template
from intercode.databases.servers.private import start_mariadb
from intercode.databases.servers.session import AnySession
from intercode.databases.source import Source
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.sandbox.base import Limits

_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, "
    "CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, "
    "ALTER ROUTINE, TRIGGER"
)
_DROP_SECONDS = 3
_END_SECONDS = 10.0
_FLAGS = {"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity"}
_FILES = {"unix_socket", "ssl_ca", "ssl_cert", "ssl_key"}


class MySQLEngine(ServerEngine[MySQLConnection, MySQLClone, Template]):
    """Databases on MySQL or MariaDB.

    Args:
        options: The URL, if it has one.

    Raises:
        UsageError: The URL is malformed, or nothing is installed.
        DatabaseError: The server cannot be started or reached.
    """

    name = "mysql"
    dialect = "mysql"

    def __init__(self, options: EngineOptions) -> None:
        self._is_mariadb = True
        self._host = "localhost"
        super().__init__(options, start_mariadb)

    # --- for sessions ------------------------------------------------------------------------

    def settings(self, read_only: bool, seconds: float) -> str:
        """The statement with which a session begins, or goes on."""
        flag = "tx_read_only" if self._is_mariadb else "transaction_read_only"
        limit = f"max_statement_time = {seconds}"
        if not self._is_mariadb:
            limit = f"max_execution_time = {max(1, round(seconds * 1000))}"
        return f"SET NAMES utf8mb4, SESSION {flag} = {int(read_only)}, SESSION {limit}"

    def connect_to(self, clone: MySQLClone) -> MySQLConnection:
        """Connect to a clone with its own account.

        Raises:
            Unreachable: The server does not answer.
            DatabaseError: It refuses.
        """
        account = {"user": clone.name, "password": clone.password, "database": clone.name}
        try:
            return MySQLConnection({**self._connect_args, **account})
        except DatabaseError:  # the agent can drop its database and change its password
            with self.admin(patient=False) as admin:
                admin.query(f"ALTER USER {self._account(clone)} IDENTIFIED BY '{clone.password}'")
                admin.query(f"CREATE DATABASE IF NOT EXISTS `{clone.name}`")
            return MySQLConnection({**self._connect_args, **account})

    def _account(self, clone: MySQLClone) -> str:
        return f"'{clone.name}'@'{self._host}'"

    def interrupt(self, connection: MySQLConnection, whole: bool) -> None:
        """Kill what a connection runs, or the whole connection."""
        with self.admin(patient=False) as admin:
            _kill(admin, connection, "CONNECTION" if whole else "QUERY")

    def check_still_there(self, clone: MySQLClone) -> None:
        """See whether the server is the one that a clone was made on, and has not been restarted.

        Raises:
            Unreachable: It does not answer.
            DatabaseError: It was restarted.
        """
        age = time.monotonic() - clone.connection.since  # first: this thread may be stopped here
        with closing(self._connect(self._connect_args)) as fresh:
            uptime = int(str(fresh.query("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]))
        lost = clone.connection
        # A server counts its connections from when it was started, and whole seconds since then.
        restarted = fresh.thread <= lost.thread or uptime + 1 < age
        if clone.generation != self.generation or restarted:
            raise DatabaseError("the MySQL server was restarted")

    # --- the server --------------------------------------------------------------------------

    def _parse(self, url: str) -> dict[str, Any]:
        parts = urlsplit(url)
        if parts.path.strip("/"):
            raise UsageError("the URL of a MySQL server names no database: …@host:3306")
        try:
            port = parts.port or 3306
        except ValueError:
            raise UsageError("the URL of a MySQL server has no valid port") from None
        found: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": port,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
        }
        for key, value in parse_qsl(parts.query):
            if key not in _FLAGS | _FILES:
                raise UsageError(f"the URL of a MySQL server has no option {key!r}")
            found[key] = value.lower() in ("1", "true", "yes") if key in _FLAGS else value
        if "unix_socket" in found:
            found["ssl_disabled"] = True
        return found

    def _connect(self, connect_args: Mapping[str, Any]) -> MySQLConnection:
        return MySQLConnection(connect_args)

    def _look(self, admin: MySQLConnection) -> dict[str, Any]:
        self._is_mariadb = admin.is_mariadb
        # Over the network nobody knows from which address the server sees us come.
        self._host = "localhost" if "unix_socket" in self._connect_args else "%"
        version = str(admin.query("SELECT VERSION()")[0][0])
        return {
            "engine": self.name,
            "product": "MariaDB" if admin.is_mariadb else "MySQL",
            "version": version,
        }

    def _sweep(self, admin: MySQLConnection) -> None:
        for (name,) in admin.query("SHOW DATABASES LIKE 'ic%'"):
            if naming.is_left_over(str(name)):
                admin.run(f"DROP DATABASE IF EXISTS `{name}`")
        for name, host in admin.query("SELECT User, Host FROM mysql.user WHERE User LIKE 'ic%'"):
            if naming.is_left_over(str(name)):
                admin.run(f"DROP USER IF EXISTS '{name}'@'{host}'")

    # --- templates and clones ----------------------------------------------------------------

    def _fill(self, source: Source) -> Template:
        self._say(f"loading {source.name} into {self.name}")
        with self.admin() as admin:
            clone = self._make_database(admin)
            try:
                return mysql_template.fill(clone.connection, source, clone.name, self._progress)
            except TaskError:
                self._drop(admin, clone)
                raise
            finally:
                clone.connection.close()

    def _clone(self, template: Template, source: Source) -> MySQLClone:
        with self.admin() as admin:
            clone = self._make_database(admin)
            try:
                template.make_tables(admin, clone.name)
                template.make_views(clone.connection, clone.name)
                clone.connection.reset(clone.name)
            except DatabaseError as error:
                self._drop(admin, clone)
                if not admin.query("SHOW DATABASES LIKE %s", template.name):
                    raise LookupError(template.name) from error
                raise
            return clone

    def _make_database(self, admin: MySQLConnection) -> MySQLClone:
        """An empty database with an account of its own, and a connection to it."""
        name, password = naming.new(), secrets.token_urlsafe(18)
        account = f"'{name}'@'{self._host}'"
        admin.query(
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci;"
            f"CREATE USER {account} IDENTIFIED BY '{password}';"
            f"GRANT {_RIGHTS} ON `{name}`.* TO {account}"
        )
        account_args = {"user": name, "password": password, "database": name}
        connection = MySQLConnection({**self._connect_args, **account_args})
        return MySQLClone(name, password, self.generation, connection)

    def _drop(self, admin: MySQLConnection, clone: MySQLClone) -> None:
        # First the connection: a lock that it holds would keep the database from being dropped, and
        # what it has prepared can be rolled back only when the server has seen its end.
        deadline, pause = time.monotonic() + _END_SECONDS, 0.001
        while _kill(admin, clone.connection, "CONNECTION") and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        clone.connection.close()
        if self._is_ours:
            _roll_back_prepared(admin)
        admin.query(self._dropping(clone.name))

    def _dropping(self, name: str) -> str:
        return (
            f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}, "
            f"innodb_lock_wait_timeout = {_DROP_SECONDS};"
            f"DROP USER IF EXISTS '{name}'@'{self._host}'; DROP DATABASE IF EXISTS `{name}`"
        )

    def _forget(self, clone: MySQLClone) -> None:
        clone.connection.close()

    def _drop_templates(self) -> None:
        with self.admin(patient=False) as admin:
            for template in self._templates.values():
                admin.query(self._dropping(template.name))

    def _session(self, clone: MySQLClone, source: Source, role: Role, limits: Limits) -> AnySession:
        return MySQLSession(self, clone, source, role, limits)


def _kill(admin: MySQLConnection, connection: MySQLConnection, what: str) -> bool:
    """Kill a connection or its query, but nobody else's that has its number since a restart.

    Returns:
        Whether the connection was there.
    """
    found = "SELECT 1 FROM information_schema.processlist WHERE id = %s AND user = %s"
    if not admin.query(found, connection.thread, connection.user):
        return False
    admin.run(f"KILL {what} {connection.thread}")
    return True


def _roll_back_prepared(admin: MySQLConnection) -> None:
    """End transactions that agents have prepared (XA): they outlive their connection.

    Those of a session that is open are not concerned: the server refuses to touch them.
    """
    for _, length, _, data in admin.query("XA RECOVER"):
        name = data if isinstance(data, bytes) else str(data).encode()
        end = int(str(length))
        admin.run(f"XA ROLLBACK X'{name[:end].hex()}', X'{name[end:].hex()}'")
