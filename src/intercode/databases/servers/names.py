"""A clone's name for the nominal one, in what an agent writes.

An agent is told that its database is ``concert_singer``; on the server its clone has a name that
no other has. So in an action the name is replaced where it stands for the database, and only
there, for a table or a column may be called the same:

- ``USE x``; ``CREATE``, ``DROP``, ``ALTER DATABASE x``; ``SHOW TABLES FROM x`` and the like;
- ``x.t`` where a table is named (after ``FROM``, ``JOIN``, ``INTO``, ``UPDATE``, ``TABLE`` …), and
  ``x.t.c`` anywhere. Elsewhere ``x.c`` is a column of a table ``x``;
- ``'x'`` as a whole literal, where the action asks for the names of things: ``SHOW …``, or it
  mentions a schema, a catalog or a database.

It is not replaced in what the server puts together itself (``CONCAT('con', 'cert_singer')``), nor
in patterns (``LIKE 'concert%'``). The text is cut by sqlglot's tokenizer and otherwise left as it
is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

Edit = tuple[int, int, str]
"""Where something is replaced, from and to, and by what."""

_ASKS = re.compile(r"schema|catalog|database|\bpg_|\A\s*show\b", re.IGNORECASE)
_COLUMNS_FOLLOW = {
    *("SELECT", "WHERE", "ON", "SET", "HAVING", "GROUP BY", "ORDER BY", "BY", "VALUES", "USING"),
}
_TABLES_FOLLOW = {"FROM", "JOIN", "STRAIGHT_JOIN", "INTO", "UPDATE", "TABLE", "TABLES"}
_TABLE_FOLLOWS = {
    *(*_TABLES_FOLLOW, "VIEW", "EXISTS", "REFERENCES", "TRUNCATE", "IGNORE", "REPLACE", "INSERT"),
    *("DELETE", "ONLY"),
}
_EXPLAINS = {"DESCRIBE", "DESC", "EXPLAIN"}
_MAKES = {"CREATE", "DROP", "ALTER", "SHOW"}
_DATABASE = {"DATABASE", "SCHEMA"}
_OF_A_TABLE = {"COLUMNS", "FIELDS", "INDEX", "INDEXES", "KEYS"}


def rewrite(text: str, nominal: str, name: str, dialect: str) -> tuple[str, list[Edit]]:
    """An action with the clone's name, and what was replaced in it.

    Args:
        text: The action.
        nominal: What the agent calls the database.
        name: What the server calls it.
        dialect: As sqlglot names it: ``mysql`` or ``postgres``.
    """
    if not _may_name(nominal).search(text):
        return text, []
    from sqlglot import tokenize
    from sqlglot.errors import SqlglotError

    try:
        tokens = tokenize(text, read=dialect)
    except SqlglotError:
        return text, []  # the server will say what is wrong
    edits = list(_edits(text, tokens, nominal.lower(), name))
    parts: list[str] = []
    end = 0
    for start, stop, new in edits:
        parts += [text[end:start], new]
        end = stop
    return "".join((*parts, text[end:])), edits


def original(position: int, edits: Sequence[Edit]) -> int:
    """Where a position in a rewritten text was in the text as it was."""
    shift = 0
    for start, stop, new in edits:
        if position < start + shift:
            break
        if position < start + shift + len(new):
            return start
        shift += len(new) - (stop - start)
    return position - shift


@lru_cache(maxsize=256)
def _may_name(nominal: str) -> re.Pattern[str]:
    """A cheap test; most actions do not name the database."""
    name = re.escape(nominal)
    return re.compile(
        rf"(?<!\w){name}[`\"]?\s*\.|(?:use|from|in|database|schema|exists)\s+[`\"]?{name}\b"
        rf"|['\"]{name}['\"]",
        re.IGNORECASE,
    )


def _edits(text: str, tokens: Sequence[Any], nominal: str, name: str) -> Iterator[Edit]:
    asks = _ASKS.search(text) is not None
    first = 0
    for i, token in enumerate(tokens):
        if token.text == ";":
            first = i + 1
        if token.text.lower() != nominal:
            continue
        start, stop = token.start, token.end + 1
        quote = text[start] if text[start] in "'\"`" else ""
        literal = quote == "'" or (quote == '"' and token.token_type.name == "STRING")
        if asks if literal else _is_database(tokens, first, i):
            yield start, stop, f"{quote}{name}{quote}"


def _is_database(tokens: Sequence[Any], first: int, i: int) -> bool:
    """Whether the identifier at `i`, of the statement that begins at `first`, is the database."""
    before = [" ".join(token.text.upper().split()) for token in tokens[first:i]]
    after = [token.text for token in tokens[i + 1 : i + 4]]
    if after[:1] == ["."]:
        return after[2:] == ["."] or _is_table(before)
    if not before:
        return False
    if before[-1] == "USE":
        return True
    if before[0] == "SHOW" and before[-1] in ("FROM", "IN"):
        named = sum(word in ("FROM", "IN") for word in before)
        return named > 1 or not _OF_A_TABLE & set(before)
    return any(word in _DATABASE for word in before[-4:]) and before[0] in _MAKES


def _is_table(before: Sequence[str]) -> bool:
    """Whether what follows these words is the name of a table, not of a column."""
    last = before[-1] if before else ""
    if last in _TABLE_FOLLOWS or (last in _EXPLAINS and len(before) == 1):
        return True
    if last not in (",", "("):
        return False
    depth = 0
    for word in reversed(before):
        if word == ")":
            depth += 1
        elif word == "(":
            depth = max(0, depth - 1)
        elif depth == 0 and word in _TABLES_FOLLOW | _COLUMNS_FOLLOW:
            return word in _TABLES_FOLLOW
    return False
