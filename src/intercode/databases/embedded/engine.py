"""SQLite and DuckDB: engines that are a library, run in worker processes inside sandboxes.

A hostile statement meets the sandbox's limits and never the runner. A session begins on a pristine
file in sealed memory, shared by all workers; only what writes pays for a copy of it, in the
sandbox's own memory file system.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intercode.databases.base import EngineOptions, Role
from intercode.databases.convert.build import as_sqlite
from intercode.databases.embedded.pristine import PristineFiles
from intercode.databases.embedded.session import EmbeddedSession
from intercode.databases.embedded.worker import EmbeddedWorker, WorkerPool
from intercode.databases.source import Source
from intercode.errors import UsageError
from intercode.sandbox.base import Limits, Provider
from intercode.sandbox.native.provider import NativeProvider

_WORKERS = "intercode.databases.embedded.inside."
_IMAGE = "scratch"


@dataclass(frozen=True, slots=True)
class Library:
    """What tells one embedded engine from another."""

    name: str
    product: str
    version: str
    path: Sequence[str]
    """Where a worker finds it, if it is not Python's own."""
    file: Callable[[Source, EngineOptions], Path]
    """A source as a file of its own format."""


def sqlite(options: EngineOptions) -> EmbeddedEngine:
    """The engine ``sqlite``: Python's own."""
    version = sqlite3.sqlite_version
    return EmbeddedEngine(Library("sqlite", "SQLite", version, (), _sqlite_file), options)


def _sqlite_file(source: Source, options: EngineOptions) -> Path:
    return as_sqlite(source, options.progress)


def duckdb(options: EngineOptions) -> EmbeddedEngine:
    """The engine ``duckdb``, an optional one.

    Raises:
        UsageError: It is not installed.
    """
    found = importlib.util.find_spec("duckdb")
    if found is None or found.origin is None:
        raise UsageError("the engine 'duckdb' needs: pip install 'intercode-gym[duckdb]'")
    version = importlib.metadata.version("duckdb")
    path = (str(Path(found.origin).parents[1]),)
    return EmbeddedEngine(Library("duckdb", "DuckDB", version, path, _duckdb_file), options)


def _duckdb_file(source: Source, options: EngineOptions) -> Path:
    from intercode.databases.convert.to_duckdb import as_duckdb

    return as_duckdb(source, options.progress)


class EmbeddedEngine:
    """See `databases.base.Engine`."""

    def __init__(self, library: Library, options: EngineOptions) -> None:
        self.name = self.dialect = library.name
        self._library = library
        self._options = options
        self._module = f"{_WORKERS}{library.name}"
        self._provider = _provider(options, (self._module,), library.path)
        self._files = PristineFiles()
        self._pool = WorkerPool(self._start)

    def open(
        self, source: Source, limits: Limits | None = None, role: Role = "agent"
    ) -> EmbeddedSession:
        """A session over a pristine database with the source's content."""
        limits = limits or Limits()
        pristine = self._files.get(source.digest, lambda: self._library.file(source, self._options))
        return EmbeddedSession(source, limits, role, pristine, self._pool)

    def _start(self, limits: Limits) -> EmbeddedWorker:
        sandbox = self._provider.start(_IMAGE, limits)
        try:
            return EmbeddedWorker(sandbox, self._module)
        except BaseException:
            sandbox.close()
            raise

    def facts(self) -> Mapping[str, Any]:
        """Product and version."""
        return {"product": self._library.product, "version": self._library.version}

    def close(self) -> None:
        """End all sessions and leave nothing behind."""
        self._pool.close()
        self._provider.close()
        self._files.clear()


def _provider(options: EngineOptions, preload: Sequence[str], path: Sequence[str]) -> Provider:
    if options.sandbox == "native":
        return NativeProvider(options.progress, preload, path)
    from intercode.sandbox.docker.provider import DockerProvider

    return DockerProvider(options.progress, preload, path)
