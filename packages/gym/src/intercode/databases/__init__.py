"""Database engines, in which an agent's SQL runs.

`get_engine` returns a new engine by name or URL. `shared_engine` returns the engine that all
environments of this process share. `find` returns the source of a database: the file with its
pristine content.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from intercode.databases.base import (
    DatabaseEngine,
    DatabaseSession,
    EngineOptions,
    Row,
    SqlActionOutcome,
    StatementFailure,
    StatementResult,
    TableState,
)
from intercode.databases.source import DatabaseSource, find
from intercode.errors import UsageError
from intercode_sandbox.lazy_imports import LazyRegistry
from intercode_sandbox.user_code import absolute, is_reference

__all__ = [
    "DatabaseEngine",
    "EngineOptions",
    "StatementFailure",
    "SqlActionOutcome",
    "StatementResult",
    "Row",
    "DatabaseSession",
    "DatabaseSource",
    "TableState",
    "engine_name",
    "find",
    "get_engine",
    "shared_engine",
]

ENGINES = LazyRegistry(
    "engine",
    {
        "sqlite": "intercode.databases.embedded:sqlite",
        "duckdb": "intercode.databases.embedded:duckdb",
        "mysql": "intercode.databases.servers.mysql:MySQLEngine",
        "postgresql": "intercode.databases.servers.postgresql:PostgreSQLEngine",
    },
    "intercode.engines",
)
"""Name → factory of a `DatabaseEngine`: a function of `EngineOptions`, or a class."""

_SCHEMES = {"mariadb": "mysql", "postgres": "postgresql"}
_SERVERS = ("mysql", "postgresql")
_shared_engines: dict[tuple[int, str, str], DatabaseEngine] = {}
_lock = threading.Lock()


def engine_name(engine: str) -> str:
    """Return the name of the engine that a name or URL selects.

    For example, a URL of PostgreSQL gives ``postgresql``. For an engine from a file, the result is
    the reference ``my.py:make`` with an absolute path.

    Args:
        engine: A name, a server's URL or a file reference, as in `get_engine`.

    Raises:
        UsageError: No engine has this name or URL scheme.
    """
    name = engine
    if "://" in engine:
        scheme = urlsplit(engine).scheme.partition("+")[0].lower()
        name = _SCHEMES.get(scheme, scheme)
        if name not in _SERVERS:
            raise UsageError(f"no engine speaks {scheme}://; known: {', '.join(_SERVERS)}")
    if name not in ENGINES and not is_reference(name):
        raise UsageError(f"{ENGINES.unknown(engine)}, or a server's URL")
    return absolute(name)


def get_engine(
    engine: str = "sqlite",
    progress: Callable[[str], None] | None = None,
    sandbox: str = "native",
) -> DatabaseEngine:
    """Return a new engine; the caller closes it.

    Args:
        engine: The engine's name, URL or file. The embedded engines ``sqlite`` and ``duckdb`` run
            in a sandbox. For ``mysql`` or ``postgresql``, a private server is started from the
            installed binaries. A URL selects a running server, with an account that may create
            databases and users: ``mysql://user:password@host:3306``,
            ``postgresql://user:password@host:5432``, or with a socket
            ``mysql://user@localhost?unix_socket=/run/mysqld/mysqld.sock``. A user's engine is
            ``path/to/file.py:name``, or the name of an entry point.
        progress: A function that is called with a line of text about slow work.
        sandbox: The provider of an embedded engine's sandboxes: ``native``; for SQLite also
            ``docker``.

    Raises:
        UsageError: No such engine exists, the engine does not run in such a sandbox, the URL is
            malformed, or a driver or server is not installed.
        DatabaseError: The engine's server cannot be reached or started.
    """
    name = engine_name(engine)
    if sandbox != "native" and name != "sqlite" and not ENGINES.is_foreign(name):
        reason = "is a server, in no sandbox" if name in _SERVERS else "needs the native sandbox"
        raise UsageError(f"the engine {name!r} {reason}: --sandbox {sandbox} is for sqlite")
    make = ENGINES.resolve(name)
    url = engine if "://" in engine else None
    return cast(DatabaseEngine, make(EngineOptions(url=url, sandbox=sandbox, progress=progress)))


def shared_engine(
    engine: str = "sqlite",
    progress: Callable[[str], None] | None = None,
    sandbox: str = "native",
) -> DatabaseEngine:
    """Return this process's shared engine for a name or URL; the first call creates the engine.

    All environments of the process thus use the same server or the same pool of workers. The engine
    is closed when the process ends.

    Args:
        engine: See `get_engine`.
        progress: See `get_engine`. The function of the first caller is used.
        sandbox: See `get_engine`.

    Raises:
        UsageError, DatabaseError: See `get_engine`.
    """
    # A forked process must not use its parent's connections, so the process id is a part of the
    # key.
    key = os.getpid(), engine, sandbox
    with _lock:
        if key not in _shared_engines:
            new_engine = _shared_engines[key] = get_engine(engine, progress, sandbox)
            atexit.register(_close_in, os.getpid(), new_engine)
        return _shared_engines[key]


def _close_in(pid: int, engine: DatabaseEngine) -> None:
    if os.getpid() == pid:
        engine.close()
