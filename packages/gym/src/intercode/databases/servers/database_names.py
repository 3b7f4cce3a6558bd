"""Names of databases on a server: unique names of clones, and the names that agents use.

A clone is a private copy of a database. Its name identifies the machine and container, the process
that created it, and the process's start time. So a later run can drop the clones that a killed run
has left, and no others.

An agent knows its database by the task's name, such as ``concert_singer``, but on the server the
clone has a unique name. In an action, the task's name is replaced by the clone's name where it
denotes the database. Elsewhere the task's name stays, because a table or a column may have the same
name. The name ``x`` denotes the database in these places:

- ``USE x``; ``CREATE``, ``DROP``, ``ALTER DATABASE x``; ``SHOW TABLES FROM x`` and similar;
- ``x.t`` where a table is named (after ``FROM``, ``JOIN``, ``INTO``, ``UPDATE``, ``TABLE`` …), and
  ``x.t.c`` anywhere. Elsewhere ``x.c`` is a column of a table ``x``;
- ``'x'`` as a whole literal, if the action asks for names: ``SHOW …``, or a text that mentions a
  schema, a catalog or a database.

The name is not replaced in text that the server composes (``CONCAT('con', 'cert_singer')``), nor in
patterns (``LIKE 'concert%'``). The tokenizer of sqlglot finds the names; the remaining text is
unchanged. In results, the clone's name is replaced by the task's name.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from intercode.databases.base import Row, SqlActionOutcome, StatementResult, TableState
from intercode_sandbox.ownership import has_ended, start_time

_NAME = re.compile(r"ic([0-9a-f]{8})p([0-9a-f]+)t([0-9a-f]+)n[0-9a-f]+\Z")
_name_numbers = itertools.count(1)
Edit = tuple[int, int, str]
"""A replacement: its start and end in the original text, and the new text."""

_CATALOG_QUERY = re.compile(r"schema|catalog|database|\bpg_|\A\s*show\b", re.IGNORECASE)
_COLUMN_CONTEXTS = {
    *("SELECT", "WHERE", "ON", "SET", "HAVING", "GROUP BY", "ORDER BY", "BY", "VALUES", "USING"),
}
_TABLE_LIST_CONTEXTS = {"FROM", "JOIN", "STRAIGHT_JOIN", "INTO", "UPDATE", "TABLE", "TABLES"}
_TABLE_CONTEXTS = {
    *(
        *_TABLE_LIST_CONTEXTS,
        "VIEW",
        "EXISTS",
        "REFERENCES",
        "TRUNCATE",
        "IGNORE",
        "REPLACE",
        "INSERT",
    ),
    *("DELETE", "ONLY"),
}
_EXPLAIN_WORDS = {"DESCRIBE", "DESC", "EXPLAIN"}
_DEFINITION_WORDS = {"CREATE", "DROP", "ALTER", "SHOW"}
_DATABASE_WORDS = {"DATABASE", "SCHEMA"}
_TABLE_LISTINGS = {"COLUMNS", "FIELDS", "INDEX", "INDEXES", "KEYS"}


def new_name() -> str:
    """Return a unique name for a database or account; the name identifies this process.

    The name has at most 32 characters (the limit of MySQL's accounts), and no character that is a
    wildcard in a ``GRANT``.
    """
    pid = os.getpid()
    return f"ic{_machine_digest()}p{pid:x}t{start_time(pid) or 0:x}n{next(_name_numbers):x}"


def is_leftover(name: str) -> bool:
    """Return whether InterCode created a name, in a process that has ended.

    For a name of another machine or container the result is False: its process may still run.
    """
    match = _NAME.match(name)
    if match is None or match[1] != _machine_digest():
        return False
    return has_ended(int(match[2], 16), int(match[3], 16) or None)


def _machine_digest() -> str:
    """Return a digest that identifies this machine, its last boot, and this container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - no path of a file
    return hashlib.blake2b(f"{boot}{namespace}".encode(), digest_size=4).hexdigest()


def rewrite(text: str, agent_name: str, name: str, dialect: str) -> tuple[str, list[Edit]]:
    """Replace the agent's name of the database in an action by the server's name.

    Args:
        text: The action.
        agent_name: The name of the database that the agent uses.
        name: The name of the database on the server.
        dialect: The name that sqlglot has for the dialect: ``mysql`` or ``postgres``.

    Returns:
        The new text, and the replacements.
    """
    if not _may_name(agent_name).search(text):
        return text, []
    from sqlglot import tokenize
    from sqlglot.errors import SqlglotError

    try:
        tokens = tokenize(text, read=dialect)
    except SqlglotError:
        return text, []  # the server reports the error
    edits = list(_edits(text, tokens, agent_name.lower(), name))
    pieces: list[str] = []
    end = 0
    for start, stop, replacement in edits:
        pieces += [text[end:start], replacement]
        end = stop
    return "".join((*pieces, text[end:])), edits


def original_position(position: int, edits: Sequence[Edit]) -> int:
    """Return the position in an action that corresponds to a position in the rewritten action.

    Args:
        position: The position in the rewritten action.
        edits: The replacements that `rewrite` has made.
    """
    length_change = 0
    for start, stop, replacement in edits:
        if position < start + length_change:
            break
        if position < start + length_change + len(replacement):
            return start
        length_change += len(replacement) - (stop - start)
    return position - length_change


@lru_cache(maxsize=256)
def _may_name(agent_name: str) -> re.Pattern[str]:
    """Return a pattern that finds possible uses of the name.

    The pattern is a cheap first test: most actions do not contain the name.
    """
    name = re.escape(agent_name)
    return re.compile(
        rf"(?<!\w){name}[`\"]?\s*\.|(?:use|from|in|database|schema|exists)\s+[`\"]?{name}\b"
        rf"|['\"]{name}['\"]",
        re.IGNORECASE,
    )


def _edits(text: str, tokens: Sequence[Any], agent_name: str, name: str) -> Iterator[Edit]:
    is_catalog_query = _CATALOG_QUERY.search(text) is not None
    offset = 0
    for i, token in enumerate(tokens):
        if token.text == ";":
            offset = i + 1
        if token.text.lower() != agent_name:
            continue
        start, stop = token.start, token.end + 1
        quote = text[start] if text[start] in "'\"`" else ""
        literal = quote == "'" or (quote == '"' and token.token_type.name == "STRING")
        if is_catalog_query if literal else _is_database(tokens, offset, i):
            yield start, stop, f"{quote}{name}{quote}"


def _is_database(tokens: Sequence[Any], offset: int, i: int) -> bool:
    """Return whether token `i`, in the statement from token `offset`, denotes the database."""
    preceding_words = [" ".join(token.text.upper().split()) for token in tokens[offset:i]]
    following_words = [token.text for token in tokens[i + 1 : i + 4]]
    if following_words[:1] == ["."]:
        return following_words[2:] == ["."] or _is_table(preceding_words)
    if not preceding_words:
        return False
    if preceding_words[-1] == "USE":
        return True
    if preceding_words[0] == "SHOW" and preceding_words[-1] in ("FROM", "IN"):
        keyword_count = sum(word in ("FROM", "IN") for word in preceding_words)
        return keyword_count > 1 or not _TABLE_LISTINGS & set(preceding_words)
    return (
        any(word in _DATABASE_WORDS for word in preceding_words[-4:])
        and preceding_words[0] in _DEFINITION_WORDS
    )


def _is_table(preceding_words: Sequence[str]) -> bool:
    """Return whether the name after these words is the name of a table, not of a column."""
    last_word = preceding_words[-1] if preceding_words else ""
    if last_word in _TABLE_CONTEXTS or (last_word in _EXPLAIN_WORDS and len(preceding_words) == 1):
        return True
    if last_word not in (",", "("):
        return False
    depth = 0
    for word in reversed(preceding_words):
        if word == ")":
            depth += 1
        elif word == "(":
            depth = max(0, depth - 1)
        elif depth == 0 and word in _TABLE_LIST_CONTEXTS | _COLUMN_CONTEXTS:
            return word in _TABLE_LIST_CONTEXTS
    return False


@dataclass(frozen=True, slots=True)
class DatabaseNameMapping:
    """The name of a clone on the server, and the agent's name that replaces it in results."""

    clone: str
    name: str

    def outcome(self, outcome: SqlActionOutcome, edits: Sequence[Edit]) -> SqlActionOutcome:
        """Return an outcome with the agent's names, and positions in the agent's text.

        Args:
            outcome: The outcome of the rewritten action.
            edits: The replacements that `rewrite` has made in the action.
        """
        results, failure = outcome.results, outcome.failure
        if failure is not None:
            position = failure.position
            if position is not None:
                position = original_position(position, edits)
            failure = replace(failure, message=self._text(failure.message), position=position)
        elif not any(map(self._is_named, results)):
            return outcome
        return replace(outcome, results=tuple(map(self._result, results)), failure=failure)

    def state(self, tables: Mapping[str, TableState]) -> dict[str, TableState]:
        """Return a state with the agent's names."""
        return {
            self._text(name): replace(
                table,
                columns=tuple((self._text(n), self._text(kind)) for n, kind in table.columns),
                rows=self._rows(table.rows),
            )
            for name, table in tables.items()
        }

    def _is_named(self, result: StatementResult) -> bool:
        """Return whether a result contains the clone's name."""
        clone = self.clone
        return any(clone in column for column in result.columns) or any(
            type(cell) is str and clone in cell for row in result.rows for cell in row
        )

    def _result(self, result: StatementResult) -> StatementResult:
        if not self._is_named(result):
            return result
        columns = tuple(map(self._text, result.columns))
        return replace(result, columns=columns, rows=self._rows(result.rows))

    def _rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [
            tuple(self._text(value) if type(value) is str else value for value in row)
            for row in rows
        ]

    def _text(self, text: str) -> str:
        return text.replace(self.clone, self.name) if self.clone in text else text
