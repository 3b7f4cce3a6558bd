"""A server with the release's databases under their own names, as 2023 had it.

The dump is loaded as it is. A private server is thrown away afterwards; of another one, only what
was made is dropped, and nothing that was there is touched.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from intercode.databases.convert.dump import read, section
from intercode.databases.servers import driver
from intercode.databases.servers.names import new_name
from intercode.databases.servers.private import Server, start_mariadb
from intercode.databases.source import names
from intercode.errors import DatabaseError, UsageError
from intercode.paper.sql_mysql import MySQLConnection
from intercode.syntax import quoted

_RIGHTS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, INDEX, ALTER, REFERENCES, CREATE VIEW, "
    "SHOW VIEW, CREATE TEMPORARY TABLES, LOCK TABLES, CREATE ROUTINE, ALTER ROUTINE, EXECUTE, "
    "TRIGGER"
)
"""In 2023 the agent was the administrator; this is what its actions need, in its databases."""


class MySQLDatabases:
    """A server with the databases of a dump.

    Args:
        dump: The dump, as `mysqldump --databases` writes it.
        url: Of a server, with an account that may make databases and accounts; None: a private
            MariaDB is started.
        tell: Is told of what may spoil the result.

    Raises:
        UsageError: No server is installed; or the one at the URL has a database of such a name.
        DatabaseError: The server failed.
    """

    def __init__(
        self, dump: Path, url: str | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._server: Server | None = start_mariadb() if url is None else None
        self._admin: dict[str, Any] = self._server.connect_args if self._server else _address(url)
        self._account = new_name()
        self._host = "localhost" if "unix_socket" in self._admin else "%"
        self._password = secrets.token_urlsafe(18)
        self._made: list[str] = []
        self.is_mariadb = True
        self.engine = ""
        try:
            self._load(dump, tell or (lambda text: None))
        except BaseException:
            self.close()
            raise

    def connect(self) -> MySQLConnection:
        """A new connection, to what the earlier ones have left."""
        args = {**self._admin, "user": self._account, "password": self._password}
        return MySQLConnection(args, self.is_mariadb)

    def close(self) -> None:
        """Drop the databases and the account; end the server, if it is ours. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        elif self._made:
            with _cursor(self._admin) as cursor:
                cursor.execute(f"DROP USER IF EXISTS '{self._account}'@'{self._host}'")
                while self._made:
                    cursor.execute(f"DROP DATABASE IF EXISTS {quoted(self._made[-1], '`')}")
                    self._made.pop()
        self._made = []

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
                    "(lower_case_table_names=0); that of 2023 did not: many queries will fail"
                )
            self._refuse_taken(cursor, databases)
            for name in databases:
                cursor.execute(
                    f"CREATE DATABASE {quoted(name, '`')} "
                    "DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
                )
                self._made.append(name)
            self._grant(cursor)
        for name in databases:  # each in a session of its own: the dump changes its settings
            with _cursor({**self._admin, "database": name}) as cursor:
                for statement in section(text, name):
                    cursor.execute(statement)
                _analyse(cursor)

    def _refuse_taken(self, cursor: Any, databases: tuple[str, ...]) -> None:
        cursor.execute("SHOW DATABASES")
        there = {name.lower() for (name,) in cursor.fetchall()}
        if taken := [name for name in databases if name.lower() in there]:
            raise UsageError(
                f"the server already has {', '.join(taken)}: the replay needs databases of these "
                "names and drops them at its end. Drop them, or take another server"
            )

    def _grant(self, cursor: Any) -> None:
        who = f"'{self._account}'@'{self._host}'"
        cursor.execute(f"CREATE USER {who} IDENTIFIED BY '{self._password}'")
        for name in self._made:
            pattern = name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")
            cursor.execute(f"GRANT {_RIGHTS} ON {quoted(pattern, '`')}.* TO {who}")
        if self._server is not None:  # it holds nothing else, and all of it was seen in 2023
            cursor.execute(f"GRANT SELECT, SHOW DATABASES ON *.* TO {who}")


def _analyse(cursor: Any) -> None:
    """Count the tables' rows now: plans, and with them the order of rows, would change later."""
    cursor.execute("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'")
    if tables := [quoted(name, "`") for name, _ in cursor.fetchall()]:
        cursor.execute(f"ANALYZE TABLE {', '.join(tables)}")


def _address(url: str | None) -> dict[str, Any]:
    parts = urlsplit(url or "")
    try:
        port = parts.port or 3306
    except ValueError:
        raise UsageError("the URL of the server has no valid port") from None
    args: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
    }
    return {**args, **dict(parse_qsl(parts.query))}


@contextmanager
def _cursor(args: dict[str, Any]) -> Iterator[Any]:
    pymysql = driver("MySQL")
    try:
        connection = pymysql.connect(**args, charset="utf8mb4", autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            yield cursor
    except pymysql.err.MySQLError as error:
        raise DatabaseError(f"the server said: {error}") from error
