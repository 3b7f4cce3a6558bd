"""A session on a database server: what MySQL and PostgreSQL have in common.

A session begins read-only, and it is the engine that refuses what would write. Then, and only
then, the clone counts as written, the session gets write access, and the action is run again. So
a session that only reads leaves a clone that the next one can have.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from intercode.databases.base import Failure, Outcome, Role, Table
from intercode.databases.servers.names import Edit, rewrite
from intercode.databases.servers.nominal import Nominal
from intercode.databases.servers.reading import plainly_reads
from intercode.databases.servers.watchdog import Watchdog
from intercode.databases.source import Source
from intercode.errors import ActionError, DatabaseError, OutputLimitError, SandboxClosedError
from intercode.sandbox.base import Limits

_GRACE_SECONDS = 0.5
"""How much later than the server's own time limit ours strikes."""
_CLOSE_SECONDS, _AGAIN_SECONDS = 2.0, 0.1


class ConnectionLost(Exception):  # noqa: N818 - it is a message, not an error of anybody's
    """The connection is gone; the message says how the server or the driver put it."""


class Unreachable(Exception):  # noqa: N818 - it is tried again
    """No connection can be made now."""


class Connection(Protocol):
    """A connection of a session's."""

    def close(self) -> None:
        """End it."""


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class ServerSession(ABC, Generic[ConnectionT]):
    """A session whose database is a clone on a server.

    Args:
        source: What the clone holds.
        role: For whom.
        name: What the clone is called on the server.
        limits: What it may use.
        watchdog: Keeps its time limit.
    """

    dialect: ClassVar[str]
    """What sqlglot calls its language."""

    def __init__(
        self, source: Source, role: Role, name: str, limits: Limits, watchdog: Watchdog
    ) -> None:
        self.source = source
        self.role = role
        self.name = name
        self.limits = limits
        self.written = False
        self._nominal = Nominal(name, source.name)
        self._sought = source.name.lower()
        self._edits: list[Edit] = []
        self._watchdog = watchdog
        self._limit = watchdog.limit(self._interrupt)
        self._using = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False

    # --- the contract ------------------------------------------------------------------------

    def execute(self, sql: str, *, timeout: float | None = None, max_rows: int = 1000) -> Outcome:
        """See `intercode.databases.base.Session.execute`."""
        text = self._text(sql)
        seconds = self.limits.seconds(timeout)
        with self._using:
            self._check_open()
            self._limit.start(seconds + _GRACE_SECONDS)
            try:
                outcome = self._try(text, seconds, max_rows)
                if self._limit.stop():
                    self._ping()
                    outcome = _interrupted(outcome, seconds)
            except ConnectionLost as lost:
                outcome = self._after_loss(lost, self._limit.stop(), seconds)
            self._check_open()  # else it was ended by who closed it, not by itself
            return self._nominal.outcome(outcome, self._edits)

    def state(self) -> Mapping[str, Table]:
        """See `intercode.databases.base.Session.state`."""
        with self._using:
            self._check_open()
            if self.written:
                self._commit_in_time()
            tables = self._state()
            if self.written:
                self._check_kept()
            return self._nominal.state(tables)

    def kill(self) -> None:
        """Interrupt what still runs."""
        self._limit.interrupt()

    def close(self) -> None:
        """Give the clone back, or have it replaced if it was written."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._acquire()
        try:
            self._release()
        finally:
            self._using.release()

    def _acquire(self) -> None:
        """Have the session for us, whatever it does."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while not self._using.acquire(blocking=False):
            # Again and again: the first may have come before the statement.
            if time.monotonic() < deadline:
                self._limit.interrupt()
            else:
                self._interrupt(2)
            if self._using.acquire(timeout=_AGAIN_SECONDS):
                return

    # --- what an engine adds -----------------------------------------------------------------

    @abstractmethod
    def _run(self, text: str, seconds: float, max_rows: int) -> Outcome:
        """Run an action. Raises `ConnectionLost`."""

    @abstractmethod
    def _refused(self, failure: Failure) -> bool:
        """Whether an action failed because the session is read-only."""

    @abstractmethod
    def _make_writable(self) -> None:
        """Let what comes next write. Raises `ConnectionLost`."""

    @property
    @abstractmethod
    def _connection(self) -> ConnectionT:
        """The agent's connection."""

    @abstractmethod
    def _strike(self, connection: ConnectionT, whole: bool) -> None:
        """Interrupt the statement of a connection, or end it as a whole; from any thread."""

    @abstractmethod
    def _ping(self) -> None:
        """Run a statement on the agent's connection that does nothing. Raises `ConnectionLost`.

        An interrupt that came as the last one ended strikes this one instead of the next.
        """

    @abstractmethod
    def _reconnect(self, lost: ConnectionLost) -> None:
        """Connect anew. Raises `DatabaseError` if it was the server that was lost."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit what is open."""

    @abstractmethod
    def _connect_for_state(self) -> ConnectionT:
        """A connection with the agent's rights, in which its session has poisoned nothing.

        Raises `Unreachable`.
        """

    @abstractmethod
    def _read_tables(self, connection: ConnectionT, with_views: bool) -> dict[str, Table]:
        """All tables, and all views; without their columns and rows if they are not to be read.

        Raises `ConnectionLost`.
        """

    @abstractmethod
    def _release(self) -> None:
        """Give the clone back or have it replaced."""

    # --- running -----------------------------------------------------------------------------

    def _text(self, sql: str) -> str:
        if "\0" in sql:
            raise ActionError("an action cannot hold a NUL character")
        if not sql.isascii():
            try:
                sql.encode()
            except UnicodeEncodeError:
                raise ActionError("an action must be text that can be UTF-8") from None
        self._edits = []
        if self._sought in sql.lower():
            sql, self._edits = rewrite(sql, self.source.name, self.name, self.dialect)
        return sql

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError(f"the session with {self.source.name} is closed")

    def _try(self, text: str, seconds: float, max_rows: int) -> Outcome:
        if not self.written and not plainly_reads(text):
            self._begin_writing()
        outcome = self._run(text, seconds, max_rows)
        if self.written or outcome.failure is None or not self._refused(outcome.failure):
            return outcome
        self._begin_writing()
        return self._run(text, seconds, max_rows)

    def _begin_writing(self) -> None:
        self.written = True
        self._make_writable()

    def _after_loss(self, lost: ConnectionLost, fired: int, seconds: float) -> Outcome:
        self._check_open()
        self._reconnect(lost)
        outcome = Outcome(failure=Failure(str(lost)), restarted=True)
        return _interrupted(outcome, seconds) if fired else outcome

    def _interrupt(self, count: int) -> None:
        self._strike(self._connection, whole=count > 1)

    # --- the state ---------------------------------------------------------------------------

    def _commit_in_time(self) -> None:
        # What a trigger does at a COMMIT is the agent's, too.
        self._limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            self._commit()
        finally:
            self._limit.stop()

    def _check_kept(self) -> None:
        """See that the agent's connection has lasted until the state was read.

        A server that went down meanwhile may have come back without what was committed last.

        Raises:
            DatabaseError: It has been restarted.
        """
        try:
            self._ping()
        except ConnectionLost as lost:
            self._reconnect(lost)

    def _state(self) -> Mapping[str, Table]:
        for _ in range(2):
            with suppress(ConnectionLost):
                return self._read_state(with_views=True)
        try:  # A view can end the connection that reads it; a table cannot.
            return self._read_state(with_views=False)
        except ConnectionLost as lost:
            raise DatabaseError(f"the connection to the server was lost: {lost}") from None

    def _read_state(self, with_views: bool) -> Mapping[str, Table]:
        try:
            connection = self._connect_for_state()
        except Unreachable as error:
            raise DatabaseError(f"the server was lost: {error}") from None
        limit = self._watchdog.limit(lambda _: self._strike(connection, whole=True))
        limit.start(self.limits.timeout + _GRACE_SECONDS)
        try:
            return self._read_tables(connection, with_views)
        except (ConnectionLost, DatabaseError):
            if limit.fired:
                seconds = f"{self.limits.timeout:g} s"
                raise OutputLimitError(f"the tables cannot be read in {seconds}") from None
            raise
        finally:
            limit.stop()
            connection.close()


AnySession = ServerSession[Any]
"""A session of any engine's."""


def _interrupted(outcome: Outcome, seconds: float) -> Outcome:
    """What was interrupted by our own time limit, said as such."""
    failure = outcome.failure or Failure("")
    message = f"interrupted at the time limit of {seconds:g} s"
    return replace(outcome, failure=replace(failure, message=message), timed_out=True)
