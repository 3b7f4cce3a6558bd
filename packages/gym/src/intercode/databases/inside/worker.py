"""Worker process of an embedded engine: the loop of requests, limits of results, database files."""

from __future__ import annotations

import mmap
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time as clock_time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from intercode.databases.inside import wire

FOLDER = Path("/database")
"""The folder in the sandbox that contains only the worker's files."""
SAVE_SECONDS = 60.0
"""Time limit in seconds of the statements of a save; only SQLite enforces it.

The limit is long: no action is responsible for this work, and the machine may be busy.
"""
_REQUEST_BYTES = 1 << 30
_SPARE_BYTES = 4 << 20
"""Bytes of memory that a process needs to continue: Python allocates memory by the MiB."""
_CHUNK = 1 << 26
_MAX_COUNTED_ROWS = 1_000_000
_PER_VALUE = 16
"""The weight of a value in addition to its characters or bytes."""
_SCALAR_TYPES = {
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    Decimal,
    date,
    datetime,
    clock_time,
    timedelta,
}
_SIZED_TYPES = {str, bytes}

Message = list[Any]
"""A part of a response.

A result is ``[columns, rows, total, affected rows]``, a failure ``[message, code, position]``. An
outcome is ``[results, failure, timed out, written]``. The response to an action is an outcome with
a fifth value: whether the action failed and has used up the memory (`is_exhausted`).
"""


class EmbeddedDatabase(ABC):
    """A database in a worker: the code that SQLite and DuckDB share."""

    suffix: ClassVar[str]
    error: ClassVar[type[Exception]]
    """The base class of the library's errors."""
    no_space_error: ClassVar[tuple[type[Exception], str]]
    """Class and message of the library's error if a copy of the database does not fit."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.collector = ResultRowCollector(0, 0, 0)
        self.pristine_descriptor = -1
        self.path = Path()
        self.memory = 0

    def open(self, pristine_descriptor: int, name: str, resume: bool, memory: int) -> bool:
        """Start a session on the pristine file, or on the copy of the session's earlier process.

        Args:
            pristine_descriptor: A descriptor of the pristine file. The database keeps it open.
            name: The name of the database.
            resume: Whether to continue with the session's copy, if a copy exists.
            memory: The bytes of memory that the engine may use; SQLite ignores the number.

        Returns:
            Whether the session continues with a copy.

        Raises:
            OSError: The engine cannot open the file; the message is the engine's.
        """
        self.pristine_descriptor, self.memory = pristine_descriptor, memory
        self.path = FOLDER / f"{name}.{self.suffix}"
        has_copy = resume and self.path.exists() and not self.path.is_symlink()
        try:
            self.connect(writable=has_copy)
        except self.error as error:
            raise OSError(str(error)) from error
        return has_copy

    def close(self) -> None:
        """End the session and delete its files."""
        if self.connection is not None:
            self.connection.close()
            os.close(self.pristine_descriptor)
            self.connection = None
        for path in list(FOLDER.iterdir()):
            path.unlink()

    def make_writable(self) -> None:
        """Copy the pristine file, and continue with the copy, in a session that has only read.

        Raises:
            Exception: The copy does not fit into the file system. `no_space_error` defines the
                class and the message.
        """
        self.connection.close()
        try:
            self.connect(writable=True)
        except OSError as error:
            self.connect(writable=False)
            kind, message = self.no_space_error
            raise kind(message) from error

    def save(self, target: int) -> Message:
        """Write the session's copy of the database to another file; the session stays unchanged.

        Args:
            target: A descriptor of the other file, which is empty.

        Returns:
            Whether a copy exists; statements that restore the session's settings in a session on
            the copy; descriptions of state that no statement can restore.

        Raises:
            OSError: The session cannot be saved; the message has the reason.
        """
        self.collector = ResultRowCollector(SAVE_SECONDS, 0, 0)
        try:
            has_copy, statements, omissions = self.prepare_save()
        except self.error as error:
            raise OSError(str(error)) from error
        if has_copy:
            source = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _transfer(source, target)
            finally:
                os.close(source)
        return [has_copy, statements, omissions]

    @abstractmethod
    def prepare_save(self) -> tuple[bool, list[str], list[str]]:
        """Write all data to the copy's file, and return the three values of `save`.

        Raises:
            OSError: A transaction is open.
        """

    @abstractmethod
    def connect(self, writable: bool) -> None:
        """Connect to the session's copy, or to the pristine file under the path of the copy.

        Args:
            writable: Whether to use the copy; the copy is created if it does not exist.
        """

    @abstractmethod
    def execute(self, sql: str, collector: ResultRowCollector) -> Message:
        """Run an action's statements, up to the first failure; return the outcome (`Message`)."""

    @abstractmethod
    def state(self, collector: ResultRowCollector) -> Message:
        """Return ``[name, kind, [[column, type], …], rows, *schema]`` for each table and view.

        A schema is ``[[kind, columns, text], …], definition, [[trigger, definition], …]``.

        Raises:
            OSError: The engine failed, or the state exceeds the limits; the message describes it.
        """

    def table(
        self,
        name: str,
        kind: str,
        collector: ResultRowCollector,
        read: Callable[[], tuple[Message, Iterable[Any]]],
    ) -> Message:
        """Return one table or view; a view that cannot be read has neither columns nor rows.

        Args:
            name: The name of the table or view.
            kind: ``table`` or ``view``.
            collector: The collector, which holds the limits.
            read: Returns the columns and the rows.

        Raises:
            OSError: The table has more rows than the limits allow.
            Exception: The table cannot be read, or the time limit was reached: an error of the
                class `error`.
        """
        try:
            columns, all_rows = read()
            _, rows, total, _ = collector.result((), all_rows, None)
        except self.error:
            if kind == "view" and not collector.is_late():
                return [name, kind, [], []]
            raise
        if total != len(rows):
            raise OSError(f"{name} has more rows than the limits allow")
        return [name, kind, columns, rows]


def serve(channel: socket.socket, database: EmbeddedDatabase) -> None:
    """Answer requests until the host closes the channel."""
    os.umask(0o077)
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)  # temporary files of the engine are in this folder, too
    while True:
        try:
            request, fds = wire.receive(channel, _REQUEST_BYTES)
        except EOFError:
            return
        operation, limit, *arguments = wire.decode(request)
        reply = wire.encode(_answer(database, operation, arguments, fds))
        if len(reply) > limit:
            reply = wire.encode(_too_large(operation, limit))
        wire.send(channel, reply)


def _answer(
    database: EmbeddedDatabase, operation: str, arguments: list[Any], fds: list[int]
) -> Message:
    """Perform a request; return ``[True, value]``, or ``[False, reason]`` if it is refused."""
    try:
        if operation == "open":
            return [True, database.open(fds[0], *arguments)]
        if operation == "execute":
            sql, *limits = arguments
            outcome = database.execute(sql, ResultRowCollector(*limits))
            return [True, [*outcome, outcome[1] is not None and is_exhausted()]]
        if operation == "close":
            database.close()
            return [True, None]
        if operation == "save":
            return [True, database.save(fds[0])]
        return [True, database.state(ResultRowCollector(*arguments))]
    except OSError as error:
        return [False, str(error)]
    finally:
        if operation != "open":  # an open database keeps the descriptor
            for fd in fds:
                os.close(fd)


def is_exhausted() -> bool:
    """Return whether the process has no memory left; a library may keep a statement's memory."""
    try:
        # A shared mapping would not count against the limit of memory.
        mmap.mmap(-1, _SPARE_BYTES, mmap.MAP_PRIVATE).close()
    except OSError:
        return True
    return False


def _too_large(operation: str, limit: int) -> Message:
    reason = f"the result is larger than {limit:,} bytes"
    if operation == "execute":  # the agent is the cause, for instance by a huge column name
        return [True, [[], [reason, "", None], False, True, False]]
    return [False, reason]


class ResultRowCollector:
    """Collector of the rows of one action's results. Rows beyond the limits are only counted.

    Args:
        seconds: Time limit of all statements together.
        max_rows: The most rows of each result to keep.
        max_bytes: Maximum weight of all kept rows and of the column names together: their
            characters and bytes, plus `_PER_VALUE` for each value.
    """

    def __init__(self, seconds: float, max_rows: int, max_bytes: int) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.max_rows = max_rows
        self.remaining_bytes = max_bytes

    def remaining_seconds(self) -> float:
        """Return the seconds until the time limit; negative after it."""
        return self.deadline - time.monotonic()

    def is_late(self) -> bool:
        """Return whether the time limit has been reached."""
        return time.monotonic() >= self.deadline

    def timeout_failure(self) -> Message:
        """Return the failure that reports the time limit."""
        return [f"interrupted: it reached the time limit of {self.seconds:g} s", "", None]

    def result(
        self, columns: Iterable[str], rows: Iterable[Any], affected_rows: int | None
    ) -> Message:
        """Return the result of one statement, in the form of `Message`.

        Args:
            columns: The names of the columns.
            rows: All rows, of which the first are kept.
            affected_rows: The number of changed rows; None: unknown.
        """
        names = list(columns)
        self.remaining_bytes -= sum(len(name) + _PER_VALUE for name in names)
        retained_rows: list[Any] = []
        remaining_rows = self._keep(iter(rows), retained_rows)
        total = (
            len(retained_rows)
            if remaining_rows is None
            else self._count(remaining_rows, len(retained_rows) + 1)
        )
        return [names, retained_rows, total, affected_rows]

    def _keep(self, rows: Iterator[Any], retained_rows: list[Any]) -> Iterator[Any] | None:
        """Keep the rows that fit; return the rows after the first that does not fit, or None."""
        for row in rows:
            if len(retained_rows) >= self.max_rows:
                return rows
            weight = sum([len(value) for value in row if type(value) in _SIZED_TYPES])
            weight += _PER_VALUE * len(row)
            if not _SCALAR_TYPES.issuperset(map(type, row)):
                row = [wire.nest(value) for value in row]
                weight += len(wire.encode(row))
            if weight > self.remaining_bytes:
                return rows
            self.remaining_bytes -= weight
            retained_rows.append(row)
        return None

    def _count(self, rows: Iterator[Any], count: int) -> int | None:
        try:
            for _ in rows:
                count += 1
                if count >= _MAX_COUNTED_ROWS:
                    return None
        except Exception:
            # After the time limit, rows that are not kept may have no count.
            if self.is_late():
                return None
            raise
        return count


def copy_pristine(pristine_descriptor: int, path: Path) -> None:
    """Copy the pristine file to a path, where no incomplete file exists at any time.

    Raises:
        OSError: The file system has no space for the copy.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    copy_descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
    )
    try:
        _transfer(pristine_descriptor, copy_descriptor)
    except OSError:
        temporary.unlink()
        raise
    finally:
        os.close(copy_descriptor)
    temporary.rename(path)


def _transfer(source_descriptor: int, target_descriptor: int) -> None:
    offset, size = 0, os.fstat(source_descriptor).st_size
    while offset < size:
        offset += os.sendfile(
            target_descriptor, source_descriptor, offset, min(_CHUNK, size - offset)
        )
