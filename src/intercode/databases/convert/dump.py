"""A MySQL dump, taken apart: its statements, and those of one of its databases.

The text is split as the server and its client read it: quotes with backslash escapes and doubled
quotes, three kinds of comments, versioned comments (``/*!40101 … */``), which are none, and the
client's ``DELIMITER``. What a statement means is for `dump_values` and `dump_convert`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from intercode.errors import TaskError

_TOKENS = r"""
    (?P<quoted>  '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
  | (?P<comment> --(?=[\s\x00-\x1f]|\Z)[^\n]* | \#[^\n]* | /\*(?!M?!).*?\*/ )
  | (?P<open>    /\*M?!\d* )
  | (?P<close>   \*/ )
  | (?P<torn>    ['"`] | /\*(?!M?!) )
"""
_TOKEN = re.compile(_TOKENS, re.DOTALL | re.VERBOSE)
_COMMAND = r"(?P<command> (?<![^\n])[ \t]*DELIMITER[ \t]+(?P<word>\S+)[^\n]* )"

_NAME = r"(?:`((?:[^`]|``)+)`|([^\s`;,()]+))"
_DATABASE = re.compile(
    rf"(?:CREATE\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+NOT\s+EXISTS\s*)?|USE\s*){_NAME}", re.IGNORECASE
)
_MAKES = re.compile(
    r"(?:CREATE|DROP|ALTER)\b"
    r"(?:\s+(?:OR\s+REPLACE|UNIQUE|FULLTEXT|SPATIAL"
    r"|ALGORITHM\s*=\s*\w+|DEFINER\s*=\s*\S+|SQL\s+SECURITY\s+\w+))*"
    r"\s+(?:TABLE|VIEW|INDEX)\b"
    r"|(?:INSERT|REPLACE)\b|(?:UN)?LOCK\s+TABLES?\b|START\s+TRANSACTION\b|BEGIN\b|COMMIT\b",
    re.IGNORECASE,
)
_SETS = re.compile(r"SET\s", re.IGNORECASE)
_SETS_MORE = re.compile(
    r"\b(?:GLOBAL|PERSIST|PERSIST_ONLY|PASSWORD|ROLE|SQL_LOG_BIN)\b", re.IGNORECASE
)

_LARGE = 1 << 24
"""Characters of a dump that is not kept in memory."""


def read(path: Path) -> str:
    """The text of a dump; bytes that are not UTF-8 are kept, as ``surrogateescape`` keeps them.

    Raises:
        TaskError: It cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from None
    return data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def statements(text: str) -> Iterator[str]:
    """The statements of a script, in order, without what ends them; comments are kept.

    Raises:
        TaskError: A quote or a comment is never closed.
    """
    pattern, start, position = _splitter(";"), 0, 0
    versioned = False
    while token := pattern.search(text, position):
        position = token.end()
        if token["torn"]:
            line = text.count("\n", 0, token.start()) + 1
            raise TaskError(f"the dump is torn: {token['torn']} in line {line} is never closed")
        if token["open"]:
            versioned = True
        elif token["close"]:
            versioned = False
        elif token["command"]:
            pattern = _splitter(token["word"])
            start = position
        elif token["delimiter"] and not versioned:
            if statement := text[start : token.start()].strip():
                yield statement
            start = position
    if statement := text[start:].strip():
        yield statement


def plain(statement: str) -> str:
    """A statement without its comments, the versioned ones taken as what they hold."""
    if not any(mark in statement for mark in ("--", "#", "/*")):
        return statement.strip()
    return _TOKEN.sub(lambda token: token["quoted"] or " ", statement).strip()


def section(text: str, name: str) -> list[str]:
    """The statements that make one database, as they are.

    They are what follows the database's ``CREATE DATABASE`` or ``USE``, and the settings of the
    session that come before the first database. Only what makes tables, views and their content
    is among them: no accounts and rights, no global settings, no triggers, routines and events
    (which would run with the rights of whoever loads them), and no change of the database.

    Raises:
        TaskError: The dump is torn, or has no such database.
    """
    kept: list[str] = []
    found = False
    for here, statement, meaning in _split(text) if len(text) < _LARGE else _statements_of(text):
        found = found or here == name
        makes = here == name and _MAKES.match(meaning)
        sets = here in (name, None) and _SETS.match(meaning) and not _SETS_MORE.search(meaning)
        if makes or sets:
            kept.append(statement)
    if not found:
        raise TaskError(f"the dump has no database {name!r}")
    return kept


def _statements_of(text: str) -> Iterator[tuple[str | None, str, str]]:
    """Each statement after the name of the database that it is in, and before its meaning."""
    here: str | None = None
    for statement in statements(text):
        meaning = plain(statement)
        if named := _DATABASE.match(meaning):
            here = named[1].replace("``", "`") if named[1] else named[2]
        yield here, statement, meaning


@lru_cache(maxsize=1)  # whoever asks for one database of a dump asks for the others, too
def _split(text: str) -> list[tuple[str | None, str, str]]:
    return list(_statements_of(text))


@lru_cache(maxsize=16)
def _splitter(delimiter: str) -> re.Pattern[str]:
    end = rf"(?P<delimiter> {re.escape(delimiter)} )"
    return re.compile(
        rf"{_COMMAND} | {_TOKENS.rstrip()} | {end}", re.DOTALL | re.VERBOSE | re.IGNORECASE
    )
