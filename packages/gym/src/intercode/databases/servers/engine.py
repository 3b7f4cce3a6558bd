"""Common base of the engines on a database server, MySQL and PostgreSQL.

An engine holds the server and one template database for each source. A clone is a copy of a
template for one session; the engine keeps a pool of clones.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from intercode.databases.base import EngineOptions, Role, Row
from intercode.databases.convert import build, make_views, schema, schema_ddl
from intercode.databases.convert.schema import TableSchema
from intercode.databases.resource_pool import ResourcePool
from intercode.databases.servers.database_names import is_leftover
from intercode.databases.servers.private_server import PrivateDatabaseServer
from intercode.databases.servers.session import (
    AnySession,
    ConnectionT,
    DatabaseClone,
    DatabaseConnectionLoss,
    UnreachableDatabaseServer,
)
from intercode.databases.servers.statement_timeouts import StatementWatchdog
from intercode.databases.source import DatabaseSource
from intercode.errors import DatabaseError, TaskError, UsageError
from intercode.secrets import variables
from intercode_sandbox.base import Limits

_PATIENCE_SECONDS = 30.0
_MAX_IDLE_CLONES = 128
"""Maximum number of idle clones in the pool."""


class TemplateDatabase(Protocol):
    """A database with the content of a source, from which clones are copied."""

    @property
    def name(self) -> str:
        """The name of the database on the server."""


TemplateT = TypeVar("TemplateT", bound=TemplateDatabase)


class DatabaseServerEngine(ABC, Generic[ConnectionT, TemplateT]):
    """Databases on a server at a URL, or on a private server that is restarted after it dies.

    Args:
        options: The engine's options; without a URL the server is private.
        start: Starts a private server.

    Raises:
        UsageError: The URL is malformed, or no server is installed.
        DatabaseError: The server cannot be started or reached.
    """

    name: str
    dialect: schema_ddl.Dialect
    session: ClassVar[type[AnySession]]
    leftover_queries: ClassVar[Sequence[tuple[str, str]]]
    """Pairs for the deletion of leftovers.

    The first part is a query that lists databases or accounts whose names begin with ``ic``. The
    second is the statement that drops one of them; `names.is_leftover` selects the names to drop.
    """
    database_query: ClassVar[str]
    """The query that finds a database by its name."""

    def __init__(self, options: EngineOptions, start: Callable[[], PrivateDatabaseServer]) -> None:
        self._progress: Callable[[str], None] | None = options.progress
        self._start = start
        self._server: PrivateDatabaseServer | None = None
        self._is_ours = options.url is None
        self._connect_args = {} if options.url is None else self._parse(options.url)
        self._lock = threading.RLock()
        self._generation = 0
        self._closed = False
        self._admins: list[ConnectionT] = []
        self._templates: dict[str, TemplateT] = {}
        self._template_locks: dict[str, threading.Lock] = {}
        self._sessions: set[AnySession] = set()
        self.watchdog = StatementWatchdog()
        # Clones are pooled by content and role, so a grader never gets a clone that an agent has
        # used.
        self._pool: ResourcePool[tuple[str, Role], DatabaseClone[ConnectionT]] = ResourcePool(
            self.discard, _MAX_IDLE_CLONES
        )
        try:
            with self.admin() as admin:
                self._facts = self._inspect_server(admin)
                if not self._is_ours:
                    self._sweep(admin)
        except BaseException:
            self.close()
            raise

    # --- the contract ------------------------------------------------------------------------

    def open(
        self, source: DatabaseSource, limits: Limits | None = None, role: Role = "agent"
    ) -> AnySession:
        """Open a session; see `intercode.databases.base.DatabaseEngine.open`."""
        limits = limits or Limits()
        key, make_clone = (source.digest, role), partial(self._make_clone, source)
        self._ensure_server()
        for _ in range(_MAX_IDLE_CLONES + 1):  # the connections of all idle clones may be lost
            clone = self._pool.take(key, make_clone)
            try:
                session = self.session(self, clone, source, role, limits)
            except (
                DatabaseConnectionLoss
            ):  # the clone was idle for too long, or its server has died
                self._pool.replace(key, clone, make_clone)
                self._ensure_server()
                continue
            with self._lock:
                self._sessions.add(session)
            return session
        raise DatabaseError(f"{self.name}: connections are lost immediately after they open")

    def facts(self) -> Mapping[str, Any]:
        """Return product and version; see `intercode.databases.base.DatabaseEngine.facts`."""
        return dict(self._facts)

    def close(self) -> None:
        """End all sessions; see `intercode.databases.base.DatabaseEngine.close`."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._server is not None:
            self._server.close()  # the server ends first, so no caller waits for its responses
        self._pool.close()
        self.watchdog.close()
        if not self._is_ours:
            # If the templates cannot be dropped, a later run drops them (`_sweep`).
            with suppress(DatabaseError), self.admin(should_wait=False) as admin:
                for template in self._templates.values():
                    self._drop_named(admin, template.name)
        for admin in self._admins:
            admin.close()

    # --- for sessions; see `session.CloneProvider` -------------------------------------------

    @property
    def generation(self) -> int:
        """The number of restarts of a private server. For a server at a URL the number stays 0."""
        return self._generation

    @abstractmethod
    def connect_to(self, clone: DatabaseClone[ConnectionT], for_state: bool = False) -> ConnectionT:
        """Connect to a clone with the account of the clone."""

    @abstractmethod
    def check_same_server(self, clone: DatabaseClone[ConnectionT]) -> None:
        """Check that the clone's server still runs, and was not restarted."""

    def give_back(
        self, session: AnySession, clone: DatabaseClone[ConnectionT], pristine: bool
    ) -> None:
        """Return the clone of an ended session to the pool.

        Args:
            session: The session.
            clone: The clone.
            pristine: Whether the session has only read; otherwise the clone is replaced.
        """
        with self._lock:
            self._sessions.discard(session)
        key = (session.source.digest, session.role)
        if pristine:
            self._pool.give_back(key, clone)
        else:
            self._pool.replace(key, clone, partial(self._make_clone, session.source))

    @contextmanager
    def admin(self, should_wait: bool = True) -> Iterator[ConnectionT]:
        """Yield an administrator's connection, which only this thread uses during the block.

        Args:
            should_wait: Whether to wait for a server that does not respond, and to restart a
                private server that has died.

        Raises:
            DatabaseError: No connection is possible, or it was lost.
        """
        admin = self._borrow(should_wait)
        try:
            yield admin
        except DatabaseConnectionLoss as loss:
            admin.close()
            raise DatabaseError(f"the connection to the server was lost: {loss}") from None
        except BaseException:
            admin.close()
            raise
        with self._lock:
            if not self._closed:
                self._admins.append(admin)
                return
        admin.close()

    def discard(self, clone: DatabaseClone[ConnectionT]) -> None:
        """Drop a clone. If this fails, a later run on the same server drops the clone (`_sweep`).

        If the clone's server was restarted, or is private and closed, only the connection is ended.
        """
        if clone.generation == self._generation and not (self._is_ours and self._closed):
            with suppress(DatabaseError), self.admin(should_wait=False) as admin:
                self._drop(admin, clone)
                return
        clone.connection.close()

    # --- the parts of one engine -------------------------------------------------------------

    @abstractmethod
    def _parse(self, url: str) -> dict[str, Any]:
        """Return the arguments of the driver's ``connect`` for a URL."""

    @abstractmethod
    def _connect(self, connect_args: Mapping[str, Any]) -> ConnectionT:
        """Connect as the administrator. Raises `UnreachableDatabaseServer`."""

    @abstractmethod
    def _inspect_server(self, admin: ConnectionT) -> dict[str, Any]:
        """Return the server's product and version, and set the attributes that depend on them."""

    @abstractmethod
    def _make_empty(self, admin: ConnectionT) -> DatabaseClone[ConnectionT]:
        """Create an empty database and its account, and connect with this account."""

    @abstractmethod
    def _load(
        self, admin: ConnectionT, clone: DatabaseClone[ConnectionT], source: DatabaseSource
    ) -> TemplateT:
        """Load the content of a source into an empty database, and return it as a template.

        The database's own account loads the content, so the content gets no other privileges.

        Raises `TaskError`, `DatabaseError`.
        """

    @abstractmethod
    def _insert(self, connection: ConnectionT, table: TableSchema, rows: Iterator[Row]) -> None:
        """Insert rows into a table. Raises `DatabaseError`."""

    @abstractmethod
    def _copy(self, admin: ConnectionT, template: TemplateT) -> DatabaseClone[ConnectionT]:
        """Create a clone with the content of a template. Raises `DatabaseError`."""

    @abstractmethod
    def _drop_named(self, admin: ConnectionT, name: str) -> None:
        """Drop a database and the account of the same name."""

    def _drop(self, admin: ConnectionT, clone: DatabaseClone[ConnectionT]) -> None:
        """Close a clone's connection, and drop the clone and its account."""
        clone.connection.close()
        self._drop_named(admin, clone.name)

    def _sweep(self, admin: ConnectionT) -> None:
        """Drop the databases and accounts that killed runs have left on the server."""
        for list_query, drop_statement in self.leftover_queries:
            for row in admin.query(list_query):
                if is_leftover(str(row[0])):
                    admin.run(drop_statement.format(*row))

    # --- the server --------------------------------------------------------------------------

    def _ensure_server(self) -> None:
        """Start the private server if it does not run. A server at a URL is left alone."""
        with self._lock:
            if self._closed:
                raise DatabaseError(f"the engine {self.name} is closed")
            if not self._is_ours or (self._server is not None and self._server.alive):
                return
            if self._server is not None:
                self._report_line(f"the {self.name} server has died and is restarted")
                self._reset_state()
                self._server.close()
            self._server = self._start()
            self._connect_args = self._server.connect_args

    def _reset_state(self) -> None:
        self._generation += 1
        self._templates.clear()
        for admin in self._admins:
            admin.close()
        self._admins.clear()
        for clone in self._pool.clear():
            clone.connection.close()

    def _borrow(self, should_wait: bool) -> ConnectionT:
        while True:
            with self._lock:
                admin = self._admins.pop() if self._admins else None
            if admin is None:
                return self._connect_patiently(_PATIENCE_SECONDS if should_wait else 0.0)
            try:
                admin.ping()
            except DatabaseConnectionLoss:
                admin.close()
            else:
                return admin

    def _connect_patiently(self, seconds: float) -> ConnectionT:
        deadline, pause = time.monotonic() + seconds, 0.02
        while True:
            if seconds:
                self._ensure_server()
            try:
                return self._connect(self._connect_args)
            except UnreachableDatabaseServer as error:
                if time.monotonic() + pause > deadline:
                    message = f"the {self.name} server does not answer: {error}"
                    raise DatabaseError(message) from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    # --- clones ------------------------------------------------------------------------------

    def _make_clone(self, source: DatabaseSource) -> DatabaseClone[ConnectionT]:
        try:
            template = self._get_template(source)
            try:
                return self._clone(template)
            except LookupError:
                with self._lock:
                    if self._templates.get(source.digest) is template:
                        del self._templates[source.digest]
                return self._clone(self._get_template(source))
        except (DatabaseConnectionLoss, UnreachableDatabaseServer) as error:
            raise DatabaseError(f"the {self.name} server was lost: {error}") from None

    def _clone(self, template: TemplateT) -> DatabaseClone[ConnectionT]:
        """Create a clone of a template. Raises `LookupError` if the template no longer exists."""
        with self.admin() as admin:
            try:
                return self._copy(admin, template)
            except DatabaseError as error:
                if not admin.query(self.database_query, template.name):
                    raise LookupError(template.name) from error
                raise

    def _get_template(self, source: DatabaseSource) -> TemplateT:
        with self._lock:
            template_lock = self._template_locks.setdefault(source.digest, threading.Lock())
        with template_lock:
            template = self._templates.get(source.digest)
            if template is None:
                generation = self._generation
                template = self._fill_template(source)
                with self._lock:
                    if generation == self._generation:
                        self._templates[source.digest] = template
            return template

    def _fill_template(self, source: DatabaseSource) -> TemplateT:
        self._report_line(f"loading {source.name} into {self.name}")
        with self.admin() as admin:
            clone = self._make_empty(admin)
            try:
                return self._load(admin, clone, source)
            except (DatabaseError, TaskError) as error:
                self._drop(admin, clone)
                if isinstance(error, TaskError):
                    raise
                reason = f"{source.path}: {source.name} cannot be loaded: {error}"
                raise TaskError(reason) from error
            finally:
                clone.connection.close()

    def _convert(self, connection: ConnectionT, source: DatabaseSource) -> None:
        """Load the content of a source into an empty database, by way of an SQLite file."""
        path = build.as_sqlite(source, self._progress)
        shape = schema.read_schema(path)
        for statement in schema_ddl.create_statements(shape, self.dialect, self._progress):
            connection.query(statement)
        for table in shape.tables:
            self._insert(connection, table, schema.rows(path, table))
        views = schema_ddl.view_statements(shape, self.dialect, self._progress)
        problems = make_views(views, connection.failure_message)
        for statement in schema_ddl.finish_statements(shape, self.dialect):
            if (problem := connection.failure_message(statement)) is not None:
                problems[statement] = problem
        for statement, problem in problems.items():
            self._report_line(f"left out: {statement}: {problem}")

    def _report_line(self, line: str) -> None:
        if self._progress is not None:
            self._progress(line)


def parse_url(
    url: str, product: str, port: int, user: str, secret: str, options: Sequence[str]
) -> tuple[dict[str, Any], SplitResult]:
    """Return the driver's arguments for a server's URL, and the parsed URL.

    Args:
        url: The URL.
        product: The server's product, for error messages.
        port: The default port.
        user: The default user.
        secret: The environment variable that holds the password, if the URL has no password.
        options: The names of options that the URL may have.

    Raises:
        UsageError: The URL has no valid port, or an option that is not in `options`.
    """
    url_parts = urlsplit(url)
    password = url_parts.password
    try:
        connect_args: dict[str, Any] = {
            "host": url_parts.hostname or "localhost",
            "port": url_parts.port or port,
            "user": unquote(url_parts.username or user),
            "password": variables().get(secret, "") if password is None else unquote(password),
        }
    except ValueError:
        raise UsageError(f"the URL of a {product} server has no valid port") from None
    for key, value in parse_qsl(url_parts.query):
        if key not in options:
            raise UsageError(f"the URL of a {product} server has no option {key!r}")
        connect_args[key] = value
    return connect_args, url_parts
