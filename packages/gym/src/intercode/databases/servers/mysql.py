"""MySQL and MariaDB engines, on a server at a URL or a private one.

Each session has a clone, a copy of the template database that holds the source's content. Each
clone has its own account, with privileges on this clone alone. The account has no privileges on
other databases, files, the server or other accounts.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from intercode.databases.base import EngineOptions, Row, SqlActionOutcome, StatementFailure
from intercode.databases.convert import dump, make_views
from intercode.databases.convert.schema import TableSchema
from intercode.databases.servers.database_names import new_name
from intercode.databases.servers.engine import DatabaseServerEngine, parse_url
from intercode.databases.servers.introspection import RelationSchema, mysql_schema, without_definer
from intercode.databases.servers.mysql_client import READ_ONLY, MySQLConnection
from intercode.databases.servers.private_server import start_mariadb
from intercode.databases.servers.session import (
    DatabaseClone,
    DatabaseRelation,
    DatabaseServerSession,
)
from intercode.databases.source import DatabaseSource
from intercode.errors import DatabaseError, UsageError
from intercode.sql_identifiers import quote_identifier
from intercode_sandbox.base import Limits

_PRIVILEGES = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, "
    "CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, "
    "ALTER ROUTINE, TRIGGER"
)
_DROP_SECONDS = 3
_END_SECONDS = 10.0
_FLAGS = ("ssl_disabled", "ssl_verify_cert", "ssl_verify_identity")
_FILES = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
_HARMLESS_COUNTERS = {
    *("Com_select", "Com_change_db", "Com_help", "Com_empty_query", "Com_admin_commands"),
    *("Com_reset_connection", "Com_explain_other"),
}
_STATEMENT_COUNTS = "SHOW SESSION STATUS WHERE Variable_name LIKE 'Com\\_%' AND Value <> '0'"
_TABLES = (
    "SELECT table_name, table_type FROM information_schema.tables "
    "WHERE table_schema = %s AND table_type IN ('BASE TABLE', 'VIEW') ORDER BY table_name"
)
_COLUMNS = (
    "SELECT column_name, column_type FROM information_schema.columns "
    "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"
)
_BATCH = 1000
_UNCHECKED_SETTINGS = (
    "SET foreign_key_checks = 0, unique_checks = 0, "
    "sql_mode = 'NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'"
)

MySQLClone = DatabaseClone[MySQLConnection]


class MySQLSession(DatabaseServerSession[MySQLConnection]):
    """A session on MySQL or MariaDB."""

    dialect = "mysql"
    idle_statement = "DO 0"
    _settings = 0

    def _configure(self) -> None:
        self._settings += 1
        self._connection.query(self._home.settings(not self.is_written, self._seconds))

    def _is_refused(self, failure: StatementFailure) -> bool:
        return failure.code.startswith(READ_ONLY)

    def _strike(self, connection: MySQLConnection, should_disconnect: bool) -> None:
        try:
            self._home.interrupt(connection, should_disconnect)
        except DatabaseError:  # a server that was lost runs no statement
            if not should_disconnect:
                raise
        if should_disconnect:
            connection.cut()

    def _commit(self) -> None:
        self._connection.run("COMMIT")
        self._connection.run("UNLOCK TABLES")

    def _reset_if_unwritten(self) -> bool:
        # The server's own counts of the connection's statements show whether one may have written.
        statement_counts = {
            str(name): int(str(count)) for name, count in self._connection.query(_STATEMENT_COUNTS)
        }
        if statement_counts.pop("Com_set_option", 0) != self._settings:
            return False
        if any(
            not name.startswith("Com_show") for name in statement_counts.keys() - _HARMLESS_COUNTERS
        ):
            return False
        self._connection.reset(self.name)
        return True

    def _relations(self, connection: MySQLConnection) -> list[DatabaseRelation]:
        connection.query(self._home.settings(True, self.limits.timeout))
        return [
            DatabaseRelation(str(row[0]), "view" if row[1] == "VIEW" else "table", row)
            for row in connection.query(_TABLES, self.name)
        ]

    def _read(
        self, connection: MySQLConnection, relation: DatabaseRelation, limits: Limits
    ) -> tuple[Sequence[Row], SqlActionOutcome]:
        try:
            columns = connection.query(_COLUMNS, self.name, relation.name)
        except DatabaseError as error:
            if relation.kind == "table":
                raise
            return (), SqlActionOutcome(
                failure=StatementFailure(str(error))
            )  # the view is too complex to read
        # The columns are listed by name, because ``*`` omits invisible columns.
        column_list = ", ".join(quote_identifier(str(column), "`") for column, _ in columns)
        database, table = (quote_identifier(name, "`") for name in (self.name, relation.name))
        text = f"SELECT {column_list} FROM {database}.{table}"
        return columns, connection.run(text, limits=limits)

    def _schema(self, connection: MySQLConnection, relation: DatabaseRelation) -> RelationSchema:
        return mysql_schema(connection.query, self.name, relation.name, relation.kind)


@dataclass(frozen=True, slots=True)
class MySQLTemplateDatabase:
    """A database with the content of a source, from which clones are copied.

    A clone is created by the texts of the server's own ``SHOW CREATE TABLE`` and by ``INSERT …
    SELECT`` from the template, in one round trip. Unlike ``CREATE TABLE … LIKE``, this method keeps
    the foreign keys, which agents read. Median times in ms on MariaDB 10.11 with 2 cores. The
    columns show the load of a dump, this method, the method LIKE, and the drop of the database:

    =====================  ========  ==========  ======  ======  =======
    database               tables    its dump     this   LIKE    dropped
    =====================  ========  ==========  ======  ======  =======
    concert_singer                4         6.4     5.3     5.2      3.0
    car_1 (512 rows)              6        10.1     8.6     8.3      2.5
    world_1 (5,302 rows)          3        22.5    16.8    17.4      1.7
    =====================  ========  ==========  ======  ======  =======

    Attributes:
        name: The name of the database on the server.
        tables: Statements that create and fill the tables of a clone. The administrator runs them
            in the clone.
        views: Statements that create the views of a clone. The clone's own account runs them.
    """

    name: str
    tables: tuple[str, ...]
    views: tuple[str, ...]


class MySQLEngine(DatabaseServerEngine[MySQLConnection, MySQLTemplateDatabase]):
    """Databases on MySQL or MariaDB.

    Args:
        options: The engine's options; without a URL the server is private.

    Raises:
        UsageError: The URL is malformed, or no server is installed.
        DatabaseError: The server cannot be started or reached.
    """

    name = "mysql"
    dialect = "mysql"
    session = MySQLSession
    leftover_queries = (
        ("SHOW DATABASES LIKE 'ic%'", "DROP DATABASE IF EXISTS `{}`"),
        (
            "SELECT User, Host FROM mysql.user WHERE User LIKE 'ic%'",
            "DROP USER IF EXISTS '{}'@'{}'",
        ),
    )
    database_query = "SHOW DATABASES LIKE %s"

    def __init__(self, options: EngineOptions) -> None:
        self._is_mariadb = True
        self._host = "localhost"
        super().__init__(options, start_mariadb)

    # --- for sessions ------------------------------------------------------------------------

    def settings(self, read_only: bool, seconds: float) -> str:
        """Return the statement that sets the character set, access and time limit of a session.

        Args:
            read_only: Whether transactions start read-only.
            seconds: The time limit in seconds: of each statement on MariaDB, of reads on MySQL.
        """
        flag = "tx_read_only" if self._is_mariadb else "transaction_read_only"
        limit = f"max_statement_time = {seconds}"
        if not self._is_mariadb:
            limit = f"max_execution_time = {max(1, round(seconds * 1000))}"
        return f"SET NAMES utf8mb4, SESSION {flag} = {int(read_only)}, SESSION {limit}"

    def connect_to(self, clone: MySQLClone, for_state: bool = False) -> MySQLConnection:
        """Connect to a clone, and repair its access if necessary; see `session.CloneProvider`."""
        try:
            return self._connect_as(clone.name, clone.password)
        except DatabaseError:  # the agent may have dropped its database or changed its password
            with self.admin(should_wait=False) as admin:
                account = f"'{clone.name}'@'{self._host}'"
                admin.query(f"ALTER USER {account} IDENTIFIED BY '{clone.password}'")
                admin.query(f"CREATE DATABASE IF NOT EXISTS `{clone.name}`")
            return self._connect_as(clone.name, clone.password)

    def interrupt(self, connection: MySQLConnection, should_disconnect: bool) -> None:
        """Kill the statement of a connection; with `should_disconnect`, the whole connection."""
        with self.admin(should_wait=False) as admin:
            _kill(admin, connection, "CONNECTION" if should_disconnect else "QUERY")

    def check_same_server(self, clone: MySQLClone) -> None:
        """Check that the server was not restarted; see `session.CloneProvider`."""
        # The age is measured first, because this thread may be suspended between any two lines.
        age = time.monotonic() - clone.connection.connect_time
        with closing(self._connect(self._connect_args)) as new_connection:
            uptime = int(str(new_connection.query("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]))
        lost_connection = clone.connection
        # A server that starts numbers connections from 1, and counts its uptime in seconds.
        restarted = new_connection.thread <= lost_connection.thread or uptime + 1 < age
        if clone.generation != self.generation or restarted:
            raise DatabaseError("the MySQL server was restarted")

    # --- the server --------------------------------------------------------------------------

    def _parse(self, url: str) -> dict[str, Any]:
        connect_args, url_parts = parse_url(
            url, "MySQL", 3306, "root", "MYSQL_PWD", _FLAGS + _FILES
        )
        if url_parts.path.strip("/"):
            raise UsageError(
                f"leave {url_parts.path!r} from the URL: every episode has a separate database on "
                "the MySQL server, so the URL ends with host and port, such as …@host:3306"
            )
        for flag in connect_args.keys() & _FLAGS:
            connect_args[flag] = connect_args[flag].lower() in ("1", "true", "yes")
        if "unix_socket" in connect_args:
            connect_args["ssl_disabled"] = True
        return connect_args

    def _connect(self, connect_args: Mapping[str, Any]) -> MySQLConnection:
        return MySQLConnection(connect_args)

    def _connect_as(self, name: str, password: str) -> MySQLConnection:
        account = {"user": name, "password": password, "database": name}
        return MySQLConnection({**self._connect_args, **account})

    def _inspect_server(self, admin: MySQLConnection) -> dict[str, Any]:
        self._is_mariadb = admin.is_mariadb
        # Over a network, InterCode does not know the client's address that the server sees.
        self._host = "localhost" if "unix_socket" in self._connect_args else "%"
        version = str(admin.query("SELECT VERSION()")[0][0])
        product = "MariaDB" if admin.is_mariadb else "MySQL"
        return {"engine": self.name, "product": product, "version": version}

    # --- templates and clones ----------------------------------------------------------------

    def _make_empty(self, admin: MySQLConnection) -> MySQLClone:
        name, password = new_name(), secrets.token_urlsafe(18)
        account = f"'{name}'@'{self._host}'"
        admin.query(
            f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci;"
            f"CREATE USER {account} IDENTIFIED BY '{password}';"
            f"GRANT {_PRIVILEGES} ON `{name}`.* TO {account}"
        )
        return MySQLClone(name, password, self.generation, self._connect_as(name, password))

    def _load(
        self, admin: MySQLConnection, clone: MySQLClone, source: DatabaseSource
    ) -> MySQLTemplateDatabase:
        if source.kind == "dump":
            for statement in dump.section(dump.read(source.path), source.name):
                clone.connection.query(without_definer(statement))
        else:
            self._convert(clone.connection, source)
        return _describe_template(clone.connection, clone.name)

    def _insert(self, connection: MySQLConnection, table: TableSchema, rows: Iterator[Row]) -> None:
        marks = ", ".join(["%s"] * len(table.columns))
        while batch := list(itertools.islice(rows, _BATCH)):
            connection.insert(
                f"INSERT INTO {quote_identifier(table.name, '`')} VALUES ({marks})", batch
            )

    def _copy(self, admin: MySQLConnection, template: MySQLTemplateDatabase) -> MySQLClone:
        clone = self._make_empty(admin)
        try:
            admin.query(";".join((f"USE `{clone.name}`", _UNCHECKED_SETTINGS, *template.tables)))
            _make_views(clone.connection, template, clone.name)
            clone.connection.reset(clone.name)
        except DatabaseError:
            self._drop(admin, clone)
            raise
        return clone

    def _drop(self, admin: MySQLConnection, clone: MySQLClone) -> None:
        # The connection is ended first, because its locks would prevent the drop of the database.
        # Its prepared transactions can be rolled back only after the server has noticed this end.
        deadline, pause = time.monotonic() + _END_SECONDS, 0.001
        while _kill(admin, clone.connection, "CONNECTION") and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        clone.connection.close()
        if self._is_ours:
            _roll_back_prepared(admin)
        self._drop_named(admin, clone.name)

    def _drop_named(self, admin: MySQLConnection, name: str) -> None:
        admin.query(
            f"SET SESSION lock_wait_timeout = {_DROP_SECONDS}, "
            f"innodb_lock_wait_timeout = {_DROP_SECONDS};"
            f"DROP USER IF EXISTS '{name}'@'{self._host}'; DROP DATABASE IF EXISTS `{name}`"
        )


def _kill(admin: MySQLConnection, connection: MySQLConnection, kill_target: str) -> bool:
    """Kill a connection or its query, unless another account has the connection's number now.

    Args:
        admin: The administrator's connection, which kills.
        connection: The connection to kill.
        kill_target: ``CONNECTION`` or ``QUERY``.

    Returns:
        Whether the connection existed.
    """
    process_query = "SELECT 1 FROM information_schema.processlist WHERE id = %s AND user = %s"
    if not admin.query(process_query, connection.thread, connection.user):
        return False
    admin.run(f"KILL {kill_target} {connection.thread}")
    return True


def _roll_back_prepared(admin: MySQLConnection) -> None:
    """Roll back transactions that agents have prepared (XA), which outlive their connections.

    The server refuses to roll back transactions of open sessions, so these remain.
    """
    for _, length, _, identifier in admin.query("XA RECOVER"):
        name = identifier if isinstance(identifier, bytes) else str(identifier).encode()
        end = int(str(length))
        admin.run(f"XA ROLLBACK X'{name[:end].hex()}', X'{name[end:].hex()}'")


def _describe_template(connection: MySQLConnection, name: str) -> MySQLTemplateDatabase:
    """Return a database with content as a template, with the server's statements that create it."""
    tables: list[str] = []
    views: list[str] = []
    for table, kind in connection.query(f"SHOW FULL TABLES FROM `{name}`"):
        quoted_table = quote_identifier(table, "`")
        _, text, *_ = connection.query(f"SHOW CREATE TABLE `{name}`.{quoted_table}")[0]
        if kind == "VIEW":
            views.append(without_definer(text))
            continue
        column_rows = connection.query(f"SHOW COLUMNS FROM `{name}`.{quoted_table}")
        stored_columns = [row[0] for row in column_rows if "GENERATED" not in row[5].upper()]
        columns = ", ".join(quote_identifier(column, "`") for column in stored_columns)
        tables += [
            text,
            f"INSERT INTO {quoted_table} ({columns}) SELECT {columns} FROM `{name}`.{quoted_table}",
        ]
    return MySQLTemplateDatabase(name, tuple(tables), tuple(views))


def _make_views(connection: MySQLConnection, template: MySQLTemplateDatabase, name: str) -> None:
    """Create the views of a clone, in an order in which each can be created."""
    views = [view.replace(f"`{template.name}`", f"`{name}`") for view in template.views]
    if problems := make_views(views, connection.failure_message):
        raise connection.refusal(next(iter(problems.values())))
