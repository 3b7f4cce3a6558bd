"""An action as the statements that it is made of, by SQLite's own lexical rules."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))
      | '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]
      | (?P<end>;)
      | [^\s'"`\[;/-]+ | .""",
    re.DOTALL | re.VERBOSE,
)
_NEAR = re.compile(r'near "(.*)": syntax error', re.DOTALL)


def split(sql: str) -> Iterator[tuple[int, str]]:
    """Where each statement begins, and its text. One that is only comments is none."""
    begin, empty = 0, True
    for token in _TOKEN.finditer(sql):
        if token["end"]:
            statement = sql[begin : token.end()]
            if empty:
                begin = token.end()
            elif sqlite3.complete_statement(statement):  # not within a trigger's body
                yield begin, statement
                begin, empty = token.end(), True
        elif empty and not token["space"]:
            begin, empty = token.start(), False
    if not empty:
        yield begin, sql[begin:]


def position(message: str, statement: str, begin: int) -> int | None:
    """Where a failure is, if its message says so without doubt."""
    match = _NEAR.fullmatch(message)
    if match is None or not match[1] or statement.count(match[1]) != 1:
        return None
    return begin + statement.index(match[1])
