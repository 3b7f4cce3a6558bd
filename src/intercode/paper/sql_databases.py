"""The databases of a replay or of an environment of 2023, by the name of an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from intercode.databases import Engine, engine_name, get_engine
from intercode.databases.source import find, names
from intercode.errors import UsageError
from intercode.paper.sql_connection import Connection, Databases
from intercode.paper.sql_engine import EngineDatabases


def usual_engine() -> str:
    """``mysql`` where its server and driver are installed, else ``sqlite``."""
    with suppress(UsageError):
        from intercode.databases.servers.private import mysql_recipe

        mysql_recipe()
        return "mysql"
    return "sqlite"


def open_databases(
    engine: str,
    place: Path,
    dialect: str = "mysql",
    tell: Callable[[str], None] | None = None,
) -> Databases:
    """The databases, pristine; the caller's to close.

    A dump goes into MySQL as it is, under its own names. Anything else goes through our engines.

    Args:
        engine: An engine's name, or a server's URL.
        place: The folder or file that holds the databases.
        dialect: The language of actions and golds.
        tell: Is told what takes long, and what may spoil the result.

    Raises:
        UsageError: There is no such engine, or its server cannot be used.
        DatabaseError: The engine failed.
    """
    if engine_name(engine) == "mysql" and _is_dump(place):
        from intercode.paper.sql_server import MySQLDatabases

        return MySQLDatabases(place, engine if "://" in engine else None, tell)
    return OwnEngine(get_engine(engine, tell), place, dialect)


class OwnEngine:
    """Databases on an engine that goes with them.

    Args:
        engine: The engine.
        place: The folder or file that holds the databases.
        dialect: The language of actions and golds.
    """

    def __init__(self, engine: Engine, place: Path, dialect: str) -> None:
        self._made = engine
        self._databases = EngineDatabases(engine, partial(find, place), dialect)
        self.engine = self._databases.engine

    def connect(self) -> Connection:
        """A new connection."""
        return self._databases.connect()

    def close(self) -> None:
        """Leave nothing behind. Idempotent."""
        self._databases.close()
        self._made.close()


def _is_dump(place: Path) -> bool:
    return place.is_file() and find(place, names(place)[0]).kind == "dump"
