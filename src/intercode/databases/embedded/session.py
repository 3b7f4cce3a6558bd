"""A session with an embedded database, as its caller sees it: requests to a worker process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from intercode.databases.base import Failure, Outcome, Result, Role, Table
from intercode.databases.embedded.pristine import PristineFile
from intercode.databases.embedded.worker import (
    EmbeddedWorker,
    WorkerEndedError,
    WorkerLateError,
    WorkerPool,
    WorkerRefusedError,
)
from intercode.databases.source import Source
from intercode.errors import (
    ActionError,
    CausedInsideError,
    DatabaseError,
    OutputLimitError,
    SandboxClosedError,
    SandboxError,
)
from intercode.sandbox.base import Limits

_RESULT_OUTPUTS, _STATE_OUTPUTS = 16, 64
"""What results, and the state, may weigh, in outputs of the limits' size."""
_STATE_ROWS = 10_000_000
_GRACE_SECONDS = 1.0
"""How much longer than the time limit a worker has to answer, before it is killed."""
_OPEN_SECONDS, _CLOSE_SECONDS = 60.0, 10.0
"""For what is our doing, not an action's, the worker has long: the machine may be busy."""


class EmbeddedSession:
    """See `databases.base.Session`. Begins at once.

    Args:
        source: What the database holds.
        limits: What the session may use.
        role: For whom it is.
        pristine: The source as a file.
        pool: Where workers come from and go back to.

    Raises:
        DatabaseError: The database cannot be opened.
        SandboxError: No worker can be started.
    """

    def __init__(
        self,
        source: Source,
        limits: Limits,
        role: Role,
        pristine: PristineFile,
        pool: WorkerPool,
    ) -> None:
        self.source = source
        self.limits = limits
        self._role = role
        self._pristine = pristine
        self._pool = pool
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        self._stale = False
        """Whether the process must be started anew before it is asked again."""
        self._written = False
        self._worker = pool.take(role, limits)
        try:
            self._open(resume=False)
        except BaseException:
            self._worker.close()
            raise

    def _open(self, resume: bool) -> None:
        name = re.sub(r"\W", "_", self.source.name, flags=re.ASCII)
        message = ("open", name, resume, self.limits.memory // 2)
        opened = self._worker.request(message, _OPEN_SECONDS, 0, [self._pristine.fd])
        self._written |= opened is True

    # -- actions ---------------------------------------------------------------------------------

    def execute(self, sql: str, *, timeout: float | None = None, max_rows: int = 1000) -> Outcome:
        """Run an action: one statement or several."""
        _check(sql)
        seconds = self.limits.seconds(timeout)
        size = _RESULT_OUTPUTS * self.limits.output
        message = ("execute", sql, seconds, max_rows, size)
        with self._using() as worker:
            try:
                answer = worker.request(message, seconds + _GRACE_SECONDS, size)
            except WorkerEndedError as error:
                self._check_wanted()
                return self._restarted(Failure(str(error)))
            except WorkerLateError:
                why = f"interrupted: it reached the time limit of {seconds:g} s"
                return self._restarted(Failure(why), timed_out=True)
        try:
            outcome, self._written = _outcome(answer)
        except (TypeError, ValueError) as error:
            raise DatabaseError(f"the database process answered nonsense: {error}") from error
        return outcome

    def state(self) -> Mapping[str, Table]:
        """All tables and views as they are now, by name."""
        seconds = self.limits.timeout
        size = _STATE_OUTPUTS * self.limits.output
        message = ("state", seconds, _STATE_ROWS, size)
        with self._using() as worker:
            try:
                tables = worker.request(message, seconds + _GRACE_SECONDS, size)
            except WorkerRefusedError as error:
                raise OutputLimitError(f"the state cannot be read: {error}") from error
            except (WorkerEndedError, WorkerLateError) as error:
                self._stale = True
                self._check_wanted()
                with self._lock:
                    self._restart()  # which fails if it was not this state's doing
                raise OutputLimitError(f"the state cannot be read: {error}") from error
        try:
            return {name: _table(*rest) for name, *rest in tables}
        except (TypeError, ValueError) as error:
            raise DatabaseError(f"the database process answered nonsense: {error}") from error

    @contextmanager
    def _using(self) -> Iterator[EmbeddedWorker]:
        """The worker, for one request."""
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the session is closed")
            if self._stale:
                self._restart()
            if not self._worker.alive:
                said = f"the database was lost: {self._worker.obituary()}"
                self._asked_of(self._worker.sandbox.processes)  # if it has ended, too
                raise DatabaseError(said)
            self._busy = True
        try:
            yield self._worker
        finally:
            with self._lock:
                self._busy = False
                if self._closed:  # meanwhile, by another thread
                    self._worker.close()

    def _check_wanted(self) -> None:
        """That the process ended by itself, and not because another thread ended it."""
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the session was closed")
            if self._stale:
                raise DatabaseError("interrupted from another thread")

    def _restarted(self, failure: Failure, timed_out: bool = False) -> Outcome:
        """The outcome of what cost the process its life; the session goes on."""
        with self._lock:
            self._restart()
        return Outcome((), failure, timed_out=timed_out, restarted=True)

    def _restart(self) -> None:
        self._stale = True
        self._asked_of(self._worker.restart)
        self._asked_of(lambda: self._open(resume=True))
        self._stale = False

    def _asked_of(self, request: Callable[[], object]) -> None:
        """Ask something of the sandbox. That it is lost is a loss of the database.

        Raises:
            CausedInsideError: By what ran in it.
            DatabaseError: Otherwise.
        """
        try:
            request()
        except CausedInsideError:
            raise
        except SandboxError as error:
            raise DatabaseError(f"the database was lost: {error}") from error

    # -- its end ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Interrupt what still runs."""
        with self._lock:
            if self._busy and not self._closed:
                self._stale = True
                with suppress(SandboxError):
                    self._worker.interrupt()

    def close(self) -> None:
        """End it; the worker goes back to the pool, if it is in order."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._busy:
                # Who waits for an answer finds that none comes, and frees the rest.
                self._worker.sandbox.close()
                return
        try:
            if self._written or self._stale:
                # A process that only read is as good as new; after anything else a new one is.
                self._worker.restart()
            self._worker.request(("close",), _CLOSE_SECONDS, 0)
        except SandboxError:
            self._worker.close()
        else:
            self._pool.give_back(self._worker, self._role, self.limits)


def _check(sql: str) -> None:
    if "\0" in sql:
        raise ActionError("SQL cannot hold a NUL")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise ActionError("SQL must be Unicode text") from error


def _outcome(answer: Any) -> tuple[Outcome, bool]:
    results, failure, timed_out, written = answer
    return Outcome(
        tuple([_result(*result) for result in results]),
        None if failure is None else Failure(*failure),
        timed_out=timed_out is True,
    ), written is True


def _result(columns: list[str], rows: list[Any], total: int | None, changed: int | None) -> Result:
    return Result(tuple(columns), tuple(map(tuple, rows)), total, changed)


def _table(kind: Any, columns: list[Any], rows: list[Any]) -> Table:
    return Table(kind, tuple((name, type_) for name, type_ in columns), tuple(map(tuple, rows)))
