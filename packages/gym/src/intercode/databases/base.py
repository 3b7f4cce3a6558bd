"""The interface of database engines and sessions, which run an agent's SQL.

A `DatabaseEngine` opens a `DatabaseSession` for each episode: one connection to a private, pristine
database, with privileges on this database only. Closing the session discards the agent's changes.
Embedded engines, engines on a server and a user's own engines are interchangeable. One set of tests
specifies the behaviour that all engines share (``packages/gym/tests/databases/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from intercode.databases.source import DatabaseSource
from intercode_sandbox.base import Limits

Value = Any
"""A value of a database.

The type is None, bool, int, float, Decimal, str, bytes, date, time, datetime or timedelta. Some
engines also return lists and dictionaries of such values. Text that is not UTF-8 is decoded with
``surrogateescape``.
"""
Row = tuple[Value, ...]
Role = Literal["agent", "grader"]


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of one statement."""

    columns: tuple[str, ...] = ()
    """Column names; empty for a statement that returns no rows."""
    rows: Sequence[Row] = ()
    """The first rows: as many as the caller requested, and as the limits permit."""
    total: int | None = 0
    """Number of all rows of the result; None if the engine stopped counting."""
    affected_rows: int | None = None
    """Number of rows inserted, updated or deleted; None if the engine does not report it."""

    @property
    def complete(self) -> bool:
        """Whether `rows` contains all rows."""
        return self.total == len(self.rows)


@dataclass(frozen=True, slots=True)
class StatementFailure:
    """The failure of a statement, with the engine's message."""

    message: str
    code: str = ""
    """The engine's error code, if any: ``1146 (42S02)``, ``42P01``, ``SQLITE_ERROR``."""
    position: int | None = None
    """Position of the error in the action, in characters from 0, if the engine reports it."""


@dataclass(frozen=True, slots=True)
class SqlActionOutcome:
    """The outcome of one action: the results of its statements, up to the first failure."""

    results: tuple[StatementResult, ...] = ()
    failure: StatementFailure | None = None
    timed_out: bool = False
    """Whether the action was interrupted at the time limit; `failure` reports it, too."""
    restarted: bool = False
    """Whether the connection was lost; a new connection replaces it before the next action.

    The session's temporary tables, variables and open transaction are lost.
    """


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """A rule for a table's rows, without a name, because rewards do not compare names."""

    kind: Literal[
        "primary key", "unique", "not null", "foreign key", "default", "generated", "check"
    ]
    columns: tuple[str, ...] = ()
    """The columns, without those in expressions; empty for a check."""
    text: str = ""
    """Details: a foreign key's target and actions, a default's value, or an expression."""


@dataclass(frozen=True, slots=True)
class DatabaseTrigger:
    """A trigger of a table or view, or another rule that gives a statement an additional effect."""

    name: str
    definition: str
    """The statement that creates the trigger."""
    removal: str
    """The statement that removes the trigger."""
    function: str = ""
    """The statement that creates the function that the trigger calls; empty on most engines."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one table or view."""

    kind: Literal["table", "view"]
    columns: tuple[tuple[str, str], ...]
    """Name and declared type of each column, in order, as the engine reports them."""
    rows: Sequence[Row]
    constraints: tuple[TableConstraint, ...] = ()
    definition: str = ""
    """The statement that creates the table or view.

    PostgreSQL stores no such statement for a table. The field then lists the collations of columns
    that do not have the default collation.
    """
    triggers: tuple[DatabaseTrigger, ...] = ()


class DatabaseSession(Protocol):
    """One connection to a private database. Not thread-safe, except for `close` and `kill`."""

    source: DatabaseSource
    limits: Limits

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 1000
    ) -> SqlActionOutcome:
        """Run an action: one statement or several.

        The outcome reports errors of the agent's SQL. Other errors are raised.

        Args:
            sql: The action's text, unchanged.
            timeout: Seconds for all statements together; None: `timeout` of the session's limits.
                At the limit the running statement is interrupted, and the session continues if it
                can.
            max_rows: The most rows of each result that are returned. Further rows are only counted.

        Raises:
            ActionError: The engine cannot accept the text, for example because it contains a NUL.
            DatabaseError: The engine failed, or was lost.
            SandboxClosedError: The session is closed.
        """

    def state(self) -> Mapping[str, TableState]:
        """Return the current state of all tables and views, by name.

        Rewards use the state to grade tasks that ask for a change of the database. Temporary tables
        are left out. An open transaction is committed, or rolled back if the engine refuses the
        commit.

        Raises:
            OutputLimitError: The state is too large, cannot be read within the time limit, or
                contains a table that cannot be read.
            DatabaseError: The engine failed, or was lost.
            SandboxClosedError: The session is closed.
        """

    def kill(self) -> object:
        """Interrupt a running action, from any thread. The action fails; the session continues."""

    def close(self) -> None:
        """End the session. The engine discards the database, or makes it pristine again.

        Idempotent, safe from any thread.
        """


@dataclass(frozen=True, slots=True)
class SavedDatabaseSession:
    """The saved state of a session, which occupies memory but no process."""

    open: Callable[[], DatabaseSession]
    """Open a session in the saved state.

    Until `close`, the function may be called any number of times, from any thread, even after the
    original session is closed.
    """
    close: Callable[[], None]
    """Free the saved data. Idempotent, safe from any thread."""
    lost: tuple[str, ...] = ()
    """Descriptions of parts of the state that were not saved; empty unless `lossy` was set."""


@runtime_checkable
class SupportsSessionSave(Protocol):
    """A session's optional ability to save its state."""

    def save(self, lossy: bool = False) -> SavedDatabaseSession:
        """Save the current database and the session's settings. The session continues unchanged.

        Args:
            lossy: Whether to leave out parts that cannot be saved, such as temporary tables.

        Raises:
            ForkError: A transaction is open, or the database is too large. Or parts cannot be saved
                and `lossy` is false; the message names the parts.
            DatabaseError: The engine failed, or was lost.
        """


class DatabaseEngine(Protocol):
    """A database system. Thread-safe: one engine serves all workers of a run."""

    name: str
    """The engine's name, such as ``sqlite``, ``duckdb``, ``mysql`` or ``postgresql``."""
    dialect: str
    """sqlglot's name of the SQL dialect: ``sqlite``, ``duckdb``, ``mysql`` or ``postgres``."""

    def open(
        self, source: DatabaseSource, limits: Limits | None = None, role: Role = "agent"
    ) -> DatabaseSession:
        """Open a session with a pristine database that has the content of a source.

        Args:
            source: The content of the database.
            limits: Limits of the session; None: the defaults.
            role: The role of the session's user. A grader never gets a database that an agent has
                used.

        Raises:
            TaskError: The source cannot be read, or this engine cannot hold its content.
            DatabaseError: The engine failed.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return product and version for a run's record, without any address or password."""

    def close(self) -> None:
        """End all sessions and release all resources. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of every engine."""

    url: str | None = None
    """URL of a server; None: an embedded engine or a private server."""
    sandbox: str = "native"
    """Provider of an embedded engine's sandboxes."""
    progress: Any = field(default=None, compare=False)
    """Function that is called with a line of text about slow work; None: no such reports."""
