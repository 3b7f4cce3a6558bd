"""Which rows of an ordered gold may change places: those that its ORDER BY does not tell apart.

A result does not show them if gold orders by what it does not select, or if a LIMIT cuts through
them. So gold is run once more, with the keys of its ORDER BY as further columns and without its
LIMIT: rows whose keys are equal form a group. Where that cannot be done, the order of gold's rows
counts exactly: a DISTINCT or a set operation that orders by what it does not select, a collation
in the ORDER BY, a LIMIT that is no number, more rows than can be kept.

Texts that differ only in case count as one key, as many collations have it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from intercode.databases.base import Row, Value
from intercode.rewards.sql_compare import Group, comparable
from intercode.rewards.sql_gold import DIALECTS, outermost


@dataclass(frozen=True, slots=True)
class Keyed:
    """A query that shows by what another orders its rows."""

    sql: str
    added: int
    """How many columns at its end are further keys."""
    keys: tuple[int, ...]
    """Where all keys are among its columns; from the end if negative."""
    skip: int
    take: int | None
    """Which of its rows the other gives: from where, and how many at most."""


def with_keys(query: exp.Query, dialect: str) -> Keyed | None:
    """The query with the keys of its ORDER BY as further columns and without its LIMIT.

    Args:
        query: It has an ORDER BY.
        dialect: Its language.
    """
    query = outermost(query).copy()
    try:
        skip, take = _cut(query)
        added = [key for key in _order_keys(query) if _output(query, key) is None]
        keys = []
        for key in _order_keys(query):
            position = _output(query, key)
            # The further keys are at the end; what was there before comes before them.
            if position is None:
                position = added.index(key) - len(added)
            elif position < 0:
                position -= len(added)
            keys.append(position)
        if added and (not isinstance(query, exp.Select) or query.args.get("distinct")):
            return None
        if isinstance(query, exp.Select):
            query = query.select(*(key.copy() for key in added), append=True)
        sql = query.sql(dialect=DIALECTS.get(dialect, dialect))
    except (_UnclearError, SqlglotError):
        return None
    return Keyed(sql, len(added), tuple(keys), skip, take)


def groups(keyed: Keyed, rows: Sequence[Row]) -> list[Group]:
    """Gold's rows by their place in the order, from what the keyed query gave."""
    columns = [_folded([row[index] for row in rows]) for index in keyed.keys]
    end = len(rows) if keyed.take is None else keyed.skip + keyed.take
    made = []
    for _, members in groupby(range(len(rows)), key=lambda index: [key[index] for key in columns]):
        indices = list(members)
        take = min(indices[-1] + 1, end) - max(indices[0], keyed.skip)
        if take > 0:
            width = len(rows[0]) - keyed.added
            made.append(Group([rows[index][:width] for index in indices], take))
    return made


class _UnclearError(Exception):
    """The query has something of which we do not know what it does to its order."""


def _cut(query: exp.Query) -> tuple[int, int | None]:
    """How many rows it skips and gives; it is left without its LIMIT."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is not None and not isinstance(limit, exp.Limit):
        raise _UnclearError  # FETCH FIRST … WITH TIES, PERCENT
    numbers = [None if part is None else part.args.get("expression") for part in (limit, offset)]
    for part, number in zip((limit, offset), numbers, strict=True):
        if part is not None and not (isinstance(number, exp.Literal) and number.is_int):
            raise _UnclearError
    query.set("limit", None)
    query.set("offset", None)
    take, skip = (None if number is None else int(number.name) for number in numbers)
    return skip or 0, take


def _order_keys(query: exp.Query) -> list[exp.Expression]:
    keys = [ordered.this for ordered in query.args["order"].expressions]
    if any(key.find(exp.Collate) is not None for key in keys):
        raise _UnclearError
    return keys


def _output(query: exp.Query, key: exp.Expression) -> int | None:
    """Where a key is among the query's columns, from the end after a star; None: nowhere."""
    if isinstance(key, exp.Literal) and key.is_int:
        return int(key.name) - 1
    columns = query.selects
    for index, column in enumerate(columns):
        named = isinstance(key, exp.Column) and not key.table
        if (named and key.name.lower() == column.alias_or_name.lower()) or _same(column, key):
            starred = any(before.is_star for before in columns[:index])
            return index - len(columns) if starred else index
    return None


def _same(column: Any, key: exp.Expression) -> bool:
    return bool(column.unalias().sql().lower() == key.sql().lower())


def _folded(column: Sequence[Value]) -> Sequence[Hashable]:
    return comparable([v.casefold() if isinstance(v, str) else v for v in column])
