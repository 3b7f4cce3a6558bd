"""How a PostgreSQL database is filled once, and cloned from then on.

What is in it belongs to ``pg_database_owner``, a role that whoever owns the database is in: so the
owner of a clone owns its tables, and nothing needs to be changed in the clone. A clone is a copy
of the template's files; measured on PostgreSQL 15, 2 cores, medians: 28 ms with the strategy
``file_copy``, 62 ms with ``wal_log``, and 5 ms to drop it.
"""

from __future__ import annotations

from collections.abc import Callable

from intercode.databases.convert import build, schema
from intercode.databases.convert.schema_ddl import identifier
from intercode.databases.servers.postgresql_client import PostgreSQLConnection
from intercode.databases.source import Source
from intercode.errors import DatabaseError, TaskError

_OWNER = "pg_database_owner"
_RELATIONS = (
    "SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, "
    "oid::regclass::text FROM pg_class "
    "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') ORDER BY oid"
)
_SECRETS = ("pg_database", "pg_stat_activity", "pg_stat_database", "pg_roles", "pg_user")
"""What shows the other databases on the server, and who is at work there."""


def fill(
    connection: PostgreSQLConnection, source: Source, progress: Callable[[str], None] | None
) -> None:
    """Fill an empty database with a source's content, as its owner, who may do no more.

    Raises:
        TaskError: The source cannot be read, or the server refuses what is in it.
    """
    path = build.as_sqlite(source, progress)
    try:
        shape = schema.read_schema(path)
        for statement in schema.create_statements(shape, "postgres", progress):
            connection.query(statement)
        for table in shape.tables:
            connection.insert(identifier(table.name, "postgres"), schema.rows(path, table))
        for statement in schema.finish_statements(shape, "postgres", progress):
            failure = connection.run(statement).failure
            if failure is not None and progress is not None:
                progress(f"left out: {statement}: {failure.message}")
        for kind, name in connection.query(_RELATIONS):
            connection.query(f"ALTER {kind} {name} OWNER TO {_OWNER}")
        connection.query("ANALYZE")
    except DatabaseError as error:
        raise TaskError(f"{source.path}: {source.name} cannot be loaded: {error}") from error


def close_off(connection: PostgreSQLConnection) -> None:
    """As the server's superuser: have a database, and its clones, show nothing of the others."""
    connection.query("; ".join(f"REVOKE SELECT ON pg_catalog.{s} FROM PUBLIC" for s in _SECRETS))
    # A function of `information_schema.columns` that looks up this database's encoding there.
    connection.query(
        "ALTER FUNCTION information_schema._pg_char_octet_length(oid, int4) SECURITY DEFINER"
    )
