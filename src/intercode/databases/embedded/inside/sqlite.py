"""SQLite in a worker: sessions that begin on the pristine file and copy it when they write."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from intercode.databases.embedded.inside import files
from intercode.databases.embedded.inside.results import Collector, Message
from intercode.databases.embedded.inside.serve import serve
from intercode.databases.embedded.inside.sqlite_file import Redirection
from intercode.databases.embedded.inside.sqlite_guard import Guard
from intercode.databases.embedded.inside.sqlite_split import position, split

_STEPS = 10_000
"""How many of SQLite's own steps are taken between two looks at the clock: well under 1 ms."""
_LONGEST_VALUE = 1 << 28
_LIMIT_LENGTH = 0  # sqlite3.SQLITE_LIMIT_LENGTH, since Python 3.11
_HIDDEN = 1
_TABLES = (
    "SELECT name, type FROM main.sqlite_master WHERE type IN ('table', 'view') "
    "AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name"
)


class Database:
    """See `serve.Database`."""

    def __init__(self) -> None:
        self.redirection = Redirection()
        self.guard = Guard()
        self.collector = Collector(0, 0, 0)
        self.connection: sqlite3.Connection | None = None
        self.pristine = -1
        self.path = Path()

    # -- sessions --------------------------------------------------------------------------------

    def open(self, pristine: int, name: str, resume: bool, memory: int) -> bool:
        """Begin a session, on the pristine file or on the copy that there is."""
        self.pristine, self.path = pristine, files.FOLDER / f"{name}.sqlite"
        copied = resume and self.path.exists()
        try:
            self.connect(writable=copied)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
        return copied

    def close(self) -> None:
        """End the session and delete its copy."""
        if self.connection is not None:
            self.connection.close()
            os.close(self.pristine)
            self.connection = None
        files.clear()

    def connect(self, writable: bool) -> None:
        """Open the copy, or the pristine file as if it lay at the copy's place."""
        self.redirection.descriptors.clear()
        if not writable and self.redirection.works:
            self.redirection.descriptors[os.fsencode(self.path)] = self.pristine
        elif not self.path.exists():
            files.copy(self.pristine, self.path)
        address = f"file:{quote(str(self.path))}?" + (
            "mode=rw" if writable else "mode=ro&immutable=1"
        )
        self.connection = connection = sqlite3.connect(
            address, uri=True, isolation_level=None, cached_statements=0
        )
        connection.text_factory = _text
        connection.set_progress_handler(self.late, _STEPS)
        if hasattr(connection, "setlimit"):  # Python 3.10 lacks it; the sandbox's limit holds
            connection.setlimit(_LIMIT_LENGTH, _LONGEST_VALUE)
        self.guard.writable = writable
        connection.set_authorizer(self.guard)

    def make_writable(self) -> None:
        """Go on with a copy: as nothing but reads came before, nothing is lost."""
        self.live.close()
        try:
            self.connect(writable=True)
        except OSError as error:
            self.connect(writable=False)
            raise sqlite3.OperationalError("database or disk is full") from error

    @property
    def live(self) -> sqlite3.Connection:
        """The connection."""
        assert self.connection is not None, "a session is open"
        return self.connection

    def late(self) -> bool:
        """Whether the statement that runs is to be interrupted."""
        return self.collector.late()

    # -- actions ---------------------------------------------------------------------------------

    def execute(self, sql: str, collector: Collector) -> Message:
        """Run an action's statements, up to the first that fails."""
        self.collector = collector
        results: list[Message] = []
        failure, late = None, False
        for begin, statement in split(sql):
            try:
                results.append(self.run(statement))
            except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
                failure, late = _failure(error, statement, begin), collector.late()
            if failure is None and collector.late():
                late = True  # for instance by very many statements
            if failure is not None or late:
                break
        return [results, collector.lateness() if late else failure, late, self.guard.writable]

    def run(self, statement: str) -> Message:
        """Run one statement; on a copy, if it does more than read."""
        try:
            return self.result(statement)
        except sqlite3.DatabaseError:
            if self.guard.writable or not self.guard.asked_to_write:
                raise
        self.make_writable()
        return self.result(statement)

    def result(self, statement: str) -> Message:
        """Run one statement here and now."""
        self.guard.asked_to_write = self.guard.changes = False
        with closing(self.live.execute(statement)) as cursor:
            columns = [column[0] for column in cursor.description or ()]
            result = self.collector.result(columns, cursor, None)
        if self.guard.changes:
            result[-1] = self.live.execute("SELECT changes()").fetchone()[0]
        return result

    # -- state -----------------------------------------------------------------------------------

    def state(self, collector: Collector) -> Message:
        """All tables and views of the main schema."""
        self.collector = collector
        try:
            self.end_transaction()
            found = self.live.execute(_TABLES).fetchall()
            return [self.table(name, kind) for name, kind in found]
        except (sqlite3.Error, MemoryError) as error:
            raise OSError(str(error) or "out of memory") from error

    def end_transaction(self) -> None:
        """Commit, or if that is refused, for instance by a deferred foreign key, roll back."""
        if self.live.in_transaction:
            try:
                self.live.execute("COMMIT")
            except sqlite3.Error:
                self.live.execute("ROLLBACK")

    def table(self, name: str, kind: str) -> Message:
        """One table or view; a view over what is no longer there has no columns."""
        quoted = '"' + name.replace('"', '""') + '"'
        try:
            columns = self.live.execute(f"PRAGMA main.table_xinfo({quoted})").fetchall()
            with closing(self.live.execute(f"SELECT * FROM main.{quoted}")) as cursor:
                _, rows, total, _ = self.collector.result((), cursor, None)
        except sqlite3.Error:
            if kind == "view" and not self.collector.late():
                return [name, kind, [], []]
            raise
        if total != len(rows):
            raise OSError(f"{name} has more rows than the limits allow")
        return [name, kind, [[c[1], c[2]] for c in columns if c[6] != _HIDDEN], rows]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _failure(error: Exception, statement: str, begin: int) -> Message:
    message = str(error) or "out of memory"
    code = getattr(error, "sqlite_errorname", "")  # since Python 3.11
    return [message, code, position(message, statement, begin)]


def main(channel: socket.socket) -> None:
    """See `sandbox.base.Sandbox.worker`."""
    serve(channel, Database())
