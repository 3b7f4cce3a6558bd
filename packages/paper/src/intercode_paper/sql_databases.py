"""The database connection of 2023, which agent and gold share, and which nothing ever resets.

`EngineDatabases` provides such connections on any engine, mainly SQLite. Each database has one
session, which is opened at its first use and stays open. All state therefore leaks between
episodes, as in 2023. Actions are mostly in MySQL's dialect. For an engine of another dialect, this
module translates the actions, answers ``SHOW TABLES`` and ``DESC``, and enforces MySQL's rule for
groups. ``USE`` selects a database on every engine.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import sqlglot

from intercode.databases import DatabaseEngine, DatabaseSession, DatabaseSource, find
from intercode.databases.base import SqlActionOutcome
from intercode.databases.convert.build import as_sqlite
from intercode.databases.convert.schema import DatabaseSchema, TableSchema, read_schema
from intercode.errors import ActionError, TaskError
from intercode_paper.sql_group_by import PARSE_ERRORS, QueryRelation, Tables, refusal
from intercode_sandbox.base import Limits
from intercode_sandbox.ownership import register_finalizer

Answer = list[Any] | str | None
"""The answer to a statement: a list of rows, the text of an error, or None if the statement has no
result. Rows are tuples, of which only the text counts."""
TIMEOUT = 30.0
"""Time limit of one statement in seconds. The recorded runs had no limit, but no statement in them
took this long."""
MAX_ROWS = 500_000
"""The maximum number of rows in one result."""
ERROR = "Error executing query: "
"""Start of the observation of a statement that failed."""


class SharedDatabaseConnection(Protocol):
    """A connection that agent and gold share. The state of session and databases persists."""

    def use(self, database: str) -> None:
        """Select the database of a task, as the 2023 release did before each episode.

        Raises:
            TaskError: The database does not exist.
            DatabaseError: The server failed.
        """

    def execute(self, sql: str) -> Answer:
        """Execute one statement, and return the answer.

        Raises:
            DatabaseError: The server failed.
        """

    def close(self) -> None:
        """Close the connection. Idempotent."""


class ReplayDatabases(Protocol):
    """The databases of a replay, on one engine."""

    engine: str
    """Product name and version of the engine, for the report."""

    def connect(self) -> SharedDatabaseConnection:
        """Open a connection that sees all committed changes by earlier connections."""

    def close(self) -> None:
        """Remove everything that was created for these databases. Idempotent."""


def error_observation(message: str) -> str:
    """Return the observation of a statement that failed with the given message."""
    return f"{ERROR}{message}"


def rows(values: Iterable[Iterable[object]]) -> list[object]:
    """Return the rows of a result as the driver of 2023 did: a list of tuples."""
    return [tuple(row) for row in values]


_SYSTEM = "information_schema"
"""Name of a database that every MySQL server has. On other engines, an empty database replaces it,
because agents hardly need its content."""
USES = re.compile(r"\s*USE\s+`?([^\s`;]+)`?\s*;?\s*$", re.IGNORECASE)
_NO_TABLE = re.compile(r"no such table: (?:\w+\.)?(\w+)$")
_DUAL = re.compile(r"\bFROM\s+DUAL\b", re.IGNORECASE)
_SHOW_TABLES = re.compile(r"\s*SHOW\s+(?:FULL\s+)?TABLES\s*;?\s*$", re.IGNORECASE)
_DESCRIBE = re.compile(
    r"\s*(?:DESC|DESCRIBE|EXPLAIN|SHOW\s+(?:COLUMNS|FIELDS)\s+(?:FROM|IN))\s+`?(\w+)`?\s*;?\s*$",
    re.IGNORECASE,
)


class EngineDatabases:
    """The databases of a run or a replay, each with a session on a `DatabaseEngine`.

    Args:
        engine: The engine.
        find: A function that returns the initial content of the database with a given name.
        dialect: The dialect of actions and golds, by its name in sqlglot.
        limits: The limits of each session; None: the defaults.
        owned: Whether `close` also closes the engine.
    """

    def __init__(
        self,
        engine: DatabaseEngine,
        find: Callable[[str], DatabaseSource],
        dialect: str = "mysql",
        limits: Limits | None = None,
        owned: bool = False,
    ) -> None:
        facts = engine.facts()
        self.engine = " ".join(
            str(facts.get(fact_name, "")) for fact_name in ("product", "version")
        ).strip()
        self._engine = engine
        self._find = find
        self._limits = limits
        self._dialect = dialect
        self._owned = owned
        self._folder: Path | None = None
        self._sessions: dict[str, DatabaseSession] = {}
        self._schemas: dict[str, DatabaseSchema] = {}

    def connect(self) -> EngineConnection:
        """Open a connection that sees all changes by earlier connections."""
        translate = None if self._dialect == self._engine.dialect else self._translate_sql
        return EngineConnection(self, translate)

    def session(self, database: str) -> DatabaseSession:
        """Return the session of a database, which the first call opens.

        Raises:
            TaskError: The database does not exist.
            DatabaseError: The engine failed.
        """
        database_key = database.lower()
        if database_key not in self._sessions:
            self._sessions[database_key] = self._engine.open(self._source(database), self._limits)
        return self._sessions[database_key]

    def schema(self, database: str) -> DatabaseSchema:
        """Return the schema that a database has before any statement.

        Raises:
            TaskError: The database does not exist.
        """
        database_key = database.lower()
        if database_key not in self._schemas:
            self._schemas[database_key] = read_schema(as_sqlite(self._source(database)))
        return self._schemas[database_key]

    def close(self) -> None:
        """Close all sessions, and the engine if it is owned. Idempotent."""
        while self._sessions:
            self._sessions.popitem()[1].close()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if self._owned:
            self._engine.close()

    def _source(self, database: str) -> DatabaseSource:
        if database.lower() != _SYSTEM:
            return self._find(database)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ic-paper-"))
            register_finalizer(self, shutil.rmtree, self._folder, True)
        path = self._folder / f"{_SYSTEM}.sql"
        path.touch()
        return find(path)

    def _translate_sql(self, sql: str) -> str:
        return _translate(sql, self._dialect, self._engine.dialect)


class EngineConnection:
    """A connection to all databases, one of which is the current database.

    Args:
        databases: The databases.
        translate: A function that translates a statement from the dialect of the actions to the
            engine's; None: the dialects are equal.
    """

    def __init__(self, databases: EngineDatabases, translate: Callable[[str], str] | None) -> None:
        self._databases = databases
        self._translate = translate
        self._database = ""
        self._had_rows = False
        self._tables: dict[str, Tables] = {}

    def use(self, database: str) -> None:
        """Select the database of a task.

        Raises:
            TaskError: The database does not exist.
            DatabaseError: The engine failed.
        """
        self._databases.session(database)
        self._database = database

    def execute(self, sql: str) -> Answer:
        """Execute one statement on the current database, and return the answer.

        Raises:
            TaskError: No database has been selected.
            DatabaseError: The engine failed.
        """
        if not sql:
            return [] if self._had_rows else None
        command_answer = self._command(sql)
        answer = self._query(sql) if command_answer is None else command_answer[0]
        self._had_rows = isinstance(answer, list)
        return answer

    def close(self) -> None:
        """Do nothing, because the sessions stay open for later connections."""

    def _command(self, sql: str) -> tuple[Answer] | None:
        """Return the answer to a statement that the engine lacks, in a tuple; None for others."""
        if use_match := USES.match(sql):
            try:
                self.use(use_match[1])
            except TaskError:
                return (error_observation(f"Unknown database '{use_match[1].lower()}'"),)
            return (None,)
        if self._translate is None:
            return None
        schema = self._databases.schema(self._database)
        if _SHOW_TABLES.match(sql):
            relation_names = [table_schema.name for table_schema in schema.tables] + [
                view.name for view in schema.views
            ]
            return (rows([name] for name in sorted(map(str.lower, relation_names))),)
        if table_match := _DESCRIBE.match(sql):
            for table_schema in schema.tables:
                if table_schema.name.lower() == table_match[1].lower():
                    return (_describe_table(table_schema),)
        return None

    def _query(self, sql: str) -> Answer:
        session = self._databases.session(self._database)
        engine_sql = sql if self._translate is None else self._translate(sql)
        try:
            outcome = session.execute(engine_sql, timeout=TIMEOUT, max_rows=MAX_ROWS)
        except (ActionError, UnicodeEncodeError) as error:
            return error_observation(str(error))
        answer = _make_answer(outcome, self._database.lower())
        if self._translate is not None and not isinstance(answer, str):
            reason = refusal(sql, self._current_tables(), self._database.lower())
            answer = answer if reason is None else error_observation(reason)
        return answer

    def _current_tables(self) -> Tables:
        if self._database not in self._tables:
            schema = self._databases.schema(self._database)
            self._tables[self._database] = {
                table.name.lower(): _make_relation(table) for table in schema.tables
            }
        return self._tables[self._database]


def _make_answer(outcome: SqlActionOutcome, database: str) -> Answer:
    if outcome.failure is not None:
        message = outcome.failure.message
        # A third of all recorded errors are about missing tables, so their wording is MySQL's.
        if match := _NO_TABLE.match(message):
            message = f"Table '{database}.{match[1].lower()}' doesn't exist"
        return error_observation(message)
    if not outcome.results or not outcome.results[-1].columns:
        return None
    last_result = outcome.results[-1]
    if not last_result.complete:
        return error_observation("the result is too large")
    return rows(last_result.rows)


def _describe_table(table: TableSchema) -> Answer:
    """Return the rows of MySQL's ``DESC``: only primary keys are shown, and no extra information.

    MySQL also marks other keys in the fourth column, and fills the last one (``auto_increment``).
    """
    return rows(
        (
            column.name,
            column.declared_type.lower(),
            "NO" if column.not_null or column.name in table.primary_key else "YES",
            "PRI" if column.name in table.primary_key else "",
            column.default,
            "",
        )
        for column in table.columns
    )


def _make_relation(table: TableSchema) -> QueryRelation:
    nullable_columns = {column.name for column in table.columns if not column.not_null}
    keys = [frozenset(map(str.lower, table.primary_key))] if table.primary_key else []
    keys += [
        frozenset(map(str.lower, unique_columns))
        for unique_columns in table.uniques
        if not nullable_columns & set(unique_columns)
    ]
    return QueryRelation(
        table.name,
        {table_column.name.lower(): table_column.name for table_column in table.columns},
        tuple(keys),
    )


@lru_cache(maxsize=8192)
def _translate(sql: str, dialect: str, target_dialect: str) -> str:
    """Translate a statement; return a statement unchanged if sqlglot cannot parse it."""
    try:
        error_level = sqlglot.ErrorLevel.IGNORE  # the engine itself reports unsupported syntax
        sql = _DUAL.sub("", sql)
        return ";".join(
            sqlglot.transpile(
                sql, read=dialect, write=target_dialect, unsupported_level=error_level
            )
        )
    except PARSE_ERRORS:
        return sql
