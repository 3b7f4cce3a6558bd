"""Common base of the sessions on a database server, MySQL and PostgreSQL.

A session starts read-only, and the engine itself refuses a statement that would write. Only then
does the clone count as written: the session gets write access, and the action runs again. So a
session that only reads leaves a clone that the next session can use.
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

from intercode.databases.base import ActionOutcome, Failure, Role, Row, TableState
from intercode.databases.servers.names import Edit, NameMapping, rewrite
from intercode.databases.servers.schemas import RelationSchema
from intercode.databases.servers.watchdog import Watchdog
from intercode.databases.source import Source
from intercode.errors import ActionError, DatabaseError, OutputLimitError, SandboxClosedError
from intercode_sandbox.base import Limits
from intercode_sandbox.interruption import reraise_callers

_GRACE_SECONDS = 0.5
"""Seconds by which InterCode's time limit exceeds the server's own."""
_CLOSE_SECONDS, _AGAIN_SECONDS = 2.0, 0.1
_RESULT_BYTES, _STATE_BYTES = 16, 64
"""Bytes of rows that are kept for each byte of the output limit: of an action, of a whole state."""

# In PostgreSQL a carriage return ends a comment, and comments nest: a nested one is not matched.
_COMMENT = r"--[^\r\n]*(?:[\r\n]|\Z)|#[^\n]*(?:\n|\Z)|/\*(?!M?!)(?:(?!/\*|\*/).)*\*/"
_READ_START = re.compile(
    rf"(?:\s|\(|{_COMMENT})*"
    r"(?:\Z|(?:SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|VALUES|TABLE|USE|HELP)\b)",
    re.IGNORECASE | re.DOTALL,
)


class ConnectionLoss(Exception):  # noqa: N818 - a message, not an error that anybody made
    """The loss of a connection; the message is the server's or the driver's."""


class UnreachableServer(Exception):  # noqa: N818 - the caller tries again
    """The failure to connect at this time."""


class Connection(ABC):
    """A connection to a server."""

    product: ClassVar[str]

    @abstractmethod
    def run(
        self, text: str, max_rows: int | None = None, limits: Limits | None = None
    ) -> ActionOutcome:
        """Run an action; keep all rows if `max_rows` is None.

        Raises:
            ConnectionLoss: The connection is gone.
        """

    def query(self, sql: str, *arguments: Any) -> list[Row]:
        """Run statements of InterCode; return the rows of the last statement.

        Raises:
            ConnectionLoss: The connection is gone.
            DatabaseError: A statement failed.
        """
        outcome = self.run(self.with_literals(sql, arguments) if arguments else sql)
        if outcome.failure is not None:
            raise self.refusal(outcome.failure.message)
        return list(outcome.results[-1].rows) if outcome.results else []

    def refusal(self, message: object) -> DatabaseError:
        """Return the error for a message of the server."""
        return DatabaseError(f"the {self.product} server says: {message}")

    @abstractmethod
    def with_literals(self, sql: str, arguments: Sequence[Any]) -> str:
        """Return statements with quoted arguments in their places."""

    @abstractmethod
    def ping(self) -> None:
        """Raise `ConnectionLoss` if the connection is gone."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. Idempotent."""


ConnectionT = TypeVar("ConnectionT", bound=Connection)


@dataclass(slots=True)
class Clone(Generic[ConnectionT]):
    """A database made from a template, with an account of the same name."""

    name: str
    password: str
    generation: int
    """Number of the server's start in which the clone was made."""
    connection: ConnectionT
    """The agent's connection to the clone."""
    start_time: str = ""
    """Time of the server's start, if the server reports it."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view whose state is to be read."""

    name: str
    kind: Literal["table", "view"]
    row: Row
    """The server's description of the relation."""


class SessionEngine(Protocol[ConnectionT]):
    """The engine of a session."""

    watchdog: Watchdog

    @property
    def generation(self) -> int:
        """Number of the server's current start."""

    def connect_to(self, clone: Clone[ConnectionT], for_state: bool = False) -> ConnectionT:
        """Connect to a clone with the clone's account.

        Args:
            clone: The clone.
            for_state: Whether the connection is for reading the state.

        Raises:
            UnreachableServer: The server does not respond.
            DatabaseError: The server refuses the connection.
        """

    def check_same_server(self, clone: Clone[ConnectionT]) -> None:
        """Check that the clone's server is the same, and was not restarted.

        Raises:
            UnreachableServer: The server does not respond.
            DatabaseError: The server was restarted, or does not respond.
        """

    def give_back(self, session: Any, clone: Clone[ConnectionT], pristine: bool) -> None:
        """Take back the clone of a session that has ended."""


class ServerSession(ABC, Generic[ConnectionT]):
    """A session whose database is a clone on a server.

    Args:
        home: The engine.
        clone: The database.
        source: The content of the clone.
        role: The user of the session.
        limits: Limits of the session.

    Raises:
        ConnectionLoss: The clone's connection is gone.
    """

    dialect: ClassVar[str]
    """sqlglot's name of the server's dialect."""
    idle_statement: ClassVar[str]
    """A statement without effect."""

    def __init__(
        self,
        home: SessionEngine[ConnectionT],
        clone: Clone[ConnectionT],
        source: Source,
        role: Role,
        limits: Limits,
    ) -> None:
        self.source = source
        self.role = role
        self.name = clone.name
        self.limits = limits
        self.is_written = False
        self._home: Any = home  # for methods that only one engine has
        self._clone = clone
        self._seconds = limits.timeout
        self._name_mapping = NameMapping(clone.name, source.name)
        self._lowercase_name = source.name.lower()
        self._edits: list[Edit] = []
        self._limit = home.watchdog.limit(self._interrupt)
        self._use_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = False
        self._has_pending_answer = False
        """Whether a response is outstanding on the connection, because its wait was interrupted."""
        self._configure()

    # --- the contract ------------------------------------------------------------------------

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 1000
    ) -> ActionOutcome:
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
            except ConnectionLoss as loss:
                reraise_callers(loss)
                outcome = self._after_loss(loss, self._limit.stop(), seconds)
            self._has_pending_answer = False
            self._check_open()  # raises if another thread ended the action by closing the session
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
        """End the session; give the clone back, or have a written clone replaced."""
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
                self._connection.close()  # this also releases its locks
            self._home.give_back(self, self._clone, pristine)
        finally:
            self._use_lock.release()

    def _acquire(self) -> None:
        """Acquire the session's lock, and interrupt the thread that uses the session."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self._use_lock.acquire(blocking=False):
            # Repeatedly, because the first interrupt may have preceded the statement.
            if time.monotonic() < deadline:
                self._limit.interrupt()
            else:
                self._interrupt(2)
            if self._use_lock.acquire(timeout=_AGAIN_SECONDS):
                return

    # --- the parts of one engine -------------------------------------------------------------

    @abstractmethod
    def _configure(self) -> None:
        """Set the time limit, and write access if the clone `is_written`.

        Raises `ConnectionLoss`. No transaction is open when write access is granted: a statement
        that would start one gets write access before it runs.
        """

    @abstractmethod
    def _is_refused(self, failure: Failure) -> bool:
        """Return whether an action failed because the session is read-only."""

    @abstractmethod
    def _strike(self, connection: ConnectionT, should_disconnect: bool) -> None:
        """Interrupt a connection's statement, or end the connection; from any thread."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit an open transaction. Raises `ConnectionLoss`."""

    @abstractmethod
    def _reset_if_unwritten(self) -> bool:
        """Return whether the session only read, according to the server; if so, reset it.

        Raises `ConnectionLoss`, `DatabaseError`.
        """

    @abstractmethod
    def _relations(self, connection: ConnectionT) -> list[Relation]:
        """List the tables and views, on a connection for the state. Raises `ConnectionLoss`."""

    @abstractmethod
    def _read(
        self, connection: ConnectionT, relation: Relation, limits: Limits
    ) -> tuple[Sequence[Row], ActionOutcome]:
        """Return the columns of a table or view, and the outcome of reading its rows."""

    @abstractmethod
    def _schema(self, connection: ConnectionT, relation: Relation) -> RelationSchema:
        """Return the schema of a table or view that was read."""

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
        """Connect again if an exception in the caller interrupted the wait for a response.

        Raises `DatabaseError` if the server itself was lost.
        """
        if self._has_pending_answer:
            self._limit.stop()
            self._interrupt(2)
            self._reconnect(ConnectionLoss("the last answer was not awaited"))
            self._has_pending_answer = False

    def _try(self, text: str, seconds: float, max_rows: int) -> ActionOutcome:
        if not self.is_written and not has_only_reads(text):
            self._begin_writing()
        outcome = self._run(text, seconds, max_rows)
        if self.is_written or outcome.failure is None or not self._is_refused(outcome.failure):
            return outcome
        self._begin_writing()
        return self._run(text, seconds, max_rows)

    def _run(self, text: str, seconds: float, max_rows: int) -> ActionOutcome:
        """Run an action. Raises `ConnectionLoss`."""
        if seconds != self._seconds:
            self._seconds = seconds
            self._configure()
        return self._connection.run(text, max_rows, self.limits)

    def _begin_writing(self) -> None:
        self.is_written = True
        self._configure()

    def _check_alive(self) -> None:
        """Run a statement without effect. Raises `ConnectionLoss`.

        An interrupt that arrives as the last statement ends hits this one, not the next action.
        """
        self._connection.run(self.idle_statement)

    def _after_loss(self, loss: ConnectionLoss, strike_count: int, seconds: float) -> ActionOutcome:
        self._check_open()
        self._reconnect(loss)
        outcome = ActionOutcome(failure=Failure(str(loss)), restarted=True)
        return _interrupted_outcome(outcome, seconds) if strike_count else outcome

    def _reconnect(self, loss: ConnectionLoss) -> None:
        """Connect again. Raises `DatabaseError` if the server itself was lost."""
        self._connection.close()
        try:
            self._home.check_same_server(self._clone)
            self._clone.connection = self._home.connect_to(self._clone)
            self._configure()
        except (ConnectionLoss, UnreachableServer, DatabaseError):
            raise self._loss(loss) from None

    def _loss(self, loss: ConnectionLoss) -> DatabaseError:
        product = self._connection.product
        return DatabaseError(f"the connection to the {product} server was lost: {loss}")

    def _interrupt(self, count: int) -> None:
        self._strike(self._connection, should_disconnect=count > 1)

    def _is_pristine(self) -> bool:
        """Return whether the clone is pristine."""
        if (
            self.is_written
            or self._has_pending_answer
            or self._clone.generation != self._home.generation
        ):
            return False
        try:
            return self._reset_if_unwritten()
        except (ConnectionLoss, DatabaseError):
            return False

    # --- the state ---------------------------------------------------------------------------

    def _commit_in_time(self) -> None:
        # A trigger of the agent may run at a COMMIT.
        self._limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            self._commit()
        except ConnectionLoss as loss:
            self._reconnect(loss)
        finally:
            self._limit.stop()

    def _check_no_restart(self) -> None:
        """Check that the agent's connection has lasted until the state was read.

        A server that crashed meanwhile may have returned without the last commits.

        Raises:
            DatabaseError: The server was restarted.
        """
        try:
            self._check_alive()
        except ConnectionLoss as loss:
            self._reconnect(loss)

    def _state(self) -> Mapping[str, TableState]:
        for _ in range(2):
            with suppress(ConnectionLoss):
                return self._read_state(with_views=True)
        try:  # A view can end the connection that reads it; a table cannot.
            return self._read_state(with_views=False)
        except ConnectionLoss as loss:
            raise DatabaseError(f"the connection to the server was lost: {loss}") from None

    def _read_state(self, with_views: bool) -> Mapping[str, TableState]:
        # The connection has the clone's own privileges, because views and functions run with those
        # of their reader. A separate connection is necessary, because on the agent's a temporary
        # table may hide the real one.
        try:
            connection = self._home.connect_to(self._clone, for_state=True)
        except UnreachableServer as error:
            raise DatabaseError(f"the server was lost: {error}") from None
        limit = self._home.watchdog.limit(
            lambda _: self._strike(connection, should_disconnect=True)
        )
        limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            return self._read_tables(connection, with_views)
        except (ConnectionLoss, DatabaseError):
            if limit.strike_count:
                seconds = f"{self.limits.timeout:g} s"
                raise OutputLimitError(f"the tables cannot be read in {seconds}") from None
            raise
        finally:
            limit.stop()
            connection.close()

    def _read_tables(self, connection: ConnectionT, with_views: bool) -> dict[str, TableState]:
        """Read all tables and views; without `with_views`, only the names of views."""
        limits = replace(self.limits, output=self.limits.output * _STATE_BYTES // _RESULT_BYTES)
        max_bytes = self.limits.output * _STATE_BYTES
        tables: dict[str, TableState] = {}
        size = 0
        for relation in self._relations(connection):
            columns: Sequence[Row] = ()
            outcome = ActionOutcome(failure=Failure("not read"))
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


AnySession = ServerSession[Any]
"""A session of any engine on a server."""


def _table(
    relation: Relation, columns: Sequence[Row], outcome: ActionOutcome, schema: RelationSchema
) -> TableState:
    """Return a table from the parts that were read.

    Raises:
        OutputLimitError: The table could not be read.
    """
    if outcome.failure is None:
        column_types = tuple((str(column), str(type_)) for column, type_ in columns)
        rows = outcome.results[-1].rows
        schema_fields = schema.constraints, schema.definition, schema.triggers
        return TableState(relation.kind, column_types, rows, *schema_fields)
    if relation.kind == "view" and not outcome.timed_out:
        # A view over a missing table has neither columns nor rows.
        return TableState(relation.kind, (), ())
    raise OutputLimitError(f"{relation.name} cannot be read: {outcome.failure.message}")


def _interrupted_outcome(outcome: ActionOutcome, seconds: float | None) -> ActionOutcome:
    """Return an outcome that reports an interrupt by the time limit, or by `kill` without one."""
    failure = outcome.failure or Failure("")
    message = "interrupted" + (f" at the time limit of {seconds:g} s" if seconds else "")
    is_late = seconds is not None
    return replace(outcome, failure=replace(failure, message=message), timed_out=is_late)


def has_only_reads(text: str) -> bool:
    """Return whether each statement of a text starts like a statement that reads.

    A text of this kind is tried read-only first, and repeated if the engine refuses it. A
    repetition is harmless only if the text has no effect before the refusal. So any other text gets
    write access at once. An error of this function is always in that direction, and only costs a
    clone.

    Statements end at every ``;``, even in a quote or comment: text that looks like a quote to this
    function may be none to the server.
    """
    return all(map(_READ_START.match, text.split(";")))


class RowBuffer:
    """Buffer for the first rows of a result; further rows are only counted.

    Args:
        max_rows: Maximum number of rows kept; None: all.
        limits: Limits whose output limit determines the bytes kept; None: all.
    """

    def __init__(self, max_rows: int | None, limits: Limits | None) -> None:
        self.rows: list[Row] = []
        self.total = 0
        self._max_rows = sys.maxsize if max_rows is None else max_rows
        self._bytes = sys.maxsize if limits is None else limits.output * _RESULT_BYTES

    def extend(self, rows: list[Row]) -> None:
        """Add rows."""
        self.total += len(rows)
        if self.is_full or not rows:
            return
        self._bytes -= estimate_size(rows)
        if self._bytes >= 0:
            self.rows += rows[: self._max_rows - len(self.rows)]
        elif len(rows) > 1:  # find the first row beyond the limit
            self.total -= len(rows)
            self._bytes += estimate_size(rows)
            for row in rows:
                self.extend([row])

    @property
    def is_full(self) -> bool:
        """Whether no more rows are kept."""
        return len(self.rows) >= self._max_rows or self._bytes < 0


def estimate_size(rows: Sequence[Row]) -> int:
    """Return the approximate size of rows in bytes."""
    texts = [len(cell) for row in rows for cell in row if type(cell) is str or type(cell) is bytes]
    return sum(texts) + 16 * len(rows)
