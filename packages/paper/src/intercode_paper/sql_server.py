"""The databases of a replay on a MySQL or MariaDB server, under their original names, as in 2023.

A dump is loaded unchanged. A private server is deleted after the replay. On a user's server, the
replay drops only the databases and the account that it created, and touches nothing else.

Values and errors have the form that the driver of 2023 gave them. MariaDB differs from MySQL 8;
where the recorded rewards show a difference, this module compensates for it. For example, the
module stops MariaDB from sorting groups, and refuses the queries that MySQL 8 refused by its mode
``ONLY_FULL_GROUP_BY``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from sqlglot import TokenType
from sqlglot.dialects.mysql import MySQL

from intercode.databases import engine_name, get_engine
from intercode.databases.convert.dump import read, section
from intercode.databases.servers import driver
from intercode.databases.servers.database_names import new_name
from intercode.databases.servers.engine import parse_url
from intercode.databases.servers.private_server import PrivateDatabaseServer, start_mariadb
from intercode.databases.source import find, names
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.sql_identifiers import quote_identifier
from intercode_paper.sql_databases import (
    MAX_ROWS,
    TIMEOUT,
    USES,
    Answer,
    EngineDatabases,
    ReplayDatabases,
    error_observation,
    rows,
)
from intercode_paper.sql_group_by import PARSE_ERRORS, QueryRelation, Tables, refusal
from intercode_sandbox.interruption import reraise_callers


def default_engine() -> str:
    """Return ``mysql`` if MariaDB or MySQL is installed, otherwise ``sqlite``."""
    with suppress(UsageError):
        from intercode.databases.servers.private_server import mysql_recipe

        mysql_recipe()
        return "mysql"
    return "sqlite"


def open_databases(
    engine: str,
    path: Path,
    dialect: str = "mysql",
    on_message: Callable[[str], None] | None = None,
) -> ReplayDatabases:
    """Open databases in their initial state; the caller closes them.

    For MySQL, a dump is loaded unchanged, under the original names of its databases. In all other
    cases, a `DatabaseEngine` opens the databases.

    Args:
        engine: The name of an engine, or the URL of a server.
        path: The folder or the file with the databases.
        dialect: The dialect of actions and golds.
        on_message: A function for messages about long operations, and about risks for the result.

    Raises:
        UsageError: The engine is unknown, or its server cannot be used.
        DatabaseError: The engine failed.
    """
    if engine_name(engine) == "mysql" and _is_dump(path):
        return MySQLDatabases(path, engine if "://" in engine else None, on_message)
    database_engine = get_engine(engine, on_message)
    return EngineDatabases(database_engine, partial(find, path), dialect, owned=True)


def _is_dump(path: Path) -> bool:
    return path.is_file() and find(path, names(path)[0]).kind == "dump"


_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
"""Options that the URL of a server may have."""
_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, INDEX, ALTER, REFERENCES, CREATE VIEW, "
    "SHOW VIEW, CREATE TEMPORARY TABLES, LOCK TABLES, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, "
    "TRIGGER"
)
"""The privileges that the recorded actions need. The replay's account has them only in the replay's
databases. The agent of 2023 was the server's administrator."""


class MySQLDatabases:
    """The databases of a dump on a MySQL or MariaDB server.

    Args:
        dump: The dump, written by ``mysqldump --databases``.
        url: The URL of a server, with an account that can create databases and accounts. None:
            start a private MariaDB, or MySQL if only MySQL is installed.
        on_message: A function for messages about risks for the result.

    Raises:
        UsageError: No server or no driver is installed, the URL is malformed, or the server
            already has a database of the same name.
        DatabaseError: The server failed.
    """

    def __init__(
        self, dump: Path, url: str | None = None, on_message: Callable[[str], None] | None = None
    ) -> None:
        self._server: PrivateDatabaseServer | None = None
        if url is None:
            self._server = start_mariadb()
            self._admin: dict[str, Any] = self._server.connect_args
        else:
            self._admin, _ = parse_url(url, "MySQL", 3306, "root", "MYSQL_PWD", _OPTIONS)
        self._account = new_name()
        self._host = "localhost" if "unix_socket" in self._admin else "%"
        self._password = secrets.token_urlsafe(18)
        self._database_names: list[str] = []
        self.is_mariadb = True
        self.engine = ""
        try:
            self._load(dump, on_message or (lambda text: None))
        except BaseException:
            self.close()
            raise

    def connect(self) -> MySQLConnection:
        """Open a connection that sees all committed changes by earlier connections."""
        args = {**self._admin, "user": self._account, "password": self._password}
        return MySQLConnection(args, self.is_mariadb)

    def close(self) -> None:
        """Drop the created databases and the account, or stop the private server. Idempotent.

        Raises:
            DatabaseError: The user's server failed; a second call drops the remaining databases.
        """
        server, self._server = self._server, None
        if server is not None:
            server.close()
        elif self._database_names:
            with _cursor(self._admin) as cursor:
                cursor.execute(f"DROP USER IF EXISTS '{self._account}'@'{self._host}'")
                while self._database_names:
                    cursor.execute(
                        f"DROP DATABASE IF EXISTS {quote_identifier(self._database_names[-1], '`')}"
                    )
                    self._database_names.pop()
        self._database_names = []

    def _load(self, dump: Path, on_message: Callable[[str], None]) -> None:
        databases = names(dump)
        dump_text = read(dump)
        with _cursor(self._admin) as cursor:
            cursor.execute("SELECT VERSION(), @@lower_case_table_names")
            version, lower_case_mode = cursor.fetchone()
            self.is_mariadb = "mariadb" in version.lower()
            self.engine = f"{'MariaDB' if self.is_mariadb else 'MySQL'} {version.split('-')[0]}"
            if lower_case_mode == 0:
                on_message(
                    "this server tells upper from lower case in names of tables "
                    "(lower_case_table_names=0), unlike that of 2023: many queries will fail"
                )
            self._refuse_taken(cursor, databases)
            for name in databases:
                cursor.execute(
                    f"CREATE DATABASE {quote_identifier(name, '`')} "
                    "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
                )
                self._database_names.append(name)
            self._grant(cursor)
        # Each database gets a new session, because its dump changes the session's settings.
        for name in databases:
            with _cursor({**self._admin, "database": name}) as cursor:
                for statement in section(dump_text, name):
                    cursor.execute(statement)
                _analyse(cursor)

    def _refuse_taken(self, cursor: Any, databases: tuple[str, ...]) -> None:
        cursor.execute("SHOW DATABASES")
        existing_names = {name.lower() for (name,) in cursor.fetchall()}
        if conflicts := [name for name in databases if name.lower() in existing_names]:
            raise UsageError(
                f"the server already has {', '.join(conflicts)}: the replay needs databases of "
                "these names and drops them at its end. Drop them, or use another server"
            )

    def _grant(self, cursor: Any) -> None:
        account = f"'{self._account}'@'{self._host}'"
        cursor.execute(f"CREATE USER {account} IDENTIFIED BY '{self._password}'")
        for name in self._database_names:
            pattern = name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
            cursor.execute(f"GRANT {_RIGHTS} ON {quote_identifier(pattern, '`')}.* TO {account}")
        # As in 2023, the account may read all data of a private server. A private server has no
        # data but that of the replay.
        if self._server is not None:
            cursor.execute(f"GRANT SELECT, SHOW DATABASES ON *.* TO {account}")


def _analyse(cursor: Any) -> None:
    """Compute the statistics of all tables now.

    If the server computed them later, query plans and the order of rows would change.
    """
    cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
    if quoted_tables := [quote_identifier(table_name, "`") for table_name, _ in cursor.fetchall()]:
        cursor.execute(f"ANALYZE TABLE {', '.join(quoted_tables)}")


@contextmanager
def _cursor(args: dict[str, Any]) -> Iterator[Any]:
    pymysql = driver("MySQL")
    try:
        connection = pymysql.connect(**args, charset="utf8mb4", autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            yield cursor
    except pymysql.err.MySQLError as error:
        raise DatabaseError(f"error of the server: {error}") from error


_MODE = (
    "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
"""The default modes of MySQL 8 without ``ONLY_FULL_GROUP_BY``, which this package itself checks."""
_FULL_GROUP_BY = "ONLY_FULL_GROUP_BY"
_READS = re.compile(r"\s*(?:SELECT|SHOW|DESC|DESCRIBE|EXPLAIN|USE|SET)\b", re.IGNORECASE)
_CONNECTION_LOST_CODES = (1927, 2006, 2013, 2055)


class MySQLConnection:
    """A connection to a server, with the behaviour of the server and the driver of 2023.

    Args:
        args: The arguments for the driver's function ``connect``.
        is_mariadb: Whether the server is MariaDB, which must behave like MySQL 8.
    """

    def __init__(self, args: dict[str, Any], is_mariadb: bool) -> None:
        self._args = args
        self._is_mariadb = is_mariadb
        self._errors = driver("MySQL").err
        self._database = ""
        self._tables: dict[str, Tables] = {}
        self._full_group_by = True
        self._had_rows = False
        self._owes = False
        """Whether an answer is unread, because an exception interrupted the wait for it."""
        self._connection: Any = None
        self._open()

    def use(self, database: str) -> None:
        """Select the database of a task.

        Raises:
            TaskError: The database does not exist.
            DatabaseError: The server failed.
        """
        answer = self.execute(f"use {database}")
        if isinstance(answer, str):
            raise TaskError(f"database {database!r} cannot be used: {answer}")

    def execute(self, sql: str) -> Answer:
        """Execute one statement, and return the answer.

        Raises:
            DatabaseError: The server was lost.
        """
        # For an empty text, the driver of 2023 did nothing. The client then fetched the previous
        # result again, which had no rows left.
        if not sql:
            return [] if self._had_rows else None
        if self._owes:
            self._reopen()
        self._owes = True
        try:
            answer = self._run(sql)
        except self._errors.MySQLError as error:
            reraise_callers(error)
            if not self._connection.open or error.args[0] in _CONNECTION_LOST_CODES:
                # The agent's KILL or the time limit may have ended the connection. `_reopen` raises
                # an error if the server itself is dead.
                self._reopen()
            answer = error_observation(str(error.args[-1]))
        except UnicodeEncodeError as error:  # a lone surrogate cannot be encoded
            answer = error_observation(str(error))
        self._owes = False
        self._had_rows = isinstance(answer, list)
        return answer

    def close(self) -> None:
        """Close the connection, which loses uncommitted changes. Idempotent."""
        with suppress(self._errors.Error):  # the connection may be closed already
            self._connection.close()

    def _run(self, sql: str) -> Answer:
        if not self._is_mariadb:
            return self._query(sql)
        if "sql_mode" in sql.lower():
            return self._with_mode(sql)
        tables = self._current_tables() if self._full_group_by else {}
        answer = self._query(to_mysql8(sql))  # as on MySQL, an unknown name is reported first
        reason = refusal(sql, tables, self._database) if self._full_group_by else None
        return answer if reason is None else error_observation(reason)

    def _query(self, sql: str) -> Answer:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            answer = None if cursor.description is None else rows(cursor.fetchall())
        if match := USES.match(sql):
            self._database = match[1].lower()
        if not _READS.match(sql):
            self._tables.clear()
        return answer

    def _with_mode(self, sql: str) -> Answer:
        """Execute a statement that reads or sets ``sql_mode``, and show it the mode of MySQL 8."""
        if self._full_group_by:
            self._query(f"SET sql_mode = CONCAT(@@sql_mode, ',{_FULL_GROUP_BY}')")
        try:
            return self._query(sql)
        finally:
            self._full_group_by = _FULL_GROUP_BY in str(self._query("SELECT @@sql_mode"))
            self._query(f"SET sql_mode = REPLACE(@@sql_mode, '{_FULL_GROUP_BY}', '')")

    def _current_tables(self) -> Tables:
        if self._database not in self._tables:
            with self._connection.cursor() as cursor:
                self._tables[self._database] = read_tables(cursor, self._database)
        return self._tables[self._database]

    def _open(self) -> None:
        pymysql = driver("MySQL")
        try:
            self._connection = pymysql.connect(
                **self._args,
                charset="utf8mb4",
                autocommit=False,
                local_infile=False,
                conv=conversions(),
                read_timeout=TIMEOUT + 5,
            )
        except self._errors.MySQLError as error:
            raise DatabaseError(f"the server was lost: {error}") from error
        except RuntimeError as error:  # the driver needs the package `cryptography`
            raise UsageError(f"cannot connect to the server: {error}") from error
        settings_sql = f"SET max_execution_time = {TIMEOUT * 1000:.0f}"
        if self._is_mariadb:
            settings_sql = f"SET max_statement_time = {TIMEOUT}, sql_mode = '{_MODE}', {_MARIADB}"
        self._query(f"{settings_sql}, sql_select_limit = {MAX_ROWS}")

    def _reopen(self) -> None:
        self.close()
        self._open()
        if self._database:
            self._query(f"USE {quote_identifier(self._database, '`')}")


_GROUPS = re.compile(r"\bGROUP\s+BY\b", re.IGNORECASE)
_INTERSECTS = re.compile(r"\s*SELECT\b.*\b(?:INTERSECT|EXCEPT)\b", re.IGNORECASE | re.DOTALL)
_ANY_VALUE = re.compile(r"\bANY_VALUE\s*(?=\()", re.IGNORECASE)
_MARIADB = "tmp_memory_table_size = 0"
"""A setting of each connection to MariaDB. With temporary tables in memory, the server would order
ties by addresses, which differ from process to process."""


def to_mysql8(sql: str) -> str:
    """Rewrite a statement for MariaDB, without differences from MySQL 8 that recorded runs show."""
    sql = remove_group_order(_ANY_VALUE.sub("", sql))
    if _INTERSECTS.match(sql):
        # With temporary tables on disk (`_MARIADB`), MariaDB 10.11 loses rows of such a subquery.
        return f"SET STATEMENT tmp_memory_table_size = 16777216 FOR {sql}"
    return sql


@lru_cache(maxsize=8192)
def remove_group_order(sql: str) -> str:
    """Rewrite a query so that its groups come in the order of their first rows, as on MySQL 8.

    A query with ``ORDER BY`` stays unchanged, and so do set operations and ``WITH ROLLUP``.

    >>> remove_group_order("SELECT a FROM t GROUP BY a LIMIT 3")
    'SELECT a FROM t GROUP BY a ORDER BY NULL LIMIT 3'
    """
    if not _GROUPS.search(sql):
        return sql
    try:
        tokens = MySQL().tokenize(sql)
    except PARSE_ERRORS:
        return sql
    depth, is_grouped, group_end = 0, False, len(sql)
    for token in tokens:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth:
            continue
        if token.token_type in (
            TokenType.ORDER_BY,
            TokenType.UNION,
            TokenType.INTERSECT,
            TokenType.EXCEPT,
            TokenType.ROLLUP,
        ):
            return sql
        is_grouped = is_grouped or token.token_type == TokenType.GROUP_BY
        if is_grouped and token.token_type in (
            TokenType.LIMIT,
            TokenType.SEMICOLON,
            TokenType.FOR,
            TokenType.INTO,
        ):
            group_end = min(group_end, token.start)
    return (
        f"{sql[:group_end].rstrip()} ORDER BY NULL {sql[group_end:]}".rstrip()
        if is_grouped
        else sql
    )


def read_tables(cursor: Any, database: str) -> Tables:
    """Return the tables of a database, with their columns and their unique keys without NULL.

    Args:
        cursor: A cursor of the driver.
        database: The name of the database.
    """
    columns: dict[str, dict[str, str]] = {}
    cursor.execute(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
        (database,),
    )
    for table, column in cursor.fetchall():
        columns.setdefault(table.lower(), {})[column.lower()] = column
    keys: dict[tuple[str, str], set[str]] = {}
    cursor.execute(
        "SELECT table_name, index_name, column_name, nullable FROM information_schema.statistics "
        "WHERE table_schema = %s AND non_unique = 0",
        (database,),
    )
    nullable_keys = set()
    for table, index_name, column, nullability in cursor.fetchall():
        keys.setdefault((table.lower(), index_name), set()).add(column.lower())
        if nullability == "YES":
            nullable_keys.add((table.lower(), index_name))
    return {
        table: QueryRelation(
            f"{database}.{table}",
            column_names,
            tuple(
                frozenset(key)
                for index_id, key in keys.items()
                if index_id[0] == table and index_id not in nullable_keys
            ),
        )
        for table, column_names in columns.items()
    }


def conversions() -> dict[Any, Any]:
    """Return PyMySQL's conversions of values, adapted to mysql-connector, the driver of 2023."""
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions as default_conversions

    custom_conversions: dict[Any, Any] = dict(default_conversions)
    custom_conversions[FIELD_TYPE.BIT] = _bits
    for field_type, value_type in (
        (FIELD_TYPE.DATE, date),
        (FIELD_TYPE.DATETIME, datetime),
        (FIELD_TYPE.TIMESTAMP, datetime),
    ):
        custom_conversions[field_type] = _valid_date_conversion(
            default_conversions[field_type], value_type
        )
    return custom_conversions


def _bits(value: bytes | str) -> int:
    data = value.encode("latin-1") if isinstance(value, str) else value
    return int.from_bytes(data, "big")


def _valid_date_conversion(convert: Callable[[Any], Any], value_type: type) -> Callable[[Any], Any]:
    """Return a conversion that returns None for an impossible date, such as ``0000-00-00``."""

    def convert_date(value: Any) -> Any:
        date_value = convert(value)
        return date_value if isinstance(date_value, value_type) else None

    return convert_date
