"""An engine on a database server: what MySQL and PostgreSQL have in common.

It keeps the server, one template database for each source, and a pool of clones of them.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from intercode.databases.base import EngineOptions, Role
from intercode.databases.servers.pool import IDLE, Clone, ClonePool
from intercode.databases.servers.private import Server
from intercode.databases.servers.session import AnySession, ConnectionLost, Unreachable
from intercode.databases.servers.watchdog import Watchdog
from intercode.databases.source import Source
from intercode.errors import DatabaseError
from intercode.sandbox.base import Limits

_PATIENCE_SECONDS = 30.0


class Administrator(Protocol):
    """A connection with which databases are made and dropped."""

    def ping(self) -> None:
        """Raise `ConnectionLost` if it is gone."""

    def close(self) -> None:
        """End it."""


AdminT = TypeVar("AdminT", bound=Administrator)
CloneT = TypeVar("CloneT", bound=Clone)
TemplateT = TypeVar("TemplateT")


class ServerEngine(ABC, Generic[AdminT, CloneT, TemplateT]):
    """Databases on a server at a URL, or on a private one that is started again if it dies.

    Args:
        options: The URL, if it has one.
        start: Starts a private server.

    Raises:
        UsageError: The URL is malformed, or nothing is installed.
        DatabaseError: The server cannot be started or reached.
    """

    name: str
    dialect: str

    def __init__(self, options: EngineOptions, start: Callable[[], Server]) -> None:
        self._progress: Callable[[str], None] | None = options.progress
        self._start = start
        self._server: Server | None = None
        self._is_ours = options.url is None
        self._connect_args = {} if options.url is None else self._parse(options.url)
        self._lock = threading.RLock()
        self._generation = 0
        self._closed = False
        self._admins: list[AdminT] = []
        self._templates: dict[str, TemplateT] = {}
        self._filling: dict[str, threading.Lock] = {}
        self._sessions: set[AnySession] = set()
        self.watchdog = Watchdog()
        self._pool = ClonePool(self._make, self.discard)
        try:
            with self.admin() as admin:
                self._facts = self._look(admin)
                if not self._is_ours:
                    self._sweep(admin)
        except BaseException:
            self.close()
            raise

    # --- the contract ------------------------------------------------------------------------

    def open(
        self, source: Source, limits: Limits | None = None, role: Role = "agent"
    ) -> AnySession:
        """See `intercode.databases.base.Engine.open`."""
        limits = limits or Limits()
        self._ensure()
        for _ in range(IDLE + 1):  # every idle one may be stale
            clone = self._pool.take(source, role)
            try:
                session = self._session(clone, source, role, limits)
            except ConnectionLost:  # it was idle for too long, or on a server that has died
                self._pool.replace(source, role, clone)
                self._ensure()
                continue
            with self._lock:
                self._sessions.add(session)
            return session
        raise DatabaseError(f"{self.name}: its connections are lost as soon as they are made")

    def facts(self) -> Mapping[str, Any]:
        """See `intercode.databases.base.Engine.facts`."""
        return dict(self._facts)

    def close(self) -> None:
        """See `intercode.databases.base.Engine.close`."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._server is not None:
            self._server.close()  # first, so that nothing waits for what it still does
        self._pool.close()
        self.watchdog.close()
        if not self._is_ours:
            with suppress(DatabaseError):  # it is gone, or the next start sweeps
                self._drop_templates()
        for admin in self._admins:
            admin.close()

    # --- for sessions ------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Which start of the server this is."""
        return self._generation

    def give_back(self, session: AnySession, clone: CloneT, pristine: bool) -> None:
        """A session has ended."""
        with self._lock:
            self._sessions.discard(session)
        if pristine:
            self._pool.give_back(session.source, session.role, clone)
        else:
            self._pool.replace(session.source, session.role, clone)

    @contextmanager
    def admin(self, patient: bool = True) -> Iterator[AdminT]:
        """A connection of the administrator's, for this thread alone.

        Args:
            patient: Whether to wait for a server that does not answer, and to start ours anew.

        Raises:
            DatabaseError: There is none to be had, or it was lost.
        """
        admin = self._borrow(patient)
        try:
            yield admin
        except ConnectionLost as lost:
            admin.close()
            raise DatabaseError(f"the connection to the server was lost: {lost}") from None
        except BaseException:
            admin.close()
            raise
        with self._lock:
            if not self._closed:
                self._admins.append(admin)
                return
        admin.close()

    def discard(self, clone: CloneT) -> None:
        """Throw a clone away. Never fails: what is left is swept at the next start."""
        if clone.generation == self._generation and not (self._is_ours and self._closed):
            with suppress(DatabaseError), self.admin(patient=False) as admin:
                self._drop(admin, clone)
                return
        self._forget(clone)

    # --- what an engine adds -----------------------------------------------------------------

    @abstractmethod
    def _parse(self, url: str) -> dict[str, Any]:
        """What the driver takes, from a URL."""

    @abstractmethod
    def _connect(self, connect_args: Mapping[str, Any]) -> AdminT:
        """Connect as administrator. Raises `Unreachable`."""

    @abstractmethod
    def _look(self, admin: AdminT) -> dict[str, Any]:
        """Product and version."""

    @abstractmethod
    def _sweep(self, admin: AdminT) -> None:
        """Drop what runs that were killed have left."""

    @abstractmethod
    def _fill(self, source: Source) -> TemplateT:
        """Make a template."""

    @abstractmethod
    def _clone(self, template: TemplateT, source: Source) -> CloneT:
        """Make a clone. Raises `LookupError` if the template is not there any more."""

    @abstractmethod
    def _drop(self, admin: AdminT, clone: CloneT) -> None:
        """Drop a clone, its account and its connection."""

    @abstractmethod
    def _forget(self, clone: CloneT) -> None:
        """Close a clone's connection, where nothing is to be dropped."""

    @abstractmethod
    def _drop_templates(self) -> None:
        """Drop all templates."""

    @abstractmethod
    def _session(self, clone: CloneT, source: Source, role: Role, limits: Limits) -> AnySession:
        """A session with a clone. Raises `ConnectionLost`."""

    # --- the server --------------------------------------------------------------------------

    def _ensure(self) -> None:
        """Have a server that runs, if it is ours: at first, and when it has died."""
        with self._lock:
            if self._closed:
                raise DatabaseError(f"the engine {self.name} is closed")
            if not self._is_ours or (self._server is not None and self._server.alive):
                return
            if self._server is not None:
                self._say(f"the {self.name} server has died and is started anew")
                self._lose_everything()
                self._server.close()
            self._server = self._start()
            self._connect_args = self._server.connect_args

    def _lose_everything(self) -> None:
        self._generation += 1
        self._templates.clear()
        for admin in self._admins:
            admin.close()
        self._admins.clear()
        for clone in self._pool.clear():
            self._forget(clone)

    def _borrow(self, patient: bool) -> AdminT:
        while True:
            with self._lock:
                admin = self._admins.pop() if self._admins else None
            if admin is None:
                return self._connect_patiently(_PATIENCE_SECONDS if patient else 0.0)
            try:
                admin.ping()
            except ConnectionLost:
                admin.close()
            else:
                return admin

    def _connect_patiently(self, seconds: float) -> AdminT:
        deadline, pause = time.monotonic() + seconds, 0.02
        while True:
            if seconds:
                self._ensure()
            try:
                return self._connect(self._connect_args)
            except Unreachable as error:
                if time.monotonic() + pause > deadline:
                    message = f"the {self.name} server does not answer: {error}"
                    raise DatabaseError(message) from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)

    # --- clones ------------------------------------------------------------------------------

    def _make(self, source: Source) -> CloneT:
        try:
            template = self._template(source)
            try:
                return self._clone(template, source)
            except LookupError:
                with self._lock:
                    if self._templates.get(source.digest) is template:
                        del self._templates[source.digest]
                return self._clone(self._template(source), source)
        except (ConnectionLost, Unreachable) as error:
            raise DatabaseError(f"the {self.name} server was lost: {error}") from None

    def _template(self, source: Source) -> TemplateT:
        with self._lock:
            filling = self._filling.setdefault(source.digest, threading.Lock())
        with filling:
            found = self._templates.get(source.digest)
            if found is None:
                generation = self._generation
                found = self._fill(source)
                with self._lock:
                    if generation == self._generation:
                        self._templates[source.digest] = found
            return found

    def _say(self, line: str) -> None:
        if self._progress is not None:
            self._progress(line)
