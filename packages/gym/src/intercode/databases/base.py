"""Database engines and sessions: the interface of all engines that run an agent's SQL.

An `DatabaseEngine` opens a `DatabaseSession` for each episode: one connection to a private,
pristine database, with privileges on this database only. Closing the session discards the agent's
changes. The embedded SQLite, a server at a URL and a user's engine are interchangeable. Their
specification is one conformance suite (``packages/gym/tests/databases/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from intercode.databases.source import Source
from intercode_sandbox.base import Limits

Value = Any
"""A value of a database: None, bool, int, float, Decimal, str, bytes, date, time, datetime,
timedelta, or, on some engines, lists and dictionaries of such values. Text that is not UTF-8 is
decoded with ``surrogateescape``."""
Row = tuple[Value, ...]
Role = Literal["agent", "grader"]


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The result of one statement."""

    columns: tuple[str, ...] = ()
    """Column names; empty for a statement that returns no rows."""
    rows: Sequence[Row] = ()
    """The first rows, up to the requested number and the limits."""
    total: int | None = 0
    """Number of rows; None if there are more than were counted."""
    affected_rows: int | None = None
    """Number of rows inserted, updated or deleted, where the engine reports it."""

    @property
    def complete(self) -> bool:
        """Whether `rows` contains all rows."""
        return self.total == len(self.rows)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a statement, with the engine's message."""

    message: str
    code: str = ""
    """The engine's error code: ``1146 (42S02)``, ``42P01``, ``SQLITE_ERROR``."""
    position: int | None = None
    """Position of the error in the action, in characters from 0, if the engine reports it."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The outcome of one action: the results of its statements, up to the first failure."""

    results: tuple[StatementResult, ...] = ()
    failure: Failure | None = None
    timed_out: bool = False
    """Whether the action was interrupted at the time limit; `failure` reports it, too."""
    restarted: bool = False
    """Whether the connection was lost and replaced: the session's temporary tables, variables and
    open transaction are gone."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule for a table's rows; its name is irrelevant."""

    kind: Literal[
        "primary key", "unique", "not null", "foreign key", "default", "generated", "check"
    ]
    columns: tuple[str, ...] = ()
    """The columns, in order; empty for a check."""
    text: str = ""
    """Details: the target and actions of a foreign key, a default, a condition."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of a table or view, or another rule that adds an effect to a statement."""

    name: str
    definition: str
    """The statement that creates the trigger."""
    removal: str
    """The statement that removes the trigger."""
    function: str = ""
    """The statement that creates the trigger's function, on engines whose triggers call
    functions."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one table or view."""

    kind: Literal["table", "view"]
    columns: tuple[tuple[str, str], ...]
    """Name and declared type of each column, in order, as the engine reports them."""
    rows: Sequence[Row]
    constraints: tuple[Constraint, ...] = ()
    definition: str = ""
    """The statement that creates it. PostgreSQL keeps no such statement of a table: the field then
    holds the facts that no other field has."""
    triggers: tuple[Trigger, ...] = ()


class DatabaseSession(Protocol):
    """One connection to a private database. Not thread-safe, except for `close` and `kill`."""

    source: Source
    limits: Limits

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 1000
    ) -> ActionOutcome:
        """Run an action: one statement or several.

        The outcome contains the agent's errors. Other errors are raised.

        Args:
            sql: The action's text, unchanged.
            timeout: Seconds for all statements together; None: the limits' value. At the limit the
                statement is interrupted, and the session continues if it can.
            max_rows: Rows kept of each result. Further rows are only counted.

        Raises:
            ActionError: The engine cannot accept the text (it contains a NUL).
            DatabaseError: The engine failed, or was lost.
        """

    def state(self) -> Mapping[str, TableState]:
        """Return the current state of all tables and views, by name.

        Tasks that ask for a change are graded by this state. Temporary tables are left out; an open
        transaction is committed.

        Raises:
            OutputLimitError: The state exceeds the limits, or reading it takes longer than they
                allow.
            DatabaseError: The engine failed, or was lost.
        """

    def kill(self) -> object:
        """Interrupt a running action, from any thread. The action fails; the session continues."""

    def close(self) -> None:
        """End the session; its database is made pristine again, or discarded.

        Idempotent, safe from any thread.
        """


@dataclass(frozen=True, slots=True)
class SavedSession:
    """The saved state of a session. No process runs for it."""

    open: Callable[[], DatabaseSession]
    """Open a session in the saved state; any number of times, from any thread, even after the
    source has been closed."""
    close: Callable[[], None]
    """Free the saved data. Idempotent, safe from any thread."""
    lost: tuple[str, ...] = ()
    """Descriptions of the parts of the state that were left out."""


@runtime_checkable
class SavesSession(Protocol):
    """A session's optional ability to save its state."""

    def save(self, lossy: bool = False) -> SavedSession:
        """Save the current database and the session's settings. The session continues unchanged.

        Args:
            lossy: Leave out the parts that cannot be saved, such as temporary tables.

        Raises:
            ForkError: A transaction is open, or parts cannot be saved; the message lists them.
            DatabaseError: The engine failed, or was lost.
        """


class DatabaseEngine(Protocol):
    """A database system. Thread-safe: one engine serves all workers of a run."""

    name: str
    """``sqlite``, ``duckdb``, ``mysql``, ``postgresql``."""
    dialect: str
    """sqlglot's name of the SQL dialect: ``sqlite``, ``duckdb``, ``mysql``, ``postgres``."""

    def open(
        self, source: Source, limits: Limits | None = None, role: Role = "agent"
    ) -> DatabaseSession:
        """Open a session over a pristine database with the source's content.

        Args:
            source: The content of the database.
            limits: Limits of the session; None: the defaults.
            role: The user of the session. A grader never gets a database that an agent has used.

        Raises:
            TaskError: The source cannot be read, or this engine cannot hold its content.
            DatabaseError: The engine failed.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return product and version for a run's record, without address and password."""

    def close(self) -> None:
        """End all sessions and release all resources. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of every engine."""

    url: str | None = None
    """URL of a server; None: a private server."""
    sandbox: str = "native"
    """Provider of an embedded engine's sandboxes."""
    progress: Any = field(default=None, compare=False)
    """Called with a line of text about slow work."""
