r"""Schema commands: the commands of database clients that show the schema, on every engine.

The commands include ``.tables`` and ``.schema [TABLE]`` of SQLite's client, ``SHOW TABLES``,
``DESCRIBE TABLE`` and ``SHOW CREATE TABLE`` of MySQL's, ``\d [TABLE]`` and ``\dt`` of PostgreSQL's.
The module answers them by queries of the engine's own catalog in the agent's session. The commands
therefore show no more than the agent's queries could show. A command that the engine itself knows
is not answered by this module: the engine executes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from intercode.databases.base import SqlActionOutcome, StatementFailure, StatementResult
from intercode.sql_identifiers import quote_identifier

Run = Callable[[str], SqlActionOutcome]
"""A function that runs a statement in the agent's session."""

_NAME = r"""(?P<name>"(?:[^"]|"")+"|`[^`]+`|'[^']+'|[\w.$]+)"""
_COMMAND = re.compile(
    rf"""(?P<tables>\.tables|\\dt\+?|\\d\+?|SHOW\s+(?:FULL\s+)?TABLES)
    | (?P<schema>\.schema|SHOW\s+CREATE\s+TABLE|\.fullschema)(?:\s+{_NAME})?
    | (?P<columns>\\d\+?|DESCRIBE|DESC|SHOW\s+(?:FULL\s+)?(?:COLUMNS|FIELDS)\s+(?:FROM|IN))\s+"""
    + _NAME.replace("name", "table"),
    re.IGNORECASE | re.VERBOSE,
)
_ENGINE_COMMANDS: dict[str, re.Pattern[str]] = {
    "duckdb": re.compile(r"SHOW\s+TABLES|DESC(?:RIBE)?\b(?!.*\bTABLE\b)", re.IGNORECASE),
    "mysql": re.compile(r"SHOW\b|DESC(?:RIBE)?\b", re.IGNORECASE),
}
"""Dialect → pattern of the schema commands that the engine of this dialect executes itself."""

_LISTS = {
    "sqlite": (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name"
    ),
    "mysql": (
        "SELECT table_name AS name FROM information_schema.tables "
        "WHERE table_schema = database() ORDER BY table_name"
    ),
    "duckdb": (
        "SELECT table_name AS name FROM information_schema.tables "
        "WHERE table_schema = current_schema() ORDER BY table_name"
    ),
    "postgres": (
        "SELECT table_name AS name FROM information_schema.tables "
        "WHERE table_schema = current_schema() ORDER BY table_name"
    ),
}
"""Dialect → query for the names of all tables and views."""

_COLUMNS = {
    "sqlite": (
        "SELECT name AS \"column\", type, CASE WHEN \"notnull\" OR pk THEN 'no' ELSE 'yes' END "
        'AS "null", dflt_value AS "default", CASE WHEN pk THEN \'primary\' ELSE \'\' END AS "key" '
        "FROM pragma_table_info({name}) ORDER BY cid"
    ),
    "mysql": "DESCRIBE {identifier}",
    "duckdb": "DESCRIBE {identifier}",
    "postgres": (
        'SELECT column_name AS "column", data_type AS "type", lower(is_nullable) AS "null", '
        'column_default AS "default" FROM information_schema.columns '
        "WHERE table_schema = current_schema() AND table_name IN ({name}, lower({name})) "
        "ORDER BY ordinal_position"
    ),
}
"""Dialect → query for a table's columns."""

_POSTGRES_SCHEMA = """
WITH relations AS (
  SELECT oid, relname, relkind FROM pg_catalog.pg_class
  WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
), parts AS (
  SELECT r.oid, a.attnum::int AS place, quote_ident(a.attname) || ' '
    || format_type(a.atttypid, a.atttypmod)
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS line
  FROM relations r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid
  WHERE a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT r.oid, 10000, pg_get_constraintdef(k.oid)
  FROM relations r JOIN pg_catalog.pg_constraint k ON k.conrelid = r.oid
  WHERE k.contype IN ('p', 'u', 'f', 'c')
), statements AS (
  SELECT r.relname AS name, 'CREATE TABLE ' || quote_ident(r.relname) || E' (\\n  '
    || string_agg(p.line, E',\\n  ' ORDER BY p.place, p.line) || E'\\n)' AS text
  FROM relations r JOIN parts p ON p.oid = r.oid GROUP BY r.relname
  UNION ALL
  SELECT viewname, 'CREATE VIEW ' || quote_ident(viewname) || E' AS\\n' || definition
  FROM pg_catalog.pg_views WHERE schemaname = current_schema()
)
SELECT name, text FROM statements
"""
_STATEMENTS = {
    "sqlite": (
        "SELECT name, text FROM (SELECT name, sql AS text FROM sqlite_master WHERE sql IS NOT NULL "
        "AND type IN ('table', 'view') AND substr(name, 1, 7) <> 'sqlite_') AS statements"
    ),
    "duckdb": (
        "SELECT name, text FROM (SELECT table_name AS name, sql AS text FROM duckdb_tables() "
        "UNION ALL SELECT view_name, sql FROM duckdb_views() WHERE NOT internal) AS statements"
    ),
    "postgres": _POSTGRES_SCHEMA,
}
"""Dialect → query for the names and CREATE statements of all tables and views."""


@dataclass(frozen=True, slots=True)
class SchemaCommand:
    """A command that shows the schema."""

    kind: Literal["tables", "columns", "statements"]
    """The content: names of all tables, columns of a table, or CREATE statements."""
    table: str = ""
    """The table; empty: all tables."""


def parse_command(action: str, dialect: str) -> SchemaCommand | None:
    """Parse an action as a schema command; None if the engine must execute the action.

    Args:
        action: The action.
        dialect: The name that the package sqlglot has for the engine's dialect.
    """
    text = action.strip().rstrip(";").rstrip()
    if dialect not in _LISTS or (match := _COMMAND.fullmatch(text)) is None:
        return None
    if dialect in _ENGINE_COMMANDS and _ENGINE_COMMANDS[dialect].match(text):
        return None
    if match["tables"]:
        return SchemaCommand("tables")
    if match["columns"]:
        return SchemaCommand("columns", _unquote_name(match["table"]))
    return SchemaCommand("statements", _unquote_name(match["name"] or ""))


def answer(command: SchemaCommand, dialect: str, run: Run) -> SqlActionOutcome | str:
    """Run a schema command.

    Args:
        command: The command.
        dialect: The name that the package sqlglot has for the engine's dialect.
        run: Runs a query in the agent's session.

    Returns:
        CREATE statements as text; or an outcome: a result, or the failure of the engine or command.
    """
    if command.kind == "tables":
        return run(_LISTS[dialect])
    if command.kind == "columns":
        name = quote_identifier(command.table, "'")
        identifier = quote_identifier(command.table, "`" if dialect == "mysql" else '"')
        outcome = run(_COLUMNS[dialect].format(name=name, identifier=identifier))
        return _unless_missing(outcome, command.table, dialect, run)
    if dialect == "mysql":
        return _mysql_statements(command.table, run)
    literal = quote_identifier(command.table, "'")
    condition = f" WHERE lower(name) = lower({literal})" if command.table else ""
    outcome = run(f"{_STATEMENTS[dialect]}{condition} ORDER BY name")
    if outcome.failure is not None:
        return outcome
    statements = [str(text) for _, text in outcome.results[-1].rows]
    return (
        _join_statements(statements) if statements else _missing_table(command.table, dialect, run)
    )


def _mysql_statements(table: str, run: Run) -> SqlActionOutcome | str:
    names = [table]
    if not table:
        listing = run(_LISTS["mysql"])
        if listing.failure is not None:
            return listing
        names = [str(name) for (name,) in listing.results[-1].rows]
    statements = []
    for name in names:
        outcome = run(f"SHOW CREATE TABLE {quote_identifier(name, '`')}")
        if outcome.failure is not None:
            return outcome
        if not (rows := outcome.results[-1].rows):
            reason = f"the statement of table {name!r} is longer than an output may be"
            return SqlActionOutcome(failure=StatementFailure(reason))
        statements.append(str(rows[0][1]))
    return _join_statements(statements)


def _join_statements(statements: list[str]) -> str:
    return "\n\n".join(f"{statement.rstrip().rstrip(';')};" for statement in statements)


def _unless_missing(
    outcome: SqlActionOutcome, table: str, dialect: str, run: Run
) -> SqlActionOutcome:
    """Return the outcome of listing a table's columns, or a failure if the table is missing.

    A list without rows shows that the table is missing.
    """
    if outcome.failure is None and outcome.results and not outcome.results[-1].rows:
        return _missing_table(table, dialect, run)
    return outcome


def _missing_table(table: str, dialect: str, run: Run) -> SqlActionOutcome:
    """Return the failure for a missing table, with the names of the existing tables."""
    listing = run(_LISTS[dialect])
    result = listing.results[-1] if listing.results else StatementResult()
    names = ", ".join(str(name) for (name,) in result.rows) or "none"
    reason = f"there is no table {table!r}; tables: {names}" if table else "there are no tables"
    return SqlActionOutcome(failure=StatementFailure(reason))


def _unquote_name(name: str) -> str:
    """Return a quoted name without its quotes, or another name without a preceding schema."""
    if name[:1] in "\"'`" and len(name) > 1:
        return name[1:-1].replace('""', '"')
    return name.rpartition(".")[2]
