"""The contract of a database engine: where an agent's SQL runs.

An `Engine` gives each episode a `Session`: one connection to a pristine database of its own, with
the rights of that database and no more. What the agent did there is gone when it closes. The
embedded SQLite, a server at a URL and a reader's own engine are exchangeable; one conformance
suite (``tests/databases/``) is the specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from intercode.databases.source import Source
from intercode.sandbox.base import Limits

Value = Any
"""None, bool, int, float, Decimal, str, bytes, date, time, datetime, timedelta, or, where an
engine has them, lists and dictionaries of these. Text that is not UTF-8 is decoded with
``surrogateescape``."""
Row = tuple[Value, ...]
Role = Literal["agent", "grader"]


@dataclass(frozen=True, slots=True)
class Result:
    """What one statement gave."""

    columns: tuple[str, ...] = ()
    """The names of its columns; empty for a statement that returns no rows."""
    rows: Sequence[Row] = ()
    """The first rows: as many as were asked for, or as fit the limits."""
    total: int | None = 0
    """How many rows it has; None if there are more than anybody counted."""
    changed: int | None = None
    """Rows that it inserted, updated or deleted, where the engine says so."""

    @property
    def complete(self) -> bool:
        """Whether all rows are here."""
        return self.total == len(self.rows)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a statement failed, in the engine's own words."""

    message: str
    code: str = ""
    """The engine's own: ``1146 (42S02)``, ``42P01``, ``SQLITE_ERROR``."""
    position: int | None = None
    """Where in the action, in characters from 0, if the engine says so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one action gave: the results of its statements, up to the first that failed."""

    results: tuple[Result, ...] = ()
    failure: Failure | None = None
    timed_out: bool = False
    """It was interrupted at the time limit; `failure` says so, too."""
    restarted: bool = False
    """The connection was lost over it and opened anew: what belonged to the session alone
    (temporary tables, variables, an open transaction) is gone."""


@dataclass(frozen=True, slots=True)
class Table:
    """The state of one table or view."""

    kind: Literal["table", "view"]
    columns: tuple[tuple[str, str], ...]
    """Name and declared type, as the engine reports it, in order."""
    rows: Sequence[Row]


class Session(Protocol):
    """One connection to a database of its own. Not thread-safe, save for `close`."""

    source: Source
    limits: Limits

    def execute(self, sql: str, *, timeout: float | None = None, max_rows: int = 1000) -> Outcome:
        """Run an action: one statement or several.

        What the agent does wrong is in the outcome. What is no fault of the agent's is raised.

        Args:
            sql: The text, as the agent wrote it.
            timeout: Seconds for all of it; default: the limits'. At the limit the statement is
                interrupted, and the session lives on if it can.
            max_rows: Rows kept of each result. The rest is counted, not kept.

        Raises:
            ActionError: The text cannot be handed to the engine at all (it holds a NUL).
            DatabaseError: The engine failed, or was lost.
        """

    def state(self) -> Mapping[str, Table]:
        """All tables and views as they are now, by name: what a task that asks for a change is
        graded by. Temporary ones are not among them; an open transaction is committed.

        Raises:
            OutputLimitError: There is more, or it takes longer to read, than the limits allow.
            DatabaseError: The engine failed, or was lost.
        """

    def kill(self) -> object:
        """Interrupt what still runs."""

    def close(self) -> None:
        """End it; the database is made pristine again, or thrown away. Idempotent, safe from any
        thread.
        """


class Engine(Protocol):
    """Databases of one kind. Thread-safe: one serves all workers of a run."""

    name: str
    """``sqlite``, ``duckdb``, ``mysql``, ``postgresql``."""
    dialect: str
    """What sqlglot calls its language: ``sqlite``, ``duckdb``, ``mysql``, ``postgres``."""

    def open(self, source: Source, limits: Limits | None = None, role: Role = "agent") -> Session:
        """A session over a pristine database with the source's content.

        Args:
            source: What the database holds.
            limits: What a session may use; None: the defaults.
            role: For whom. A grader never gets what an agent has had.

        Raises:
            TaskError: The source cannot be read, or this engine cannot hold it.
            DatabaseError: The engine failed.
        """

    def facts(self) -> Mapping[str, Any]:
        """Product and version, for a run's record. No address, no password."""

    def close(self) -> None:
        """End all sessions and leave nothing behind. Idempotent."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What every engine is made with."""

    url: str | None = None
    """Of a server; None: one of our own."""
    sandbox: str = "native"
    """The name of what runs the sandboxes of an embedded engine."""
    progress: Any = field(default=None, compare=False)
    """Is told, as a line of text, what takes long."""
