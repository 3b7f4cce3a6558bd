"""Databases, where an agent's SQL runs. `get_engine` returns an engine by name or URL."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from intercode.databases.base import (
    Engine,
    EngineOptions,
    Failure,
    Outcome,
    Result,
    Row,
    Session,
    Table,
)
from intercode.databases.source import Source, find
from intercode.errors import UsageError
from intercode_sandbox.lazy_imports import Registry
from intercode_sandbox.user_code import absolute, is_reference

__all__ = [
    "Engine",
    "EngineOptions",
    "Failure",
    "Outcome",
    "Result",
    "Row",
    "Session",
    "Source",
    "Table",
    "engine_name",
    "find",
    "get_engine",
    "shared_engine",
]

ENGINES = Registry(
    "engine",
    {
        "sqlite": "intercode.databases.embedded:sqlite",
        "duckdb": "intercode.databases.embedded:duckdb",
        "mysql": "intercode.databases.servers.mysql:MySQLEngine",
        "postgresql": "intercode.databases.servers.postgresql:PostgreSQLEngine",
    },
    "intercode.engines",
)
"""Name → a function of `EngineOptions`, or a class, that makes an `Engine`."""

_SCHEMES = {"mariadb": "mysql", "postgres": "postgresql"}
_SERVERS = ("mysql", "postgresql")
_shared_engines: dict[tuple[int, str, str], Engine] = {}
_lock = threading.Lock()


def engine_name(engine: str) -> str:
    """Return the name of an engine by name or URL: ``postgresql`` for a PostgreSQL URL.

    A file's engine, ``my.py:make``, has that name, with an absolute path.

    Raises:
        UsageError: There is no such engine.
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
) -> Engine:
    """Return a new engine, which the caller closes.

    Args:
        engine: ``sqlite`` or ``duckdb``, which run embedded in a sandbox; ``mysql`` or
            ``postgresql``, for which a private server is started from the installed binaries; or
            the URL of a server, with an account that may make databases and users:
            ``mysql://user:password@host:3306``, ``postgresql://user:password@host:5432``,
            or with a socket: ``mysql://user@localhost?unix_socket=/run/mysqld/mysqld.sock``;
            or your own, as ``path/to/file.py:name`` or by an entry point.
        progress: Called with a line of text about work that takes long.
        sandbox: The provider of an embedded engine's sandboxes: ``native``, or, for SQLite,
            ``docker``.

    Raises:
        UsageError: There is no such engine, or it does not run in such a sandbox.
        DatabaseError: Its server cannot be reached or started.
    """
    name = engine_name(engine)
    if sandbox != "native" and name != "sqlite" and not ENGINES.is_foreign(name):
        reason = "is a server, in no sandbox" if name in _SERVERS else "needs the native sandbox"
        raise UsageError(f"the engine {name!r} {reason}: --sandbox {sandbox} is for sqlite")
    make = ENGINES.resolve(name)
    url = engine if "://" in engine else None
    return cast(Engine, make(EngineOptions(url=url, sandbox=sandbox, progress=progress)))


def shared_engine(
    engine: str = "sqlite",
    progress: Callable[[str], None] | None = None,
    sandbox: str = "native",
) -> Engine:
    """Return the process-wide engine of a name or URL: all environments share its server and pool.

    It is closed when the process ends.

    Args:
        engine: As in `get_engine`.
        progress: As in `get_engine`; the first caller's is kept.
        sandbox: As in `get_engine`.
    """
    key = os.getpid(), engine, sandbox  # a forked process shares no connections with its parent
    with _lock:
        if key not in _shared_engines:
            new_engine = _shared_engines[key] = get_engine(engine, progress, sandbox)
            atexit.register(_close_in, os.getpid(), new_engine)
        return _shared_engines[key]


def _close_in(pid: int, engine: Engine) -> None:
    if os.getpid() == pid:
        engine.close()
