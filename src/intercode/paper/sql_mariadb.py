"""MySQL 8 made of MariaDB, where the recorded runs show the difference."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from sqlglot import TokenType as Is
from sqlglot.dialects.mysql import MySQL

from intercode.paper.sql_scope import UNREADABLE, Relation, Tables

_GROUPS = re.compile(r"\bGROUP\s+BY\b", re.IGNORECASE)
_INTERSECTS = re.compile(r"\s*SELECT\b.*\b(?:INTERSECT|EXCEPT)\b", re.IGNORECASE | re.DOTALL)
_ANY_VALUE = re.compile(r"\bANY_VALUE\s*(?=\()", re.IGNORECASE)


SETTINGS = "tmp_memory_table_size = 0"
"""For a connection: tables in memory would order ties by their addresses, another way in each
process."""


def as_mysql8(sql: str) -> str:
    """A statement that does on MariaDB what this one does on MySQL 8."""
    sql = unsorted(_ANY_VALUE.sub("", sql))
    if _INTERSECTS.match(sql):
        # MariaDB 10.11 loses rows of a subquery that intersects, if its tables are not in memory.
        return f"SET STATEMENT tmp_memory_table_size = 16777216 FOR {sql}"
    return sql


@lru_cache(maxsize=8192)
def unsorted(sql: str) -> str:
    """A query whose groups come in the order in which they were met, as MySQL 8 has them.

    >>> unsorted("SELECT a FROM t GROUP BY a LIMIT 3")
    'SELECT a FROM t GROUP BY a ORDER BY NULL LIMIT 3'
    """
    if not _GROUPS.search(sql):
        return sql
    try:
        tokens = MySQL().tokenize(sql)
    except UNREADABLE:
        return sql
    depth, grouped, end = 0, False, len(sql)
    for token in tokens:
        depth += (token.token_type == Is.L_PAREN) - (token.token_type == Is.R_PAREN)
        if depth:
            continue
        if token.token_type in (Is.ORDER_BY, Is.UNION, Is.INTERSECT, Is.EXCEPT, Is.ROLLUP):
            return sql
        grouped = grouped or token.token_type == Is.GROUP_BY
        if grouped and token.token_type in (Is.LIMIT, Is.SEMICOLON, Is.FOR, Is.INTO):
            end = min(end, token.start)
    return f"{sql[:end].rstrip()} ORDER BY NULL {sql[end:]}".rstrip() if grouped else sql


def tables_of(cursor: Any, database: str) -> Tables:
    """The tables of a database with their columns and keys."""
    columns: dict[str, dict[str, str]] = {}
    cursor.execute(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
        (database,),
    )
    for table, column in cursor.fetchall():
        columns.setdefault(table.lower(), {})[column.lower()] = column
    keys: dict[tuple[str, str], set[str]] = {}
    cursor.execute(
        "SELECT table_name, index_name, column_name, nullable FROM information_schema.statistics "
        "WHERE table_schema = %s AND non_unique = 0",
        (database,),
    )
    nullable = set()
    for table, index, column, null in cursor.fetchall():
        keys.setdefault((table.lower(), index), set()).add(column.lower())
        if null == "YES":
            nullable.add((table.lower(), index))
    return {
        table: Relation(
            f"{database}.{table}",
            of_table,
            tuple(
                frozenset(key)
                for which, key in keys.items()
                if which[0] == table and which not in nullable
            ),
        )
        for table, of_table in columns.items()
    }
