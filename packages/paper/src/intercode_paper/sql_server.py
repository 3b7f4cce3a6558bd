"""The databases of a replay; on a MySQL or MariaDB server they have their own names, as in 2023.

A dump is loaded as it is. A private server is thrown away afterwards; on another one, only the
databases that were made are dropped, and nothing else is touched.

Values and errors come out as the 2023 driver gave them. Where MariaDB differs from MySQL 8, and
the recorded rewards show it, the difference is made up for: groups come unsorted, and a query is
refused that ``ONLY_FULL_GROUP_BY`` refused.
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
from intercode.databases.servers.engine import parse_url
from intercode.databases.servers.names import new_name
from intercode.databases.servers.private import PrivateServer, start_mariadb
from intercode.databases.source import find, names
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.syntax import quoted
from intercode_paper.sql_databases import (
    MAX_ROWS,
    TIMEOUT,
    USES,
    Answer,
    Databases,
    EngineDatabases,
    error_observation,
    rows,
)
from intercode_paper.sql_group_by import PARSE_ERRORS, Relation, Tables, refusal
from intercode_sandbox.interruption import reraise_callers


def usual_engine() -> str:
    """Return ``mysql`` where its server and driver are installed, else ``sqlite``."""
    with suppress(UsageError):
        from intercode.databases.servers.private import mysql_recipe

        mysql_recipe()
        return "mysql"
    return "sqlite"


def open_databases(
    engine: str,
    place: Path,
    dialect: str = "mysql",
    tell: Callable[[str], None] | None = None,
) -> Databases:
    """Open pristine databases; the caller closes them.

    A dump goes into MySQL as it is, under its own names. All else is opened by an `Engine`.

    Args:
        engine: An engine's name, or a server's URL.
        place: The folder or file that holds the databases.
        dialect: The language of actions and golds.
        tell: Called with messages about long work, and about risks for the result.

    Raises:
        UsageError: There is no such engine, or its server cannot be used.
        DatabaseError: The engine failed.
    """
    if engine_name(engine) == "mysql" and _is_dump(place):
        return MySQLDatabases(place, engine if "://" in engine else None, tell)
    database_engine = get_engine(engine, tell)
    return EngineDatabases(database_engine, partial(find, place), dialect, owned=True)


def _is_dump(place: Path) -> bool:
    return place.is_file() and find(place, names(place)[0]).kind == "dump"


_OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
"""Options of a server's URL."""
_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, INDEX, ALTER, REFERENCES, CREATE VIEW, "
    "SHOW VIEW, CREATE TEMPORARY TABLES, LOCK TABLES, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, "
    "TRIGGER"
)
"""In 2023 the agent was the administrator; its actions need these rights, in its databases."""


class MySQLDatabases:
    """A server with the databases of a dump.

    Args:
        dump: The dump, as `mysqldump --databases` writes it.
        url: A server's, with an account that may make databases and accounts; None: a private
            MariaDB is started.
        tell: Called with messages about risks for the result.

    Raises:
        UsageError: No server is installed; or the one at the URL has a database of such a name.
        DatabaseError: The server failed.
    """

    def __init__(
        self, dump: Path, url: str | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._server: PrivateServer | None = None
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
            self._load(dump, tell or (lambda text: None))
        except BaseException:
            self.close()
            raise

    def connect(self) -> MySQLConnection:
        """Open a connection; it finds the state that the earlier ones have left."""
        args = {**self._admin, "user": self._account, "password": self._password}
        return MySQLConnection(args, self.is_mariadb)

    def close(self) -> None:
        """Drop the databases and the account; end the server, if it is ours. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        elif self._database_names:
            with _cursor(self._admin) as cursor:
                cursor.execute(f"DROP USER IF EXISTS '{self._account}'@'{self._host}'")
                while self._database_names:
                    cursor.execute(
                        f"DROP DATABASE IF EXISTS {quoted(self._database_names[-1], '`')}"
                    )
                    self._database_names.pop()
        self._database_names = []

    def _load(self, dump: Path, tell: Callable[[str], None]) -> None:
        databases = names(dump)
        text = read(dump)
        with _cursor(self._admin) as cursor:
            cursor.execute("SELECT VERSION(), @@lower_case_table_names")
            version, lower_case = cursor.fetchone()
            self.is_mariadb = "mariadb" in version.lower()
            self.engine = f"{'MariaDB' if self.is_mariadb else 'MySQL'} {version.split('-')[0]}"
            if lower_case == 0:
                tell(
                    "this server tells upper from lower case in names of tables "
                    "(lower_case_table_names=0), unlike that of 2023: many queries will fail"
                )
            self._refuse_taken(cursor, databases)
            for name in databases:
                cursor.execute(
                    f"CREATE DATABASE {quoted(name, '`')} "
                    "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
                )
                self._database_names.append(name)
            self._grant(cursor)
        for name in databases:  # each in a session of its own: the dump changes its settings
            with _cursor({**self._admin, "database": name}) as cursor:
                for statement in section(text, name):
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
            cursor.execute(f"GRANT {_RIGHTS} ON {quoted(pattern, '`')}.* TO {account}")
        if self._server is not None:  # it holds nothing else, and all of it was seen in 2023
            cursor.execute(f"GRANT SELECT, SHOW DATABASES ON *.* TO {account}")


def _analyse(cursor: Any) -> None:
    """Count the tables' rows now: plans, and with them the order of rows, would change later."""
    cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
    if tables := [quoted(name, "`") for name, _ in cursor.fetchall()]:
        cursor.execute(f"ANALYZE TABLE {', '.join(tables)}")


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
"""MySQL 8's own modes, but for the one that is decided here."""
_FULL_GROUP_BY = "ONLY_FULL_GROUP_BY"
_READS = re.compile(r"\s*(?:SELECT|SHOW|DESC|DESCRIBE|EXPLAIN|USE|SET)\b", re.IGNORECASE)
_CONNECTION_LOST_CODES = (1927, 2006, 2013, 2055)


class MySQLConnection:
    """A connection to a server that behaves as the one of 2023.

    Args:
        args: The arguments of the driver's ``connect``.
        is_mariadb: Whether MariaDB is to behave as MySQL 8.
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
        """Whether an answer is still to come: its wait was interrupted."""
        self._connection: Any = None
        self._open()

    def use(self, database: str) -> None:
        """Go to a task's database."""
        answer = self.execute(f"use {database}")
        if isinstance(answer, str):
            raise TaskError(f"database {database!r} cannot be used: {answer}")

    def execute(self, sql: str) -> Answer:
        """Run one statement."""
        if not sql:  # the driver did nothing, and the old result had no further rows
            return [] if self._had_rows else None
        if self._owes:
            self._reopen()
        self._owes = True
        try:
            answer = self._run(sql)
        except self._errors.MySQLError as error:
            reraise_callers(error)
            if not self._connection.open or error.args[0] in _CONNECTION_LOST_CODES:
                self._reopen()  # the agent's own KILL, or the limit; a dead server raises here
            answer = error_observation(str(error.args[-1]))
        except UnicodeEncodeError as error:  # half a surrogate pair has no bytes to send
            answer = error_observation(str(error))
        self._owes = False
        self._had_rows = isinstance(answer, list)
        return answer

    def close(self) -> None:
        """Close the connection; uncommitted changes are lost. Idempotent."""
        with suppress(self._errors.Error):  # it may be closed already
            self._connection.close()

    def _run(self, sql: str) -> Answer:
        if not self._is_mariadb:
            return self._query(sql)
        if "sql_mode" in sql.lower():
            return self._with_mode(sql)
        tables = self._current_tables() if self._full_group_by else {}
        answer = self._query(as_mysql8(sql))  # a name that is not there is told of first
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
        """Run a statement that may read or set the mode: during it the mode is MySQL's."""
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
        except RuntimeError as error:  # the driver lacks `cryptography`
            raise UsageError(f"cannot connect to the server: {error}") from error
        settings = f"SET max_execution_time = {TIMEOUT * 1000:.0f}"
        if self._is_mariadb:
            settings = f"SET max_statement_time = {TIMEOUT}, sql_mode = '{_MODE}', {_MARIADB}"
        self._query(f"{settings}, sql_select_limit = {MAX_ROWS}")

    def _reopen(self) -> None:
        self.close()
        self._open()
        if self._database:
            self._query(f"USE {quoted(self._database, '`')}")


_GROUPS = re.compile(r"\bGROUP\s+BY\b", re.IGNORECASE)
_INTERSECTS = re.compile(r"\s*SELECT\b.*\b(?:INTERSECT|EXCEPT)\b", re.IGNORECASE | re.DOTALL)
_ANY_VALUE = re.compile(r"\bANY_VALUE\s*(?=\()", re.IGNORECASE)
_MARIADB = "tmp_memory_table_size = 0"
"""For a connection: tables in memory would order ties by their addresses, another way in each
process."""


def as_mysql8(sql: str) -> str:
    """Return a statement with the effect on MariaDB that this one has on MySQL 8."""
    sql = unsorted(_ANY_VALUE.sub("", sql))
    if _INTERSECTS.match(sql):
        # MariaDB 10.11 loses rows of a subquery that intersects, if its tables are not in memory.
        return f"SET STATEMENT tmp_memory_table_size = 16777216 FOR {sql}"
    return sql


@lru_cache(maxsize=8192)
def unsorted(sql: str) -> str:
    """Return a query whose groups come in the order in which they were met, as on MySQL 8.

    >>> unsorted("SELECT a FROM t GROUP BY a LIMIT 3")
    'SELECT a FROM t GROUP BY a ORDER BY NULL LIMIT 3'
    """
    if not _GROUPS.search(sql):
        return sql
    try:
        tokens = MySQL().tokenize(sql)
    except PARSE_ERRORS:
        return sql
    depth, grouped, end = 0, False, len(sql)
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
        grouped = grouped or token.token_type == TokenType.GROUP_BY
        if grouped and token.token_type in (
            TokenType.LIMIT,
            TokenType.SEMICOLON,
            TokenType.FOR,
            TokenType.INTO,
        ):
            end = min(end, token.start)
    return f"{sql[:end].rstrip()} ORDER BY NULL {sql[end:]}".rstrip() if grouped else sql


def read_tables(cursor: Any, database: str) -> Tables:
    """Return the tables of a database with their columns and keys."""
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
    nullable = set()
    for table, index, column, null in cursor.fetchall():
        keys.setdefault((table.lower(), index), set()).add(column.lower())
        if null == "YES":
            nullable.add((table.lower(), index))
    return {
        table: Relation(
            f"{database}.{table}",
            column_names,
            tuple(
                frozenset(key)
                for index_id, key in keys.items()
                if index_id[0] == table and index_id not in nullable
            ),
        )
        for table, column_names in columns.items()
    }


def conversions() -> dict[Any, Any]:
    """Return PyMySQL's table of conversions, changed to mysql-connector's, the 2023 driver's."""
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions as default_conversions

    custom_conversions: dict[Any, Any] = dict(default_conversions)
    custom_conversions[FIELD_TYPE.BIT] = _bits
    for kind, value_type in (
        (FIELD_TYPE.DATE, date),
        (FIELD_TYPE.DATETIME, datetime),
        (FIELD_TYPE.TIMESTAMP, datetime),
    ):
        custom_conversions[kind] = _real_date(default_conversions[kind], value_type)
    return custom_conversions


def _bits(value: bytes | str) -> int:
    data = value.encode("latin-1") if isinstance(value, str) else value
    return int.from_bytes(data, "big")


def _real_date(convert: Callable[[Any], Any], value_type: type) -> Callable[[Any], Any]:
    """Return a conversion that gives None for an impossible date, such as ``0000-00-00``."""

    def convert_date(value: Any) -> Any:
        date_value = convert(value)
        return date_value if isinstance(date_value, value_type) else None

    return convert_date
