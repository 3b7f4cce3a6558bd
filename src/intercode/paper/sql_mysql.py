"""A connection to MySQL or MariaDB that behaves as the one of 2023.

Values and errors come out as the 2023 driver gave them. Where MariaDB is not MySQL 8, and the
recorded rewards show it, the difference is made up for: groups come unsorted, and a query is
refused that ``ONLY_FULL_GROUP_BY`` refused.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from intercode.databases.servers import driver
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.paper.sql_connection import MAX_ROWS, TIMEOUT, failed, rows
from intercode.paper.sql_group_by import refusal
from intercode.paper.sql_mariadb import SETTINGS, as_mysql8, tables_of
from intercode.paper.sql_reward import Answer
from intercode.paper.sql_scope import Tables
from intercode.paper.sql_values import conversions
from intercode.syntax import quoted

_MODE = (
    "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
"""MySQL 8's own, but for the one that is decided here."""
_FULL_GROUP_BY = "ONLY_FULL_GROUP_BY"
_READS = re.compile(r"\s*(?:SELECT|SHOW|DESC|DESCRIBE|EXPLAIN|USE|SET)\b", re.IGNORECASE)
_USE = re.compile(r"\s*USE\s+`?([^\s`;]+)`?\s*;?\s*$", re.IGNORECASE)
_LOST = (1927, 2006, 2013, 2055)


class MySQLConnection:
    """One connection.

    Args:
        args: What the driver's ``connect`` takes.
        is_mariadb: Whether MySQL 8 is to be made of it.
    """

    def __init__(self, args: dict[str, Any], is_mariadb: bool) -> None:
        self._args = args
        self._is_mariadb = is_mariadb
        self._errors = driver("MySQL").err
        self._database = ""
        self._tables: dict[str, Tables] = {}
        self._full_group_by = True
        self._had_rows = False
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
        try:
            answer = self._run(sql)
        except self._errors.MySQLError as error:
            if not self._connection.open or error.args[0] in _LOST:
                self._reopen()  # the agent's own KILL, or the limit; a dead server raises here
            answer = failed(str(error.args[-1]))
        except UnicodeEncodeError as error:  # half a surrogate pair has no bytes to send
            answer = failed(str(error))
        self._had_rows = isinstance(answer, list)
        return answer

    def close(self) -> None:
        """End it; what was not committed is gone. Idempotent."""
        with suppress(self._errors.Error):  # it may be closed already
            self._connection.close()

    def _run(self, sql: str) -> Answer:
        if not self._is_mariadb:
            return self._query(sql)
        if "sql_mode" in sql.lower():
            return self._with_mode(sql)
        tables = self._known() if self._full_group_by else {}
        answer = self._query(as_mysql8(sql))  # a name that is not there is told of first
        why = refusal(sql, tables, self._database) if self._full_group_by else None
        return answer if why is None else failed(why)

    def _query(self, sql: str) -> Answer:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            answer = None if cursor.description is None else rows(cursor.fetchall())
        if used := _USE.match(sql):
            self._database = used[1].lower()
        if not _READS.match(sql):
            self._tables.clear()
        return answer

    def _with_mode(self, sql: str) -> Answer:
        """A statement that may ask for the mode or set it: for that long it is MySQL's."""
        if self._full_group_by:
            self._query(f"SET sql_mode = CONCAT(@@sql_mode, ',{_FULL_GROUP_BY}')")
        try:
            return self._query(sql)
        finally:
            self._full_group_by = _FULL_GROUP_BY in str(self._query("SELECT @@sql_mode"))
            self._query(f"SET sql_mode = REPLACE(@@sql_mode, '{_FULL_GROUP_BY}', '')")

    def _known(self) -> Tables:
        if self._database not in self._tables:
            with self._connection.cursor() as cursor:
                self._tables[self._database] = tables_of(cursor, self._database)
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
            settings = f"SET max_statement_time = {TIMEOUT}, sql_mode = '{_MODE}', {SETTINGS}"
        self._query(f"{settings}, sql_select_limit = {MAX_ROWS}")

    def _reopen(self) -> None:
        self.close()
        self._open()
        if self._database:
            self._query(f"USE {quoted(self._database, '`')}")
