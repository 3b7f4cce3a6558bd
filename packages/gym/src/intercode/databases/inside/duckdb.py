"""DuckDB in a worker: sessions that start on the pristine file and copy it when they write.

The module has the same name as the library that it imports. The import works because imports are
absolute.
"""

from __future__ import annotations

import math
import re
import socket
import sys
import threading
import types
import uuid  # noqa: F401 - DuckDB imports it later, when a worker can load no more files
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal  # noqa: F401 - likewise
from pathlib import Path
from typing import Any

import duckdb

from intercode.databases.inside import worker
from intercode.databases.inside.worker import Message, ResultRowCollector

_AGAIN_SECONDS = 0.05
"""Seconds between two interrupts of the same statement."""
_BATCH = 256
_READ_ONLY = "read-only mode"
_LINE = re.compile(r"\n\nLINE (\d+): ([^\n]*)\n( *)\^.*", re.DOTALL)
_TABLES = """
SELECT schema_name, table_name, 'table' FROM system.main.duckdb_tables()
WHERE database_name = $1 AND NOT internal AND NOT temporary
UNION ALL SELECT schema_name, view_name, 'view' FROM system.main.duckdb_views()
WHERE database_name = $1 AND NOT internal AND NOT temporary
ORDER BY ALL
"""
_CONSTRAINTS = """
SELECT constraint_type, CASE WHEN constraint_type <> 'CHECK' THEN constraint_column_names END,
CASE constraint_type WHEN 'CHECK' THEN expression WHEN 'FOREIGN KEY' THEN
referenced_table || ' (' || array_to_string(referenced_column_names, ', ') || ')' END
FROM system.main.duckdb_constraints()
WHERE database_name = $1 AND schema_name = $2 AND table_name = $3
UNION ALL SELECT 'DEFAULT', [column_name], column_default FROM system.main.duckdb_columns()
WHERE database_name = $1 AND schema_name = $2 AND table_name = $3 AND column_default IS NOT NULL
UNION ALL SELECT 'UNIQUE', [], expressions FROM system.main.duckdb_indexes()
WHERE database_name = $1 AND schema_name = $2 AND table_name = $3 AND is_unique
"""
_PLAIN_INDEX = re.compile(r"\[(\w+(?:, \w+)*)\]")
_DEFINITION = {
    "table": "SELECT sql FROM system.main.duckdb_tables() "
    "WHERE database_name = $1 AND schema_name = $2 AND table_name = $3",
    "view": "SELECT sql FROM system.main.duckdb_views() "
    "WHERE database_name = $1 AND schema_name = $2 AND view_name = $3",
}
_TRANSACTION = "SELECT txid_current()"
_SESSION_OBJECTS = """
SELECT 'temporary table', table_name FROM system.main.duckdb_tables() WHERE temporary
UNION ALL SELECT 'temporary view', view_name FROM system.main.duckdb_views()
WHERE temporary AND NOT internal
UNION ALL SELECT 'temporary sequence', sequence_name FROM system.main.duckdb_sequences()
WHERE temporary
UNION ALL SELECT 'temporary type', type_name FROM system.main.duckdb_types()
WHERE database_name = 'temp' AND NOT internal
UNION ALL SELECT DISTINCT 'temporary macro', function_name FROM system.main.duckdb_functions()
WHERE database_name = 'temp' AND NOT internal
UNION ALL SELECT 'variable', name FROM system.main.duckdb_variables()
UNION ALL SELECT 'prepared statement', name FROM system.main.duckdb_prepared_statements()
UNION ALL SELECT 'attached database', database_name FROM system.main.duckdb_databases()
WHERE NOT internal AND database_name <> $1
UNION ALL SELECT 'schema in use', current_schema() WHERE current_schema() <> 'main'
"""
"""The query for all objects that belong to the session, not to the database's file."""
_FAILURES = (duckdb.Error, ArithmeticError, MemoryError, ValueError)
"""The errors of a failed statement: DuckDB's, and those of a conversion, such as of a date B.C."""
_SETTINGS: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "lock_configuration": True,
    "temp_directory": "",
    "threads": 1,
}
_NO_IO_THREADS = {"async_threads": 0}
"""The setting that prevents eight threads for I/O in some versions. Other versions reject it."""


class _UtcZone(tzinfo):
    """A time zone that stands for any time zone of pytz: a sandbox's zone is always UTC."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        return "UTC"

    def localize(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=UTC)


def _stand_in_for_pytz() -> None:
    """Install a substitute for the package pytz, which may be missing.

    DuckDB uses pytz for times with a time zone.
    """
    pytz = types.ModuleType("pytz")
    vars(pytz).update(timezone=lambda name: _UtcZone(), utc=_UtcZone())
    sys.modules["pytz"] = pytz


class DuckDBDatabase(worker.EmbeddedDatabase):
    """A database of DuckDB."""

    suffix = "duckdb"
    error = duckdb.Error
    no_space_error = (duckdb.IOException, "no space left for a copy of the database")
    connection: duckdb.DuckDBPyConnection
    writable = False
    seeded = False

    def __init__(self) -> None:
        super().__init__()
        self.watchdog = _DuckDBWatchdog()

    # -- sessions --------------------------------------------------------------------------------

    def connect(self, writable: bool) -> None:
        """Connect to the copy, or to the pristine file under the copy's path.

        DuckDB derives the name of the catalogue from the path.
        """
        if not writable:
            self.seeded = False
            descriptor_path = Path(f"/proc/self/fd/{self.pristine_descriptor}")
            # DuckDB (from 2.0.1 on) opens the target of a link. For the link of the descriptor the
            # kernel reports a path outside the sandbox, or none. A link at that path is needed,
            # too.
            for link in (self.path, descriptor_path.readlink()):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(descriptor_path)
        elif self.path.is_symlink():
            worker.copy_pristine(self.pristine_descriptor, self.path)
        settings = {**_SETTINGS, "memory_limit": f"{self.memory}B"}
        try:
            self.connection = duckdb.connect(
                self.path, read_only=not writable, config={**settings, **_NO_IO_THREADS}
            )
        except duckdb.InvalidInputException as error:
            if not _NO_IO_THREADS.keys() & {*re.findall(r"\w+", str(error))}:
                raise
            self.connection = duckdb.connect(self.path, read_only=not writable, config=settings)
        self.writable = writable

    # -- actions ---------------------------------------------------------------------------------

    def execute(self, sql: str, collector: ResultRowCollector) -> Message:
        """Run the statements of an action, up to the first failure."""
        results: list[Message] = []
        failure, has_timed_out = None, False
        self.seeded |= "setseed" in sql.lower()
        try:
            for statement in self.connection.extract_statements(sql):
                results.append(self.run(statement, collector))
                if has_timed_out := collector.is_late():
                    break
        except _FAILURES as error:
            failure, has_timed_out = _failure(error, sql), collector.is_late()
        return [
            results,
            collector.timeout_failure() if has_timed_out else failure,
            has_timed_out,
            self.writable,
        ]

    def run(self, statement: duckdb.Statement, collector: ResultRowCollector) -> Message:
        """Run one statement; if it is not a query, or if it writes, run it on a copy."""
        if not self.writable:
            if statement.type == duckdb.StatementType.SELECT:
                try:
                    return self.result(statement, collector)
                except duckdb.InvalidInputException as error:
                    if _READ_ONLY not in str(error):
                        raise
            self.make_writable()
        return self.result(statement, collector)

    def result(self, statement: duckdb.Statement, collector: ResultRowCollector) -> Message:
        """Run one statement on the current connection."""
        result_types = statement.expected_result_type
        with self.watchdog.guard(self.connection, collector):
            self.connection.execute(statement)
            columns = [column[0] for column in self.connection.description or ()]
            if duckdb.ExpectedResultType.CHANGED_ROWS in result_types and columns == ["Count"]:
                row = self.connection.fetchone()
                return [[], [], 0, row[0] if row else None]
            if duckdb.ExpectedResultType.QUERY_RESULT not in result_types:
                return [[], [], 0, None]
            return collector.result(columns, _rows(self.connection), None)

    # -- saving ----------------------------------------------------------------------------------

    def prepare_save(self) -> tuple[bool, list[str], list[str]]:
        """Return whether a copy exists, an empty list, and descriptions of session objects."""
        if len({self.connection.execute(_TRANSACTION).fetchone() for _ in range(2)}) == 1:
            raise OSError("a transaction is open")
        session_objects = self.connection.execute(_SESSION_OBJECTS, [self.path.stem]).fetchall()
        if self.writable:
            # The checkpoint writes the log's changes to the database's file.
            self.connection.execute("CHECKPOINT")
        seed = ["the seed of random()"] if self.seeded else []
        return self.writable, [], [f"{kind} {name}" for kind, name in session_objects] + seed

    # -- state -----------------------------------------------------------------------------------

    def state(self, collector: ResultRowCollector) -> Message:
        """Return all tables and views, with their rows.

        The name of a table or view includes its schema, unless the schema is ``main``.
        """
        # The commit fails if no transaction is open.
        with suppress(duckdb.Error):
            self.connection.commit()
        # The rollback is necessary only if the commit has failed for another reason.
        with suppress(duckdb.Error):
            self.connection.rollback()
        try:
            # A new connection does not have the session's settings, such as the schema of ``USE``.
            with (
                self.connection.cursor() as state_connection,
                self.watchdog.guard(state_connection, collector),
            ):
                relation_names = state_connection.execute(_TABLES, [self.path.stem]).fetchall()
                return [
                    self.read_relation(state_connection, collector, *names)
                    for names in relation_names
                ]
        except _FAILURES as error:
            raise OSError(str(error)) from error

    def read_relation(
        self,
        state_connection: duckdb.DuckDBPyConnection,
        collector: ResultRowCollector,
        schema: str,
        name: str,
        kind: str,
    ) -> Message:
        """Return one table or view of a schema."""
        qualified_name = ".".join(
            '"' + identifier.replace('"', '""') + '"'
            for identifier in (self.path.stem, schema, name)
        )

        def read() -> tuple[Message, Iterator[Any]]:
            state_connection.execute(f"SELECT * FROM {qualified_name}")
            columns = [[column[0], str(column[1])] for column in state_connection.description or ()]
            return columns, _rows(state_connection)

        display_name = name if schema == "main" else f"{schema}.{name}"
        catalog_key = [self.path.stem, schema, name]
        rules = (
            state_connection.execute(_CONSTRAINTS, catalog_key).fetchall()
            if kind == "table"
            else []
        )
        (definition,) = state_connection.execute(_DEFINITION[kind], catalog_key).fetchone() or ("",)
        constraints = [[rule.lower(), list(names or ()), text or ""] for rule, names, text in rules]
        for rule in constraints:  # a unique index over plain columns equals a constraint
            if rule[0] == "unique" and (columns := _PLAIN_INDEX.fullmatch(rule[2])):
                rule[1:] = [columns[1].split(", "), ""]
        return [*self.table(display_name, kind, collector, read), constraints, definition, []]


class _DuckDBWatchdog:
    """The thread that interrupts statements at their time limits.

    A single thread serves all statements, because a statement must not start a thread. After a
    statement that has used up the memory, ``threading.Thread.start`` never returns
    (python/cpython#140746).
    """

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.guarded_connection: tuple[duckdb.DuckDBPyConnection, ResultRowCollector] | None = None
        self.alarm = math.inf
        """The time of the thread's next check. Only an earlier time limit must wake the thread."""
        threading.Thread(target=self.strike, daemon=True).start()

    @contextmanager
    def guard(
        self, connection: duckdb.DuckDBPyConnection, collector: ResultRowCollector
    ) -> Iterator[None]:
        """Interrupt a connection at the time limit during the block, but not after the block."""
        with self.condition:
            self.guarded_connection = connection, collector
            if collector.deadline < self.alarm:
                self.condition.notify()
        try:
            yield
        finally:
            with self.condition:
                self.guarded_connection = None

    def strike(self) -> None:
        """Interrupt a late statement repeatedly, because DuckDB may ignore the first interrupt.

        DuckDB ignores an interrupt that arrives before the statement starts.
        """
        with self.condition:
            while True:
                self.alarm = math.inf
                if self.guarded_connection is None:
                    self.condition.wait()
                elif (remaining_seconds := self.guarded_connection[1].remaining_seconds()) > 0:
                    self.alarm = self.guarded_connection[1].deadline
                    self.condition.wait(remaining_seconds)
                else:
                    self.guarded_connection[0].interrupt()
                    self.condition.wait(_AGAIN_SECONDS)


def _rows(connection: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    while batch := connection.fetchmany(_BATCH):
        yield from batch


def _failure(error: Exception, sql: str) -> Message:
    text = str(error) or "out of memory"
    message = _LINE.sub("", text)
    match = _LINE.search(text)
    lines = sql.splitlines(keepends=True)
    if match is None or int(match[1]) > len(lines):
        return [message, type(error).__name__, None]
    line_start, line = sum(map(len, lines[: int(match[1]) - 1])), lines[int(match[1]) - 1]
    column = len(match[3]) - len(f"LINE {match[1]}: ")
    # If DuckDB has cut the line in its message, the position is unknown.
    is_certain = line.rstrip("\r\n") == match[2] and 0 <= column <= len(line)
    return [message, type(error).__name__, line_start + column if is_certain else None]


def main(channel: socket.socket) -> None:
    """Serve requests, in a worker that `SandboxBackend.worker` starts.

    Args:
        channel: The socket to the host.
    """
    _stand_in_for_pytz()
    worker.serve(channel, DuckDBDatabase())
