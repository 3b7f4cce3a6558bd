"""What a gold statement asks for, as far as its text tells: an answer or a change, and its order.

It is read by sqlglot in its own dialect. What that cannot parse is judged by its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

DIALECTS = {"mariadb": "mysql", "postgresql": "postgres", "sqlite3": "sqlite"}
"""What people call a dialect → what sqlglot does."""

_READS = frozenset({
    "SELECT", "WITH", "VALUES", "TABLE", "FROM", "PIVOT", "UNPIVOT", "SHOW", "DESCRIBE", "DESC",
    "EXPLAIN", "SUMMARIZE", "PRAGMA", "SET", "RESET", "USE", "ANALYZE",
    "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE",
})  # fmt: skip
"""The words that begin statements which change no table."""
_CHANGES = frozenset(("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"))
"""The words that change tables, wherever they stand as words of the language."""
_QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER, TokenType.NATIONAL_STRING})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a gold asks for."""

    changes: bool
    """It is graded by the tables that it leaves, not by an answer. Making a temporary table
    changes nothing."""
    ordered: bool
    """The outermost query orders its rows."""
    query: exp.Query | None
    """The last statement, if it is a query that could be parsed."""
    chooses: bool
    """It leaves a choice to the engine: which of tied rows a LIMIT within it takes, or from which
    row of a group a column comes. The engine need not choose alike twice."""
    reads: bool
    """It reads a table, or may do: its text does not tell that it reads none."""


@lru_cache(maxsize=4096)
def read(sql: str, dialect: str) -> Facts:
    """The facts of a gold.

    Args:
        sql: One statement or several.
        dialect: Its language, by the name that sqlglot or the engine has for it.
    """
    dialect = DIALECTS.get(dialect, dialect)
    statements = _statements(sql, dialect)
    last = statements[-1] if statements else []
    query = _parse(sql[last[0].start : last[-1].end + 1], dialect) if _is_query(last) else None
    return Facts(
        changes=any(map(_changes, statements)),
        ordered=_orders_by_tokens(last) if query is None else _orders(query),
        query=query,
        chooses=query is not None and _chooses(query),
        reads=len(statements) > 1
        or (bool({"FROM", "TABLE"} & {*_words(last)}) if query is None else _reads_table(query)),
    )


def outermost(query: exp.Query) -> exp.Query:
    """The query itself, without the parentheses around it."""
    while isinstance(query, exp.Subquery) and not query.args.get("order"):
        inner = query.this
        if query.args.get("limit") or not isinstance(inner, exp.Query):
            break
        query = inner
    return query


def _parse(sql: str, dialect: str) -> exp.Query | None:
    try:
        tree: Any = sqlglot.parse_one(sql, read=dialect)
    except (SqlglotError, RecursionError):
        return None
    return tree if isinstance(tree, exp.Query) else None


def _statements(sql: str, dialect: str) -> list[list[Token]]:
    """The tokens of each statement; where sqlglot sees none, the words."""
    try:
        tokens: list[Token] = sqlglot.tokenize(sql, read=dialect)
    except SqlglotError:
        words = re.finditer(r"\w+|[();]", sql)
        tokens = [
            Token(TokenType.VAR, word[0], start=word.start(), end=word.end() - 1) for word in words
        ]
    statements: list[list[Token]] = [[]]
    for token in tokens:
        if token.text == ";" and token.token_type not in _QUOTED:
            statements.append([])
        else:
            statements[-1].append(token)
    return [statement for statement in statements if statement]


def _words(statement: Sequence[Token]) -> list[str]:
    """The words of the language in a statement, without the parentheses that it begins with."""
    words = [token.text.upper() for token in statement if token.token_type not in _QUOTED]
    begin = next((index for index, word in enumerate(words) if word != "("), len(words))
    return words[begin:]


def _is_query(statement: Sequence[Token]) -> bool:
    return _words(statement)[:1] in (["SELECT"], ["WITH"], ["VALUES"], ["FROM"], ["TABLE"])


def _changes(statement: Sequence[Token]) -> bool:
    words = _words(statement)
    if not words:
        return False
    if words[0] == "CREATE":
        return not {"TEMP", "TEMPORARY"} & set(words[1:4])
    if words[0] in ("SELECT", "WITH") and "INTO" in words:
        return True
    if words[0] == "WITH":
        # A function of the name, REPLACE(…), is none of them.
        following = [*words[1:], ""]
        pairs = zip(words, following, strict=True)
        return any(word in _CHANGES and then != "(" for word, then in pairs)
    return words[0] not in _READS


def _reads_table(query: exp.Query) -> bool:
    own = {table.alias_or_name.lower() for table in query.find_all(exp.CTE)}
    tables = query.find_all(exp.Table)
    return any(isinstance(t.this, exp.Func) or t.name.lower() not in own for t in tables)


def _chooses(query: exp.Query) -> bool:
    top = outermost(query)
    for part in query.find_all(exp.Select, exp.SetOperation):
        if part.args.get("limit") and not (part is top and part.args.get("order")):
            return True
        if isinstance(part, exp.Select) and (group := part.args.get("group")):
            keys = {key.name.lower() for key in group.expressions}
            columns = [column.unalias() for column in part.expressions]
            if any(isinstance(c, exp.Column) and c.name.lower() not in keys for c in columns):
                return True
    return False


def _orders(query: exp.Query) -> bool:
    return outermost(query).args.get("order") is not None


def _orders_by_tokens(statement: Sequence[Token]) -> bool:
    """Whether it has an ORDER BY outside of all parentheses."""
    depth, before = 0, ""
    for token in statement:
        if token.token_type in _QUOTED:
            continue
        word = token.text.upper()
        depth += (word == "(") - (word == ")")
        if depth == 0 and (word == "ORDER BY" or (before, word) == ("ORDER", "BY")):
            return True
        before = word
    return False
