"""Analysis of a gold's text: whether gold asks for an answer or a change, and how it orders rows.

The package sqlglot parses a gold in gold's SQL dialect. A text that cannot be parsed is classified
by its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from intercode.databases.base import Row, Value
from intercode.rewards.sql_compare import TiedRows, comparable_values

DIALECTS = {"mariadb": "mysql", "postgresql": "postgres", "sqlite3": "sqlite"}
"""Common name of a dialect → sqlglot's name."""

_READS = frozenset({
    "SELECT", "WITH", "VALUES", "TABLE", "FROM", "PIVOT", "UNPIVOT", "SHOW", "DESCRIBE", "DESC",
    "EXPLAIN", "SUMMARIZE", "PRAGMA", "SET", "RESET", "USE", "ANALYZE",
    "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE",
})  # fmt: skip
"""The first words of statements that change no table."""
_CHANGES = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"))
"""The keywords that change a table when they appear in a statement that begins with WITH."""
_QUOTED_TYPES = frozenset({TokenType.STRING, TokenType.IDENTIFIER, TokenType.NATIONAL_STRING})


@dataclass(frozen=True, slots=True)
class GoldQueryFacts:
    """Properties that the text of a gold or of an answer shows."""

    changes: bool
    """Whether gold is graded by the tables that it leaves, not by an answer.

    A new temporary table is not a change.
    """
    ordered: bool
    """Whether the outermost query orders its rows."""
    query: exp.Query | None
    """The last statement, if it is a query that could be parsed."""
    leaves_choice: bool
    """Whether the engine may choose between rows, so two runs may give different results.

    A LIMIT in an inner query, or without ORDER BY, may take any of several rows. A column that is
    not a key of the GROUP BY may come from any row of a group.
    """
    reads_table: bool
    """Whether gold reads a table, or may read a table: its text does not exclude that."""


@lru_cache(maxsize=4096)
def read_facts(sql: str, dialect: str) -> GoldQueryFacts:
    """Return the facts of a gold or of an answer.

    Args:
        sql: One statement or several.
        dialect: The SQL dialect, by sqlglot's name or the engine's.
    """
    dialect = DIALECTS.get(dialect, dialect)
    statements = _tokenise_statements(sql, dialect)
    last_statement = statements[-1] if statements else []
    query = (
        _parse_query(sql[last_statement[0].start : last_statement[-1].end + 1], dialect)
        if _is_query(last_statement)
        else None
    )
    return GoldQueryFacts(
        changes=any(map(_is_change, statements)),
        ordered=_orders_by_tokens(last_statement) if query is None else _has_order(query),
        query=query,
        leaves_choice=query is not None and _leaves_choice(query),
        reads_table=len(statements) > 1
        or (
            bool({"FROM", "TABLE"} & {*_keywords(last_statement)})
            if query is None
            else _reads_table(query)
        ),
    )


def parse_statements(sql: str, dialect: str) -> list[Any]:
    """Return the syntax trees of the statements that can be parsed, without CREATE TRIGGER."""
    dialect = DIALECTS.get(dialect, dialect)
    trees = []
    for statement in _tokenise_statements(sql, dialect):
        text = sql[statement[0].start : statement[-1].end + 1]
        if "TRIGGER" not in _keywords(statement)[:5]:
            with suppress(SqlglotError, RecursionError):
                trees.append(sqlglot.parse_one(text, read=dialect))
    return trees


def outermost_query(query: exp.Query) -> exp.Query:
    """Return the query without the parentheses around it."""
    while isinstance(query, exp.Subquery) and not query.args.get("order"):
        inner_query = query.this
        if query.args.get("limit") or not isinstance(inner_query, exp.Query):
            break
        query = inner_query
    return query


def _parse_query(sql: str, dialect: str) -> exp.Query | None:
    try:
        tree: Any = sqlglot.parse_one(sql, read=dialect)
    except (SqlglotError, RecursionError):
        return None
    return tree if isinstance(tree, exp.Query) else None


def _tokenise_statements(sql: str, dialect: str) -> list[list[Token]]:
    """Return the tokens of each statement; if sqlglot cannot tokenise the text, its plain words."""
    try:
        tokens: list[Token] = sqlglot.tokenize(sql, read=dialect)
    except SqlglotError:
        words = re.finditer(r"\w+|[();]", sql)
        tokens = [
            Token(TokenType.VAR, word[0], start=word.start(), end=word.end() - 1) for word in words
        ]
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ";" and token.token_type not in _QUOTED_TYPES:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def _keywords(statement: Sequence[Token]) -> list[str]:
    """Return the unquoted tokens of a statement in upper case, without "(" at the beginning."""
    words = [token.text.upper() for token in statement if token.token_type not in _QUOTED_TYPES]
    start = next((index for index, word in enumerate(words) if word != "("), len(words))
    return words[start:]


def _is_query(statement: Sequence[Token]) -> bool:
    return _keywords(statement)[:1] in (["SELECT"], ["WITH"], ["VALUES"], ["FROM"], ["TABLE"])


def _is_change(statement: Sequence[Token]) -> bool:
    words = _keywords(statement)
    if not words:
        return False
    if words[0] == "CREATE":
        return not {"TEMP", "TEMPORARY"} & set(words[1:4])
    if words[0] in ("SELECT", "WITH") and "INTO" in words:
        return True
    if words[0] == "WITH":
        # The function REPLACE(…) is not a statement.
        next_words = [*words[1:], ""]
        pairs = zip(words, next_words, strict=True)
        return any(word in _CHANGES and next_word != "(" for word, next_word in pairs)
    return words[0] not in _READS


def _reads_table(query: exp.Query) -> bool:
    cte_names = {table.alias_or_name.lower() for table in query.find_all(exp.CTE)}
    tables = query.find_all(exp.Table)
    return any(
        isinstance(source_table.this, exp.Func) or source_table.name.lower() not in cte_names
        for source_table in tables
    )


def _leaves_choice(query: exp.Query) -> bool:
    outer_query = outermost_query(query)
    for subquery in query.find_all(exp.Select, exp.SetOperation):
        if subquery.args.get("limit") and not (
            subquery is outer_query and subquery.args.get("order")
        ):
            return True
        if isinstance(subquery, exp.Select) and (group := subquery.args.get("group")):
            keys = {key.name.lower() for key in group.expressions}
            columns = [column.unalias() for column in subquery.expressions]
            if any(
                isinstance(output_column, exp.Column) and output_column.name.lower() not in keys
                for output_column in columns
            ):
                return True
    return False


def _has_order(query: exp.Query) -> bool:
    return outermost_query(query).args.get("order") is not None


def _orders_by_tokens(statement: Sequence[Token]) -> bool:
    """Return whether a statement has an ORDER BY outside all parentheses."""
    depth, previous_word = 0, ""
    for token in statement:
        if token.token_type in _QUOTED_TYPES:
            continue
        word = token.text.upper()
        depth += (word == "(") - (word == ")")
        if depth == 0 and (word == "ORDER BY" or (previous_word, word) == ("ORDER", "BY")):
            return True
        previous_word = word
    return False


# -- tied rows -------------------------------------------------------------------------------------

# Rows tie if the ORDER BY of gold does not distinguish them; tied rows may be exchanged. A result
# does not show which rows tie if gold orders by columns that it does not select. The same holds if
# a LIMIT cuts through tied rows. Gold therefore runs once more, with the keys of its ORDER BY as
# further columns and without its LIMIT. Rows with equal keys form a group.
#
# If the keys cannot be used, the order of gold's rows counts exactly. The usual reasons: A DISTINCT
# or a set operation orders by a column that it does not select. The ORDER BY has a collation. The
# LIMIT is not a number. The rows without the LIMIT are more than a result may have.
#
# Texts that differ only in case count as one key, because they tie in many collations.


@dataclass(frozen=True, slots=True)
class OrderKeyQuery:
    """A query with additional columns: the keys by which another query orders its rows."""

    sql: str
    added_count: int
    """The number of columns at the end that were added."""
    keys: tuple[int, ...]
    """The positions of all keys among the columns; a negative position counts from the end."""
    skip: int
    """The number of first rows that the other query skips (its OFFSET)."""
    take: int | None
    """The most rows that the other query returns (its LIMIT); None: no limit."""


def add_order_keys(query: exp.Query, dialect: str) -> OrderKeyQuery | None:
    """Return the query with the keys of its ORDER BY as further columns and without its LIMIT.

    The result is None if the keys cannot be added, or if the LIMIT is not a number.

    Args:
        query: A query with an ORDER BY.
        dialect: The query's SQL dialect.
    """
    query = outermost_query(query).copy()
    try:
        skipped_rows, max_rows = _remove_limit(query)
        added_keys = [key for key in _order_keys(query) if _output_index(query, key) is None]
        keys = []
        for key in _order_keys(query):
            position = _output_index(query, key)
            # Added keys are at the end, so original positions that count from the end move.
            if position is None:
                position = added_keys.index(key) - len(added_keys)
            elif position < 0:
                position -= len(added_keys)
            keys.append(position)
        if added_keys and (not isinstance(query, exp.Select) or query.args.get("distinct")):
            return None
        if isinstance(query, exp.Select):
            query = query.select(*(key.copy() for key in added_keys), append=True)
        sql = query.sql(dialect=DIALECTS.get(dialect, dialect))
    except (_UnclearQueryError, SqlglotError):
        return None
    return OrderKeyQuery(sql, len(added_keys), tuple(keys), skipped_rows, max_rows)


def group_rows(keyed_query: OrderKeyQuery, rows: Sequence[Row]) -> list[TiedRows]:
    """Return gold's rows in groups that tie, from the rows of the query with its order keys."""
    columns = [_fold_case([row[index] for row in rows]) for index in keyed_query.keys]
    end = len(rows) if keyed_query.take is None else keyed_query.skip + keyed_query.take
    row_groups = []
    for _, members in groupby(range(len(rows)), key=lambda index: [key[index] for key in columns]):
        indices = list(members)
        returned_count = min(indices[-1] + 1, end) - max(indices[0], keyed_query.skip)
        if returned_count > 0:
            width = len(rows[0]) - keyed_query.added_count
            row_groups.append(TiedRows([rows[index][:width] for index in indices], returned_count))
    return row_groups


class _UnclearQueryError(Exception):
    """An error: a part of the query has an unknown effect on the order or number of its rows."""


def _remove_limit(query: exp.Query) -> tuple[int, int | None]:
    """Remove LIMIT and OFFSET from a query; return the skipped rows, and the most returned."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is not None and not isinstance(limit, exp.Limit):
        raise _UnclearQueryError  # such as FETCH FIRST … WITH TIES, or PERCENT
    row_counts = [
        None if clause is None else clause.args.get("expression") for clause in (limit, offset)
    ]
    for clause, row_count in zip((limit, offset), row_counts, strict=True):
        if clause is not None and not (isinstance(row_count, exp.Literal) and row_count.is_int):
            raise _UnclearQueryError
    query.set("limit", None)
    query.set("offset", None)
    max_rows, skipped_rows = (
        None if row_count is None else int(row_count.name) for row_count in row_counts
    )
    return skipped_rows or 0, max_rows


def _order_keys(query: exp.Query) -> list[exp.Expression]:
    keys = [order_item.this for order_item in query.args["order"].expressions]
    if any(key.find(exp.Collate) is not None for key in keys):
        raise _UnclearQueryError
    return keys


def _output_index(query: exp.Query, key: exp.Expression) -> int | None:
    """Return the position of an order key among the query's columns; None if it is not selected.

    After a star, the position counts from the end, because the star's columns are unknown.
    """
    if isinstance(key, exp.Literal) and key.is_int:
        return int(key.name) - 1
    columns = query.selects
    for index, column in enumerate(columns):
        is_name = isinstance(key, exp.Column) and not key.table
        if (is_name and key.name.lower() == column.alias_or_name.lower()) or _is_same_expression(
            column, key
        ):
            has_star = any(earlier_column.is_star for earlier_column in columns[:index])
            return index - len(columns) if has_star else index
    return None


def _is_same_expression(column: Any, key: exp.Expression) -> bool:
    return bool(column.unalias().sql().lower() == key.sql().lower())


def _fold_case(column: Sequence[Value]) -> Sequence[Hashable]:
    return comparable_values(
        [value.casefold() if isinstance(value, str) else value for value in column]
    )
