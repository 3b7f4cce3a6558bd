"""The contract of a database engine: where an agent's SQL runs.

An `Engine` gives each episode a `Session`: one connection to a pristine database of its own, with
the rights of that database and no more. The agent's changes are gone when it closes. The embedded
SQLite, a server at a URL and a reader's own engine are exchangeable; one conformance suite
(``packages/gym/tests/databases/``) is the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from intercode.databases.source import Source
from intercode_sandbox.base import Limits

Value = Any
"""None, bool, int, float, Decimal, str, bytes, date, time, datetime, timedelta, or, where an
engine has them, lists and dictionaries of these. Text that is not UTF-8 is decoded with
``surrogateescape``."""
Row = tuple[Value, ...]
Role = Literal["agent", "grader"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one statement."""

    columns: tuple[str, ...] = ()
    """The names of its columns; empty for a statement that returns no rows."""
    rows: Sequence[Row] = ()
    """The first rows: as many as were asked for, or as fit the limits."""
    total: int | None = 0
    """How many rows it has; None if there are more than were counted."""
    affected_rows: int | None = None
    """Rows that it inserted, updated or deleted, where the engine says so."""

    @property
    def complete(self) -> bool:
        """Whether `rows` has all rows."""
        return self.total == len(self.rows)


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a statement, in the engine's own words."""

    message: str
    code: str = ""
    """The engine's own code: ``1146 (42S02)``, ``42P01``, ``SQLITE_ERROR``."""
    position: int | None = None
    """The place in the action, in characters from 0, if the engine tells it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one action: the results of its statements, up to the first that failed."""

    results: tuple[Result, ...] = ()
    failure: Failure | None = None
    timed_out: bool = False
    """Whether it was interrupted at the time limit; `failure` says so, too."""
    restarted: bool = False
    """Whether the connection was lost and made again: the session's own things (temporary tables,
    variables, an open transaction) are gone."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that a table's rows obey, whatever its name."""

    kind: Literal[
        "primary key", "unique", "not null", "foreign key", "default", "generated", "check"
    ]
    columns: tuple[str, ...] = ()
    """The columns, in order; none for a check."""
    text: str = ""
    """The rest: what a foreign key refers to and does, a default, a condition."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger of a table or view, or another rule by which a statement does more than it says."""

    name: str
    definition: str
    """The statement that creates it."""
    removal: str
    """The statement that removes it."""
    function: str = ""
    """The statement that creates the function that it calls, on an engine where it calls one."""


@dataclass(frozen=True, slots=True)
class Table:
    """The state of one table or view."""

    kind: Literal["table", "view"]
    columns: tuple[tuple[str, str], ...]
    """Name and declared type, as the engine reports it, in order."""
    rows: Sequence[Row]
    constraints: tuple[Constraint, ...] = ()
    definition: str = ""
    """The statement that creates it; on PostgreSQL, which keeps none of a table, what nothing else
    here says of it."""
    triggers: tuple[Trigger, ...] = ()


class Session(Protocol):
    """One connection to a database of its own. Not thread-safe, save for `close`."""

    source: Source
    limits: Limits

    def execute(self, sql: str, *, timeout: float | None = None, max_rows: int = 1000) -> Outcome:
        """Run an action: one statement or several.

        The outcome has the agent's errors. Other errors are raised.

        Args:
            sql: The text, as the agent wrote it.
            timeout: Seconds for all of it; None: the limits'. At the limit the statement is
                interrupted, and the session continues if it can.
            max_rows: Rows kept of each result. The rest is counted, not kept.

        Raises:
            ActionError: The text cannot be handed to the engine at all (it holds a NUL).
            DatabaseError: The engine failed, or was lost.
        """

    def state(self) -> Mapping[str, Table]:
        """Return all tables and views as they are now, by name.

        A task that asks for a change is graded by them. Temporary ones are left out; an open
        transaction is committed.

        Raises:
            OutputLimitError: There is more than the limits allow, or reading takes longer.
            DatabaseError: The engine failed, or was lost.
        """

    def kill(self) -> object:
        """Interrupt a running action, from any thread. It fails, and the session continues."""

    def close(self) -> None:
        """End the session; its database is made pristine again, or thrown away.

        Idempotent, safe from any thread.
        """


@dataclass(frozen=True, slots=True)
class SavedSession:
    """The saved state of a session; nothing runs for it."""

    open: Callable[[], Session]
    """Open a session in that state; any number of times, from any thread, also once the source has
    been closed."""
    close: Callable[[], None]
    """Free what is kept for it. Idempotent, safe from any thread."""
    lost: tuple[str, ...] = ()
    """The parts of the state that were left out, in words."""


@runtime_checkable
class SavesSession(Protocol):
    """An ability that a session may have in addition."""

    def save(self, lossy: bool = False) -> SavedSession:
        """Save the database as it is, with the session's settings. The session goes on unchanged.

        Args:
            lossy: Leave out the parts that cannot be carried, such as temporary tables.

        Raises:
            ForkError: A transaction is open, or parts cannot be carried; the message lists them.
            DatabaseError: The engine failed, or was lost.
        """


class Engine(Protocol):
    """Databases of one kind. Thread-safe: one engine serves all workers of a run."""

    name: str
    """``sqlite``, ``duckdb``, ``mysql``, ``postgresql``."""
    dialect: str
    """sqlglot's name for its language: ``sqlite``, ``duckdb``, ``mysql``, ``postgres``."""

    def open(self, source: Source, limits: Limits | None = None, role: Role = "agent") -> Session:
        """Open a session over a pristine database with the source's content.

        Args:
            source: The content of the database.
            limits: Of the session; None: the defaults.
            role: For whom the session is. A grader never gets a database that an agent has had.

        Raises:
            TaskError: The source cannot be read, or this engine cannot hold it.
            DatabaseError: The engine failed.
        """

    def facts(self) -> Mapping[str, Any]:
        """Return product and version, for a run's record, without address and password."""

    def close(self) -> None:
        """End all sessions and leave nothing behind. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options with which every engine is made."""

    url: str | None = None
    """The URL of a server; None: a private one."""
    sandbox: str = "native"
    """The provider of an embedded engine's sandboxes."""
    progress: Any = field(default=None, compare=False)
    """Called with a line of text about work that takes long."""
