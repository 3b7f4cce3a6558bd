"""SQLite and DuckDB: embedded engines, which run in worker processes inside sandboxes.

A hostile statement reaches the sandbox's limits, never the host. A session starts on a pristine
file, usually in sealed memory, which all workers share. Before its first write, a session copies
the file to the sandbox's own file system. The worker's code is in `intercode.databases.inside`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import select
import signal
import sqlite3
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from intercode.databases.base import (
    DatabaseTrigger,
    EngineOptions,
    Role,
    SavedDatabaseSession,
    SqlActionOutcome,
    StatementFailure,
    StatementResult,
    TableConstraint,
    TableState,
)
from intercode.databases.convert.build import as_duckdb, as_sqlite
from intercode.databases.inside import wire
from intercode.databases.resource_pool import ResourcePool
from intercode.databases.source import DatabaseSource
from intercode.errors import (
    ActionError,
    CausedInsideError,
    DatabaseError,
    ForkError,
    OutputLimitError,
    SandboxClosedError,
    SandboxError,
    UsageError,
)
from intercode.sql_identifiers import quote_identifier
from intercode_sandbox.base import Limits, Provider, SandboxBackend, Worker, cause_of_death
from intercode_sandbox.interruption import is_callers
from intercode_sandbox.native.provider import NativeProvider

_WORKERS = "intercode.databases.inside."
_IMAGE = "scratch"
_MAX_IDLE = 64
_RESULT_OUTPUTS, _STATE_OUTPUTS = 16, 64
"""Maximum size of an action's results, and of a state, in multiples of the output limit."""
_STATE_ROWS = 10_000_000
_GRACE_SECONDS = 1.0
"""Seconds after the time limit in which a worker may still respond before it is killed."""
_OPEN_SECONDS, _CLOSE_SECONDS = 60.0, 10.0
"""Seconds to open and to close a database.

Both limits are long: no action is responsible for this work, and the machine may be busy.
"""
_SAVE_SECONDS = 90.0
_SAVED_BYTES = 4 << 30
"""Maximum bytes of all saved databases of this process together."""
_END_SECONDS = 5.0
_SIGKILL_CODE = 128 + signal.SIGKILL
_LARGE_FILE_BYTES = 512 << 20
_CHUNK = 1 << 26
_F_ADD_SEALS = 1033
_ALL_SEALS = 0b1111  # seals against changes of the seals, shrinking, growing and writing


@dataclass(frozen=True, slots=True)
class EmbeddedEngineTraits:
    """The properties in which the embedded engines differ."""

    name: str
    product: str
    version: str
    path: Sequence[str]
    """Import path of the driver for a worker; empty for the driver in Python's standard library."""
    file: Callable[[DatabaseSource, EngineOptions], Path]
    """A function that returns the path of a source's content in the engine's format."""


def sqlite(options: EngineOptions) -> EmbeddedDatabaseEngine:
    """Return the engine ``sqlite``, which uses Python's own `sqlite3`."""
    version = sqlite3.sqlite_version
    return EmbeddedDatabaseEngine(
        EmbeddedEngineTraits("sqlite", "SQLite", version, (), _sqlite_file), options
    )


def _sqlite_file(source: DatabaseSource, options: EngineOptions) -> Path:
    return as_sqlite(source, options.progress)


def duckdb(options: EngineOptions) -> EmbeddedDatabaseEngine:
    """Return the engine ``duckdb``, which needs the optional package of that name.

    Raises:
        UsageError: DuckDB is not installed.
    """
    module_spec = importlib.util.find_spec("duckdb")
    if module_spec is None or module_spec.origin is None:
        raise UsageError("the engine 'duckdb' needs: pip install 'intercode-gym[duckdb]'")
    version = importlib.metadata.version("duckdb")
    path = (str(Path(module_spec.origin).parents[1]),)
    return EmbeddedDatabaseEngine(
        EmbeddedEngineTraits("duckdb", "DuckDB", version, path, _duckdb_file), options
    )


def _duckdb_file(source: DatabaseSource, options: EngineOptions) -> Path:
    return as_duckdb(source, options.progress)


class EmbeddedDatabaseEngine:
    """An engine whose sessions run in workers; see `databases.base.DatabaseEngine`.

    Args:
        library: The properties of SQLite or DuckDB.
        options: The engine's options.
    """

    def __init__(self, library: EmbeddedEngineTraits, options: EngineOptions) -> None:
        self.name = self.dialect = library.name
        self._library = library
        self._options = options
        self._module = f"{_WORKERS}{library.name}"
        self._provider = _provider(options, (self._module,), library.path)
        self._files = PristineDatabaseCache()
        # Workers are pooled by role and limits, so a worker of an agent never serves a grader.
        self._pool: ResourcePool[tuple[Role, Limits], EmbeddedDatabaseWorker] = ResourcePool(
            EmbeddedDatabaseWorker.close, _MAX_IDLE, lambda worker: worker.alive
        )

    def open(
        self, source: DatabaseSource, limits: Limits | None = None, role: Role = "agent"
    ) -> EmbeddedDatabaseSession:
        """Open a session with a pristine database that has the source's content."""
        limits = limits or Limits()
        pristine_file = self._files.get(
            source.digest, lambda: self._library.file(source, self._options)
        )
        return self._open_session(source, limits, role, pristine_file)

    def _open_session(
        self,
        source: DatabaseSource,
        limits: Limits,
        role: Role,
        pristine_file: PristineDatabaseFile,
    ) -> EmbeddedDatabaseSession:
        key = (role, limits)
        worker = self._pool.take(key, partial(self._start, limits))
        open_session = partial(self._open_session, source, limits, role)
        give_back = partial(self._pool.give_back, key)
        return EmbeddedDatabaseSession(
            source, limits, pristine_file, worker, give_back, open_session
        )

    def _start(self, limits: Limits) -> EmbeddedDatabaseWorker:
        sandbox = self._provider.start(_IMAGE, limits)
        try:
            return EmbeddedDatabaseWorker(sandbox, self._module)
        except BaseException:
            sandbox.close()
            raise

    def facts(self) -> Mapping[str, Any]:
        """Return the engine's product and version."""
        return {"product": self._library.product, "version": self._library.version}

    def close(self) -> None:
        """End all sessions and release all resources."""
        self._pool.close()
        self._provider.close()
        self._files.clear()


def _provider(options: EngineOptions, preload: Sequence[str], path: Sequence[str]) -> Provider:
    if options.sandbox == "native":
        return NativeProvider(options.progress, preload, path)
    from intercode_sandbox.docker.provider import DockerProvider

    return DockerProvider(options.progress, preload, path)


class EmbeddedDatabaseSession:
    """A session with a worker process; see `databases.base.DatabaseSession`.

    The constructor opens the database.

    Args:
        source: The content of the database.
        limits: Limits of the session.
        pristine_file: The file with the source's content.
        worker: The worker process. The session closes it at its end, or gives it back.
        give_back: Takes the worker back, if the worker is pristine at the session's end.
        open_session: Opens a session with the same source and limits on another file.

    Raises:
        DatabaseError: The database cannot be opened.
    """

    def __init__(
        self,
        source: DatabaseSource,
        limits: Limits,
        pristine_file: PristineDatabaseFile,
        worker: EmbeddedDatabaseWorker,
        give_back: Callable[[EmbeddedDatabaseWorker], object],
        open_session: Callable[[PristineDatabaseFile], EmbeddedDatabaseSession],
    ) -> None:
        self.source = source
        self.limits = limits
        self._pristine_file = pristine_file
        self._worker = worker
        self._give_back = give_back
        self._open_session = open_session
        self._lock = threading.Lock()
        self._busy = False
        self._closed = False
        self._is_stale = False
        """Whether the worker must be restarted before the next request."""
        self._written = False
        try:
            self._open(resume=False)
        except BaseException:
            self._worker.close()
            raise

    def _open(self, resume: bool) -> None:
        name = re.sub(r"\W", "_", self.source.name, flags=re.ASCII)
        message = ("open", name, resume, self.limits.memory // 2)
        has_copy = self._worker.request(message, _OPEN_SECONDS, 0, [self._pristine_file.fd])
        self._written |= has_copy is True

    # -- actions ---------------------------------------------------------------------------------

    def execute(
        self, sql: str, *, timeout: float | None = None, max_rows: int = 1000
    ) -> SqlActionOutcome:
        """Run an action: one statement or several."""
        _check(sql)
        seconds = self.limits.seconds(timeout)
        size = _RESULT_OUTPUTS * self.limits.output
        message = ("execute", sql, seconds, max_rows, size)
        with self._borrow_worker() as worker:
            try:
                answer = worker.request(message, seconds + _GRACE_SECONDS, size)
            except DatabaseWorkerExitError as error:
                with self._lock:
                    is_killed = self._is_stale and not self._closed
                if is_killed:
                    return self._outcome_after_restart(StatementFailure("interrupted"))
                self._check_not_stopped()
                outcome = self._outcome_after_restart(StatementFailure(str(error)))
                self._check_worker(worker)
                return outcome
            except DatabaseWorkerTimeoutError:
                reason = f"interrupted: it reached the time limit of {seconds:g} s"
                return self._outcome_after_restart(StatementFailure(reason), timed_out=True)
        try:
            outcome, self._written, is_exhausted = _outcome(answer)
        except (TypeError, ValueError) as error:
            raise DatabaseError(f"the database process sent a malformed reply: {error}") from error
        # The action has used up the worker's memory, so the next statement could fail or hang.
        if is_exhausted:
            self._is_stale = True
            return replace(outcome, restarted=True)
        return outcome

    def state(self) -> Mapping[str, TableState]:
        """Return the current state of all tables and views, by name."""
        seconds = self.limits.timeout
        size = _STATE_OUTPUTS * self.limits.output
        message = ("state", seconds, _STATE_ROWS, size)
        with self._borrow_worker() as worker:
            try:
                tables = worker.request(message, seconds + _GRACE_SECONDS, size)
            except DatabaseWorkerRefusalError as error:
                raise OutputLimitError(f"the state cannot be read: {error}") from error
            except (DatabaseWorkerExitError, DatabaseWorkerTimeoutError) as error:
                self._check_not_stopped()
                self._is_stale = True
                with self._lock:
                    # The call raises if the sandbox was lost, too.
                    self._restart()
                raise OutputLimitError(f"the state cannot be read: {error}") from error
        try:
            return {name: _table(*table_fields) for name, *table_fields in tables}
        except (TypeError, ValueError) as error:
            raise DatabaseError(f"the database process sent a malformed reply: {error}") from error

    def save(self, lossy: bool = False) -> SavedDatabaseSession:
        """Save the current database; if the session has only read, share the pristine file."""
        memfd = _memfd()
        try:
            with self._borrow_worker() as worker:
                try:
                    answer = worker.request(("save",), _SAVE_SECONDS, self.limits.output, [memfd])
                    has_copy, statements, omissions = answer
                    omissions, script = tuple(map(str, omissions)), "; ".join(statements)
                    _check(script)
                except DatabaseWorkerRefusalError as error:
                    raise ForkError(f"the database cannot be saved: {error}") from error
                except (
                    DatabaseWorkerExitError,
                    DatabaseWorkerTimeoutError,
                    TypeError,
                    ValueError,
                ) as error:
                    self._check_not_stopped()
                    self._is_stale = True
                    raise DatabaseError(f"the database could not be saved: {error}") from error
            if omissions and not lossy:
                raise ForkError(f"the session's state cannot be saved: {shorten_names(omissions)}")
            if has_copy is not True:
                file = self._pristine_file
            else:
                file, memfd = _make_saved_file(memfd, self.limits.disk), -1
        finally:
            if memfd >= 0:
                os.close(memfd)
        retained_files = [file]
        return SavedDatabaseSession(
            lambda: self._open_saved([*retained_files], script), retained_files.clear, omissions
        )

    def _open_saved(
        self, saved_files: Sequence[PristineDatabaseFile], script: str
    ) -> EmbeddedDatabaseSession:
        """Open a session on a saved database, and restore the saved session's settings."""
        if not saved_files:
            raise SandboxClosedError("the saved session is closed")
        session = self._open_session(saved_files[0])
        try:
            failure = script and session.execute(script, timeout=_SAVE_SECONDS, max_rows=0).failure
            if failure:
                raise DatabaseError(f"the saved session cannot be restored: {failure.message}")
        except BaseException:
            session.close()
            raise
        return session

    @contextmanager
    def _borrow_worker(self) -> Iterator[EmbeddedDatabaseWorker]:
        """Yield the worker for one request; restart the worker first, if necessary."""
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the session is closed")
            if self._is_stale or self._worker.has_pending_answer:
                self._restart()
            if not self._worker.alive:
                message = f"the database was lost: {self._worker.obituary()}"
                # The call raises if not only the worker but the whole sandbox has ended.
                self._call_sandbox(self._worker.sandbox.processes)
                raise DatabaseError(message)
            self._busy = True
        try:
            yield self._worker
        finally:
            with self._lock:
                self._busy = False
                if self._closed:  # another thread has closed the session in the meantime
                    self._worker.close()

    def _check_worker(self, worker: EmbeddedDatabaseWorker) -> None:
        """Check that the agent's action, not a fault of InterCode, has ended the previous process.

        The check runs ``SELECT 1`` in the process that replaces it.

        Raises:
            DatabaseWorkerExitError: The statement ends this process, too, so InterCode's code is
                faulty.
        """
        size = self.limits.output
        try:
            worker.request(("execute", "SELECT 1", _OPEN_SECONDS, 1, size), _OPEN_SECONDS, size)
        except DatabaseWorkerExitError:
            self._check_not_stopped()
            raise

    def _check_not_stopped(self) -> None:
        """Check that the worker has ended by itself, not because another thread ended it.

        Raises:
            SandboxClosedError: Another thread closed the session.
            DatabaseError: Another thread interrupted the action.
        """
        with self._lock:
            if self._closed:
                raise SandboxClosedError("the session was closed")
            if self._is_stale:
                raise DatabaseError("interrupted from another thread")

    def _outcome_after_restart(
        self, failure: StatementFailure, timed_out: bool = False
    ) -> SqlActionOutcome:
        """Restart the worker that an action has ended or blocked; return the action's outcome.

        Args:
            failure: The failure of the action.
            timed_out: Whether the action reached the time limit.
        """
        with self._lock:
            self._restart()
        return SqlActionOutcome((), failure, timed_out=timed_out, restarted=True)

    def _restart(self) -> None:
        self._is_stale = True
        self._call_sandbox(self._worker.restart)
        self._call_sandbox(lambda: self._open(resume=True))
        self._is_stale = False

    def _call_sandbox(self, request: Callable[[], object]) -> None:
        """Call a function that uses the sandbox; raise a loss of the sandbox as a `DatabaseError`.

        Raises:
            CausedInsideError: A process in the sandbox caused the loss.
            DatabaseError: The loss has another cause.
        """
        try:
            request()
        except CausedInsideError:
            raise
        except SandboxError as error:
            raise DatabaseError(f"the database was lost: {error}") from error

    # -- its end ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """Interrupt a running action."""
        with self._lock:
            if self._busy and not self._closed:
                self._is_stale = True
                with suppress(SandboxError):
                    self._worker.interrupt()

    def close(self) -> None:
        """End the session; make the worker pristine and give it back, or close a faulty worker."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._busy:
                # The end of the sandbox wakes the thread that waits for a response. That thread
                # then frees the worker.
                self._worker.sandbox.close()
                return
        try:
            if self._written or self._is_stale or self._worker.has_pending_answer:
                # A worker whose session has only read is pristine. In all other cases the worker
                # needs a new process.
                self._worker.restart()
            self._worker.request(("close",), _CLOSE_SECONDS, 0)
        except SandboxError:
            self._worker.close()
        else:
            self._give_back(self._worker)


def _check(sql: str) -> None:
    if "\0" in sql:
        raise ActionError("SQL cannot hold a NUL")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise ActionError("SQL must be Unicode text") from error


def _outcome(answer: Any) -> tuple[SqlActionOutcome, bool, bool]:
    results, failure, is_timed_out, is_written, is_exhausted = answer
    return (
        SqlActionOutcome(
            tuple([_result(*result) for result in results]),
            None if failure is None else StatementFailure(*failure),
            timed_out=is_timed_out is True,
        ),
        is_written is True,
        is_exhausted is True,
    )


def _result(
    columns: list[str], rows: list[Any], total: int | None, affected_rows: int | None
) -> StatementResult:
    return StatementResult(tuple(columns), tuple(map(tuple, rows)), total, affected_rows)


def _table(
    kind: Any,
    columns: list[Any],
    rows: list[Any],
    constraints: list[Any],
    definition: str,
    triggers: list[Any],
) -> TableState:
    return TableState(
        kind,
        tuple((name, type_) for name, type_ in columns),
        tuple(map(tuple, rows)),
        tuple(TableConstraint(rule, tuple(names), text) for rule, names, text in constraints),
        definition,
        tuple(
            DatabaseTrigger(name, text, f"DROP TRIGGER {quote_identifier(name)}")
            for name, text in triggers
        ),
    )


class DatabaseWorkerExitError(DatabaseError):
    """An error: the worker process ended before its response."""


class DatabaseWorkerTimeoutError(DatabaseError):
    """An error: the worker process did not respond in time."""


class DatabaseWorkerRefusalError(DatabaseError):
    """An error: the worker process refused a request."""


class EmbeddedDatabaseWorker:
    """A worker process in its own sandbox, which serves one session at a time.

    Args:
        sandbox: The sandbox; `close` ends it.
        module: The preloaded module whose ``main`` the process runs.

    Raises:
        SandboxError: The process cannot be started.
    """

    def __init__(self, sandbox: SandboxBackend, module: str) -> None:
        self.sandbox = sandbox
        self.module = module
        self.process: Worker = sandbox.worker(module)
        self.has_pending_answer = False
        """Whether a response may still arrive to a request whose wait was interrupted."""

    @property
    def alive(self) -> bool:
        """Whether the process runs, and no response to an earlier request may still arrive."""
        return self.process.poll() is None and not self.has_pending_answer

    def request(
        self, message: Sequence[Any], seconds: float, size: int, fds: Sequence[int] = ()
    ) -> Any:
        """Send a request and return its response.

        Args:
            message: The operation and its arguments.
            seconds: The time limit of the response.
            size: Maximum weight of the response's values, as `inside.worker.ResultRowCollector`
                counts it.
            fds: Descriptors to send with the request.

        Raises:
            WorkerEndedError, WorkerLateError: No response has arrived.
            DatabaseWorkerRefusalError: The process refused the request.
            DatabaseError: The response is malformed.
        """
        channel, limit = self.process.socket, wire.frame_limit(size)
        deadline = time.monotonic() + seconds
        operation, *arguments = message
        if self.has_pending_answer:
            self.interrupt()
            raise DatabaseWorkerExitError("the reply to the last request was not read")
        # The flag is set before the request, because an exception (Ctrl-C) can be raised at any
        # line.
        self.has_pending_answer = True
        try:
            channel.settimeout(seconds)
            wire.send(channel, wire.encode([operation, limit, *arguments]), fds)
            reply, _ = wire.receive(
                channel,
                limit,
                lambda: channel.settimeout(max(deadline - time.monotonic(), 0.001)),
            )
            is_accepted, value = wire.decode(reply)
            self.has_pending_answer = False
        except (EOFError, OSError, TypeError, ValueError) as error:
            if is_callers(error):
                raise
            raise self._failure(error, seconds) from error
        if not is_accepted:
            raise DatabaseWorkerRefusalError(str(value))
        return value

    def _failure(self, error: Exception, seconds: float) -> DatabaseError:
        """Return the error to raise for a request whose response is missing or malformed."""
        if isinstance(error, TimeoutError):
            return DatabaseWorkerTimeoutError(f"no answer within {seconds:g} s")
        self.has_pending_answer = False  # the process has ended or is killed: no response can come
        if isinstance(error, EOFError | OSError):
            return DatabaseWorkerExitError(self.obituary())
        self.interrupt()  # otherwise a late response would be taken for the next request's
        return DatabaseError(f"the database process sent a malformed reply: {error}")

    def obituary(self) -> str:
        """Return a description of why the process has ended."""
        poll = select.poll()
        poll.register(self.process.exit_fd)
        poll.poll(_END_SECONDS * 1000)
        code = self.process.poll()
        if code == _SIGKILL_CODE:
            return "out of memory: the database process was ended"
        cause = cause_of_death(self.process.errors())
        return f"the database process ended with exit code {code}" + (f": {cause}" if cause else "")

    def interrupt(self) -> None:
        """Kill the process, from any thread. A thread that waits for a response gets an error."""
        self.process.signal(signal.SIGKILL)

    def restart(self) -> None:
        """Replace the process by a new process that has the same files.

        Raises:
            SandboxError: The sandbox is lost.
        """
        self.sandbox.kill()
        process, self.process = self.process, self.sandbox.worker(self.module)
        self.has_pending_answer = False
        process.close()

    def close(self) -> None:
        """End the process and the sandbox."""
        self.sandbox.close()
        self.process.close()


class PristineDatabaseFile:
    """A database file to which no process in a sandbox can write; the last reference closes it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        weakref.finalize(self, os.close, fd)

    @staticmethod
    def from_path(path: Path) -> PristineDatabaseFile:
        """Return a file's content as a pristine file.

        The content is copied to sealed memory. A file of more than 512 MiB is used without a copy,
        under two conditions. This process runs as root, and the users of sandboxes can read the
        file but not write to it.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(fd)
        if (
            status.st_size > _LARGE_FILE_BYTES
            and os.geteuid() == 0
            and status.st_mode & 0o006 == 0o004
        ):
            return PristineDatabaseFile(fd)
        try:
            return PristineDatabaseFile(_copy_sealed(fd, status.st_size))
        finally:
            os.close(fd)


def _memfd() -> int:
    return os.memfd_create("database", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _seal(memfd: int) -> None:
    os.fchmod(memfd, 0o444)
    fcntl.fcntl(memfd, _F_ADD_SEALS, _ALL_SEALS)


_saved_files: weakref.WeakSet[PristineDatabaseFile] = weakref.WeakSet()


def _make_saved_file(memfd: int, max_bytes: int) -> PristineDatabaseFile:
    """Seal a memory file that a session has written; return it as a pristine file.

    Raises:
        ForkError: The file, or all saved files together, are too large.
        DatabaseError: The worker still writes to the file, so it cannot be sealed.
    """
    try:
        _seal(memfd)
    except OSError as error:
        raise DatabaseError(
            f"the database process could not discard a saved state: {error}"
        ) from error
    size, total = os.fstat(memfd).st_size, sum(file.size for file in _saved_files)
    if size > max_bytes:
        raise ForkError(f"the database has {size:,} bytes, more than the limit of {max_bytes:,}")
    if total + size > _SAVED_BYTES:
        raise ForkError(
            f"the databases of this process's snapshots would need {total + size:,} bytes, above "
            f"{_SAVED_BYTES:,}: close snapshots that are no longer needed"
        )
    file = PristineDatabaseFile(memfd)
    _saved_files.add(file)
    return file


def shorten_names(names: Sequence[str], max_count: int = 10) -> str:
    """Join names into one text: the first `max_count`, each cut to 100 characters, and a count.

    The count is the number of omitted names, if any.
    """
    shown_names = [f"{name[:100]}…" if len(name) > 100 else name for name in names[:max_count]]
    omitted_count = len(names) - len(shown_names)
    return ", ".join(shown_names) + (f", and {omitted_count} more" if omitted_count else "")


def _copy_sealed(source: int, size: int) -> int:
    memfd = _memfd()
    try:
        offset = 0
        while offset < size and (sent_bytes := os.sendfile(memfd, source, offset, _CHUNK)):
            offset += sent_bytes
        _seal(memfd)
    except BaseException:
        os.close(memfd)
        raise
    return memfd


class PristineDatabaseCache:
    """Cache of pristine files by key, which keeps the most recently used files. Thread-safe.

    Args:
        size: Bytes to keep in memory. The most recently used file is kept even if it is larger.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._key_locks: dict[str, threading.Lock] = {}
        self._files: OrderedDict[str, PristineDatabaseFile] = OrderedDict()

    def get(self, key: str, make_file: Callable[[], Path]) -> PristineDatabaseFile:
        """Return the file of a key, from the cache or from the path that `make_file` returns.

        Args:
            key: The digest of the file's source.
            make_file: Creates the file, and returns its path.

        Raises:
            DatabaseError: The file cannot be read, or memory for it is insufficient.
        """
        with self._lock:
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            with self._lock:
                if (file := self._files.get(key)) is not None:
                    self._files.move_to_end(key)
                    return file
            path = make_file()
            try:
                file = PristineDatabaseFile.from_path(path)
            except OSError as error:
                raise DatabaseError(f"{path} cannot be loaded into memory: {error}") from error
            with self._lock:
                self._files[key] = file
                while len(self._files) > 1 and self._total() > self._size:
                    key, _ = self._files.popitem(last=False)
                    self._key_locks.pop(key, None)
            return file

    def _total(self) -> int:
        return sum(file.size for file in self._files.values())

    def clear(self) -> None:
        """Remove all files from the cache; a file in use stays until its session ends."""
        with self._lock:
            self._files.clear()
            self._key_locks.clear()
