"""Common base of the sessions on a database server, MySQL and PostgreSQL.

A session starts read-only, so the server refuses a statement that would write. After a refusal the
clone counts as written: the session gets write access, and the action runs again. An action that
does not look like a read gets write access at once. A session that only reads leaves a pristine
clone, which the next session can use.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from intercode.databases.base import Role, Row, SqlActionOutcome, StatementFailure, TableState
from intercode.databases.servers.database_names import DatabaseNameMapping, Edit, rewrite
from intercode.databases.servers.introspection import RelationSchema
from intercode.databases.servers.statement_timeouts import StatementWatchdog
from intercode.databases.source import DatabaseSource
from intercode.errors import ActionError, DatabaseError, OutputLimitError, SandboxClosedError
from intercode_sandbox.base import Limits
from intercode_sandbox.interruption import reraise_callers

_GRACE_SECONDS = 0.5
"""Seconds by which InterCode's time limit exceeds the time limit of the server."""
_CLOSE_SECONDS, _AGAIN_SECONDS = 2.0, 0.1
_RESULT_BYTES, _STATE_BYTES = 16, 64
"""The most bytes of rows that are kept, of an action's results together and of a whole state.

The values are multiples of the output limit.
"""

# In PostgreSQL a carriage return ends a comment, and comments nest. Nested comments do not match.
_COMMENT = r"--[^\r\n]*(?:[\r\n]|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!)(?:(?!/\*|\*/).)*\*/"
_READ_START = re.compile(
    rf"(?:\s|\(|{_COMMENT})*"
    r"(?:\Z|(?:SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|VALUES|TABLE|USE|HELP)\b)",
    re.IGNORECASE | re.DOTALL,
)


class DatabaseConnectionLoss(Exception):  # noqa: N818 - a message, not an error that anybody made
    """The connection to the server was lost. The message is the server's or the driver's."""


class UnreachableDatabaseServer(Exception):  # noqa: N818 - the caller tries again
    """The server cannot be reached at present."""


class DatabaseConnection(ABC):
    """A connection to a database server."""

    product: ClassVar[str]

    @abstractmethod
    def run(
        self, text: str, max_rows: int | None = None, limits: Limits | None = None
    ) -> SqlActionOutcome:
        """Run an action: one statement or several.

        Args:
            text: The action.
            max_rows: The most rows of each result to keep; None: all.
            limits: The limits, whose output limit bounds the bytes of kept rows; None: no bound.

        Raises:
            DatabaseConnectionLoss: The connection was lost.
        """

    def query(self, sql: str, *arguments: Any) -> list[Row]:
        """Run InterCode's own statements; return the rows of the last statement.

        Args:
            sql: The statements. Their placeholders are those of `with_literals`.
            *arguments: The values that replace the placeholders, in order.

        Raises:
            DatabaseConnectionLoss: The connection was lost.
            DatabaseError: A statement failed.
        """
        outcome = self.run(self.with_literals(sql, arguments) if arguments else sql)
        if outcome.failure is not None:
            raise self.refusal(outcome.failure.message)
        return list(outcome.results[-1].rows) if outcome.results else []

    def failure_message(self, statement: str) -> str | None:
        """Run a statement of InterCode's that may fail; return the error, or None for success.

        Raises:
            DatabaseConnectionLoss: The connection was lost.
        """
        failure = self.run(statement).failure
        return None if failure is None else failure.message

    def refusal(self, message: object) -> DatabaseError:
        """Return the exception for an error message of the server."""
        return DatabaseError(f"the {self.product} server says: {message}")

    @abstractmethod
    def with_literals(self, sql: str, arguments: Sequence[Any]) -> str:
        """Return statements in which quoted arguments replace the placeholders."""

    @abstractmethod
    def ping(self) -> None:
        """Check the connection. Raises `DatabaseConnectionLoss` if it was lost."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. Idempotent."""


ConnectionT = TypeVar("ConnectionT", bound=DatabaseConnection)


@dataclass(slots=True)
class DatabaseClone(Generic[ConnectionT]):
    """A copy of a template database for one session, with an account of the same name."""

    name: str
    password: str
    generation: int
    """The value of `CloneProvider.generation` when the clone was created."""
    connection: ConnectionT
    """The agent's connection to the clone."""
    start_time: str = ""
    """The time of the server's start, if the server reports this time; otherwise empty."""


@dataclass(frozen=True, slots=True)
class DatabaseRelation:
    """A table or view to read for the state of a database."""

    name: str
    kind: Literal["table", "view"]
    row: Row
    """The row that describes the table or view in the server's catalogue."""


class CloneProvider(Protocol[ConnectionT]):
    """The engine, as its sessions use it."""

    watchdog: StatementWatchdog

    @property
    def generation(self) -> int:
        """The number of restarts of a private server. For a server at a URL the number stays 0."""

    def connect_to(self, clone: DatabaseClone[ConnectionT], for_state: bool = False) -> ConnectionT:
        """Connect to a clone with the account of the clone.

        Args:
            clone: The clone.
            for_state: Whether the connection will read the state, which needs other settings.

        Raises:
            UnreachableDatabaseServer: The server does not respond.
            DatabaseError: The server refuses the connection.
        """

    def check_same_server(self, clone: DatabaseClone[ConnectionT]) -> None:
        """Check that the clone's server still runs, and was not restarted.

        Raises:
            UnreachableDatabaseServer: The server does not respond.
            DatabaseError: The server was restarted, or refuses the connection.
        """

    def give_back(self, session: Any, clone: DatabaseClone[ConnectionT], pristine: bool) -> None:
        """Return the clone of an ended session to the pool, or replace it if it is not pristine."""


class DatabaseServerSession(ABC, Generic[ConnectionT]):
    """A session whose database is a clone on a server.

    Args:
        home: The engine.
        clone: The database of the session.
        source: The content of the clone.
        role: The role of the session's user.
        limits: The limits of the session.

    Raises:
        DatabaseConnectionLoss: The connection to the clone was lost.
    """

    dialect: ClassVar[str]
    """The name that sqlglot has for the server's dialect."""
    idle_statement: ClassVar[str]
    """A statement without any effect."""

    def __init__(
        self,
        home: CloneProvider[ConnectionT],
        clone: DatabaseClone[ConnectionT],
        source: DatabaseSource,
        role: Role,
        limits: Limits,
    ) -> None:
        self.source = source
        self.role = role
        self.name = clone.name
        self.limits = limits
        self.is_written = False
        self._home: Any = home  # typed Any, for methods that only one engine has
        self._clone = clone
        self._seconds = limits.timeout
        self._name_mapping = DatabaseNameMapping(clone.name, source.name)
        self._lowercase_name = source.name.lower()
        self._edits: list[Edit] = []
        self._limit = home.watchdog.limit(self._interrupt)
        self._use_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = False
        self._has_pending_answer = False
        """Whether a response may still arrive, because an exception interrupted the wait for it."""
        self._configure()

    # --- the contract ------------------------------------------------------------------------

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 1000
    ) -> SqlActionOutcome:
        """Run an action; see `intercode.databases.base.DatabaseSession.execute`."""
        text = self._text(sql)
        seconds = self.limits.seconds(timeout)
        with self._use_lock:
            self._check_open()
            self._recover()
            self._has_pending_answer = True
            self._limit.start(seconds + _GRACE_SECONDS)
            try:
                outcome = self._try(text, seconds, max_rows)
                strike_count = self._limit.stop()
                if strike_count or self._limit.cancelled:
                    self._check_alive()
                    outcome = _interrupted_outcome(outcome, seconds if strike_count else None)
            except DatabaseConnectionLoss as loss:
                reraise_callers(loss)
                outcome = self._after_loss(loss, self._limit.stop(), seconds)
            self._has_pending_answer = False
            # The call raises if another thread has closed the session and so ended the action.
            self._check_open()
            return self._name_mapping.outcome(outcome, self._edits)

    def state(self) -> Mapping[str, TableState]:
        """Read the state; see `intercode.databases.base.DatabaseSession.state`."""
        with self._use_lock:
            self._check_open()
            self._recover()
            self._has_pending_answer = self.is_written
            if self.is_written:
                self._commit_in_time()
            tables = self._state()
            if self.is_written:
                self._check_no_restart()
            self._has_pending_answer = False
            return self._name_mapping.state(tables)

    def kill(self) -> None:
        """Interrupt a running action."""
        self._limit.interrupt()

    def close(self) -> None:
        """End the session; the engine takes the clone back, or replaces a written clone."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self._acquire()
        try:
            if self._has_pending_answer:
                self._limit.stop()
                self._interrupt(2)
            pristine = self._is_pristine()
            if not pristine:
                self._connection.close()  # the server then releases the connection's locks
            self._home.give_back(self, self._clone, pristine)
        finally:
            self._use_lock.release()

    def _acquire(self) -> None:
        """Acquire the session's lock; until then, interrupt the statement of the lock's holder."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self._use_lock.acquire(blocking=False):
            # The interrupt is repeated: the first may have come before the statement started.
            if time.monotonic() < deadline:
                self._limit.interrupt()
            else:
                self._interrupt(2)
            if self._use_lock.acquire(timeout=_AGAIN_SECONDS):
                return

    # --- the parts of one engine -------------------------------------------------------------

    @abstractmethod
    def _configure(self) -> None:
        """Set the time limit of the session, and write access if `is_written` is True.

        Raises `DatabaseConnectionLoss`. When write access is granted, no transaction is open: a
        statement that would start a transaction gets write access before it runs.
        """

    @abstractmethod
    def _is_refused(self, failure: StatementFailure) -> bool:
        """Return whether an action failed because the session is read-only."""

    @abstractmethod
    def _strike(self, connection: ConnectionT, should_disconnect: bool) -> None:
        """Interrupt the statement of a connection, or end the connection; from any thread.

        Args:
            connection: The connection.
            should_disconnect: Whether to end the connection.
        """

    @abstractmethod
    def _commit(self) -> None:
        """Commit an open transaction. Raises `DatabaseConnectionLoss`."""

    @abstractmethod
    def _reset_if_unwritten(self) -> bool:
        """Return whether the session only read, as the server reports; if so, reset the session.

        Raises `DatabaseConnectionLoss`, `DatabaseError`.
        """

    @abstractmethod
    def _relations(self, connection: ConnectionT) -> list[DatabaseRelation]:
        """List all tables and views, on a connection for the state.

        Raises:
            DatabaseConnectionLoss: The connection is lost.
        """

    @abstractmethod
    def _read(
        self, connection: ConnectionT, relation: DatabaseRelation, limits: Limits
    ) -> tuple[Sequence[Row], SqlActionOutcome]:
        """Return the columns of a table or view, and the outcome of a query for all its rows."""

    @abstractmethod
    def _schema(self, connection: ConnectionT, relation: DatabaseRelation) -> RelationSchema:
        """Return the schema of a table or view whose rows were read."""

    # --- running -----------------------------------------------------------------------------

    @property
    def _connection(self) -> ConnectionT:
        """The agent's connection."""
        return self._clone.connection

    def _text(self, sql: str) -> str:
        if "\0" in sql:
            raise ActionError("an action cannot hold a NUL character")
        if not sql.isascii():
            try:
                sql.encode()
            except UnicodeEncodeError:
                raise ActionError("an action must be text that can be UTF-8") from None
        self._edits = []
        if self._lowercase_name in sql.lower():
            sql, self._edits = rewrite(sql, self.source.name, self.name, self.dialect)
        return sql

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError(f"the session with {self.source.name} is closed")

    def _recover(self) -> None:
        """Connect again, if an exception interrupted the wait for the last response.

        A late response would be taken for the response to the next action. Raises `DatabaseError`
        if the server itself was lost.
        """
        if self._has_pending_answer:
            self._limit.stop()
            self._interrupt(2)
            self._reconnect(DatabaseConnectionLoss("the last answer was not awaited"))
            self._has_pending_answer = False

    def _try(self, text: str, seconds: float, max_rows: int) -> SqlActionOutcome:
        if not self.is_written and not has_only_reads(text):
            self._begin_writing()
        outcome = self._run(text, seconds, max_rows)
        if self.is_written or outcome.failure is None or not self._is_refused(outcome.failure):
            return outcome
        self._begin_writing()
        return self._run(text, seconds, max_rows)

    def _run(self, text: str, seconds: float, max_rows: int) -> SqlActionOutcome:
        """Run an action with a time limit. Raises `DatabaseConnectionLoss`."""
        if seconds != self._seconds:
            self._seconds = seconds
            self._configure()
        return self._connection.run(text, max_rows, self.limits)

    def _begin_writing(self) -> None:
        self.is_written = True
        self._configure()

    def _check_alive(self) -> None:
        """Run a statement without effect, to check the connection. Raises `DatabaseConnectionLoss`.

        A late interrupt of the last statement then interrupts this statement, not the next action.
        """
        self._connection.run(self.idle_statement)

    def _after_loss(
        self, loss: DatabaseConnectionLoss, strike_count: int, seconds: float
    ) -> SqlActionOutcome:
        self._check_open()
        self._reconnect(loss)
        outcome = SqlActionOutcome(failure=StatementFailure(str(loss)), restarted=True)
        return _interrupted_outcome(outcome, seconds) if strike_count else outcome

    def _reconnect(self, loss: DatabaseConnectionLoss) -> None:
        """Connect again to the clone, which is this session's copy of the database.

        Raises `DatabaseError` if the server itself was lost.
        """
        self._connection.close()
        try:
            self._home.check_same_server(self._clone)
            self._clone.connection = self._home.connect_to(self._clone)
            self._configure()
        except (DatabaseConnectionLoss, UnreachableDatabaseServer, DatabaseError):
            raise self._loss(loss) from None

    def _loss(self, loss: DatabaseConnectionLoss) -> DatabaseError:
        product = self._connection.product
        return DatabaseError(f"the connection to the {product} server was lost: {loss}")

    def _interrupt(self, count: int) -> None:
        self._strike(self._connection, should_disconnect=count > 1)

    def _is_pristine(self) -> bool:
        """Return whether the next session can use the clone unchanged."""
        if (
            self.is_written
            or self._has_pending_answer
            or self._clone.generation != self._home.generation
        ):
            return False
        try:
            return self._reset_if_unwritten()
        except (DatabaseConnectionLoss, DatabaseError):
            return False

    # --- the state ---------------------------------------------------------------------------

    def _commit_in_time(self) -> None:
        # A COMMIT may run a trigger of the agent, so a time limit is necessary.
        self._limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            self._commit()
        except DatabaseConnectionLoss as loss:
            self._reconnect(loss)
        finally:
            self._limit.stop()

    def _check_no_restart(self) -> None:
        """Check that the agent's connection still exists after the state was read.

        If the server has crashed in the meantime, the last commits may be lost.

        Raises:
            DatabaseError: The server was restarted.
        """
        try:
            self._check_alive()
        except DatabaseConnectionLoss as loss:
            self._reconnect(loss)

    def _state(self) -> Mapping[str, TableState]:
        for _ in range(2):
            with suppress(DatabaseConnectionLoss):
                return self._read_state(with_views=True)
        # A view can end the connection that reads it, but a table cannot. So try without views.
        try:
            return self._read_state(with_views=False)
        except DatabaseConnectionLoss as loss:
            raise DatabaseError(f"the connection to the server was lost: {loss}") from None

    def _read_state(self, with_views: bool) -> Mapping[str, TableState]:
        # A new connection with the clone's account reads the state. An administrator's account
        # would be unsafe, because views and functions run with the privileges of their reader. The
        # agent's own connection is not used, because a temporary table in it may hide a real table.
        try:
            connection = self._home.connect_to(self._clone, for_state=True)
        except UnreachableDatabaseServer as error:
            raise DatabaseError(f"the server was lost: {error}") from None
        limit = self._home.watchdog.limit(
            lambda _: self._strike(connection, should_disconnect=True)
        )
        limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            return self._read_tables(connection, with_views)
        except (DatabaseConnectionLoss, DatabaseError):
            if limit.strike_count:
                seconds = f"{self.limits.timeout:g} s"
                raise OutputLimitError(f"the tables cannot be read in {seconds}") from None
            raise
        finally:
            limit.stop()
            connection.close()

    def _read_tables(self, connection: ConnectionT, with_views: bool) -> dict[str, TableState]:
        """Read all tables and views; if `with_views` is False, read only the names of views."""
        limits = replace(self.limits, output=self.limits.output * _STATE_BYTES // _RESULT_BYTES)
        max_bytes = self.limits.output * _STATE_BYTES
        tables: dict[str, TableState] = {}
        size = 0
        for relation in self._relations(connection):
            columns: Sequence[Row] = ()
            outcome = SqlActionOutcome(failure=StatementFailure("not read"))
            if with_views or relation.kind == "table":
                columns, outcome = self._read(connection, relation, limits)
            schema = RelationSchema()
            if outcome.failure is None:
                schema = self._schema(connection, relation)
            tables[relation.name] = table = _table(relation, columns, outcome, schema)
            size += estimate_size(table.rows)
            if size > max_bytes or not all(result.complete for result in outcome.results):
                raise OutputLimitError(
                    f"the tables of {self.source.name} hold more than {max_bytes >> 10} KiB: "
                    f"{_STATE_BYTES} times the limit for output"
                )
        return tables


AnySession = DatabaseServerSession[Any]
"""A session of any engine on a server."""


def _table(
    relation: DatabaseRelation,
    columns: Sequence[Row],
    outcome: SqlActionOutcome,
    schema: RelationSchema,
) -> TableState:
    """Return the state of a table or view from the parts that were read.

    Args:
        relation: The table or view.
        columns: The name and type of each column.
        outcome: The outcome of the query for all rows.
        schema: The constraints, definition and triggers.

    Raises:
        OutputLimitError: The table could not be read.
    """
    if outcome.failure is None:
        column_types = tuple((str(column), str(type_)) for column, type_ in columns)
        rows = outcome.results[-1].rows
        schema_fields = schema.constraints, schema.definition, schema.triggers
        return TableState(relation.kind, column_types, rows, *schema_fields)
    if relation.kind == "view" and not outcome.timed_out:
        # A view that reads a missing table has neither columns nor rows.
        return TableState(relation.kind, (), ())
    raise OutputLimitError(f"{relation.name} cannot be read: {outcome.failure.message}")


def _interrupted_outcome(outcome: SqlActionOutcome, seconds: float | None) -> SqlActionOutcome:
    """Return an outcome with the failure "interrupted".

    Args:
        outcome: The outcome of the action.
        seconds: The time limit that was reached; None: a caller interrupted the action.
    """
    failure = outcome.failure or StatementFailure("")
    message = "interrupted" + (f" at the time limit of {seconds:g} s" if seconds else "")
    is_late = seconds is not None
    return replace(outcome, failure=replace(failure, message=message), timed_out=is_late)


def has_only_reads(text: str) -> bool:
    """Return whether each statement of an action begins like a statement that reads, or is empty.

    Such an action first runs read-only. If the server refuses it, the action runs again with write
    access. A second run is harmless only if the action has no effect before the refusal. Therefore
    every other action gets write access at once. If this function returns False by mistake, the
    only cost is a new clone.

    The text is split at every ``;``, even in a quote or comment, because the server may not read
    that text as a quote.
    """
    return all(map(_READ_START.match, text.split(";")))


class ResultRowBuffer:
    """Buffer for the first rows of a result. Further rows are only counted.

    Args:
        max_rows: The most rows to keep; None: all.
        limits: The limits, whose output limit bounds the bytes of an action's kept rows; None: no
            bound.
        previous: The buffer of the action's previous result, which has used a part of these bytes.
    """

    def __init__(
        self,
        max_rows: int | None,
        limits: Limits | None,
        previous: ResultRowBuffer | None = None,
    ) -> None:
        self.rows: list[Row] = []
        self.total = 0
        self.remaining_bytes = sys.maxsize if limits is None else limits.output * _RESULT_BYTES
        if previous is not None:
            self.remaining_bytes = previous.remaining_bytes
        self._max_rows = sys.maxsize if max_rows is None else max_rows
        self._has_refused = False

    def extend(self, rows: list[Row]) -> None:
        """Count rows, and keep them if they are within the limits."""
        self.total += len(rows)
        if self.is_full or not rows:
            return
        size = estimate_size(rows)
        if size <= self.remaining_bytes:
            self.remaining_bytes -= size
            self.rows += rows[: self._max_rows - len(self.rows)]
        elif len(rows) > 1:  # add the rows one by one, to find the first row beyond the limit
            self.total -= len(rows)
            for row in rows:
                self.extend([row])
        else:
            self._has_refused = True

    @property
    def is_full(self) -> bool:
        """Whether further rows are only counted."""
        return len(self.rows) >= self._max_rows or self._has_refused


def estimate_size(rows: Sequence[Row]) -> int:
    """Return the approximate size of rows in bytes."""
    texts = [len(cell) for row in rows for cell in row if type(cell) is str or type(cell) is bytes]
    return sum(texts) + 16 * len(rows)
