"""The SQL interpreter: an action is one statement or several, run in one session.

The session (`intercode.databases`) knows the engine; this module makes text of its results. State
lives in the session: transactions, temporary tables and variables stay from action to action.

A result is shown as a compact, aligned table in which every value shows its type. Numbers stand to
the right, ``NULL`` is written out. A text is in quotes where it could be taken for something else:
if it looks like a number, like ``NULL`` or a truth value, is empty, begins or ends with a space, or
begins with a quote. So ``3`` is a number, ``'3'`` a text, ``''`` an empty text and ``NULL`` none at
all. A text with control characters is written ``e'…'``, with escapes. No two values that an agent
must tell apart look alike, unless they are cut.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal

from intercode.databases.base import Failure, Outcome, Result, Row, SavesSession, Session, Value
from intercode.errors import ForkError
from intercode.interpreters.base import Execution, Saved
from intercode.sandbox.base import OutputBuffer

MAX_ROWS = 50
"""Rows of a result that are shown."""
_RESTARTED = (
    "the connection was restarted: its temporary tables, variables and open transaction are gone"
)


class SqlInterpreter:
    """Runs SQL and shows results as tables.

    Args:
        session: The session in which it runs; its opener closes it.
        max_rows: Rows of each result that are shown. The number of all rows is always said.
    """

    def __init__(self, session: Session, max_rows: int = MAX_ROWS) -> None:
        self._session = session
        self._max_rows = max_rows

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action; `info` has ``columns`` and ``rows`` of its last result, for the reward.

        Raises:
            ActionError: The action holds a NUL.
            DatabaseError: The engine failed.
        """
        began = time.monotonic()
        outcome = self._session.execute(action, timeout=timeout, max_rows=self._max_rows)
        return Execution(
            output=self._shown(outcome, action).encode("utf-8", "surrogateescape"),
            ok=outcome.failure is None,
            notes=(_RESTARTED,) if outcome.restarted else (),
            info=_info(outcome),
            seconds=time.monotonic() - began,
        )

    def save(self, lossy: bool = False) -> Saved:
        """Save the session's database and settings, where its engine is a library.

        Raises:
            ForkError: They cannot be carried; or the database is a server's.
            DatabaseError: The engine failed.
        """
        if not isinstance(self._session, SavesSession):
            raise ForkError("a session of a database server cannot be saved: use how='replay'")
        saved = self._session.save(lossy)

        def opened() -> tuple[Session, SqlInterpreter]:
            session = saved.open()
            return session, SqlInterpreter(session, self._max_rows)

        return Saved(opened, saved.close, ("the database", "the session's settings"), saved.lost)

    def close(self) -> None:
        """Do nothing: the session is the environment's."""

    def _shown(self, outcome: Outcome, action: str) -> str:
        parts = [_result(result) for result in outcome.results]
        if outcome.failure is not None:
            parts.append(_failure(outcome.failure, action))
        text = "\n\n".join(parts)
        limit = self._session.limits.output
        if len(text) <= limit // 4:  # whatever its characters, it fits
            return text
        buffer = OutputBuffer(limit)
        buffer.add(text.encode("utf-8", "surrogateescape"))
        return buffer.getvalue().decode("utf-8", "replace") if buffer.truncated else text


def _result(result: Result) -> str:
    if result.columns:
        return f"{render(result.columns, result.rows)}\n{_count(result)}"
    return "ok" if result.changed is None else f"ok, {_rows(result.changed)} changed"


def _count(result: Result) -> str:
    shown = len(result.rows)
    if result.total is None:
        return f"(the first {shown} of more rows than were counted)"
    if shown < result.total:
        return f"(the first {shown} of {_rows(result.total)})"
    return f"({_rows(result.total)})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _failure(failure: Failure, action: str) -> str:
    text = f"Error {failure.code or ''}".rstrip() + f": {failure.message}"
    if failure.position is None:
        return text
    before = action[: failure.position]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return f"{text} (line {line}, column {column})"


def _info(outcome: Outcome) -> dict[str, object]:
    last = outcome.results[-1] if outcome.results and outcome.failure is None else Result()
    info: dict[str, object] = {"columns": len(last.columns)}
    if last.columns:
        info["rows"] = last.total
    if any(len(result.rows) != result.total for result in outcome.results if result.columns):
        info["truncated"] = True
    if outcome.timed_out:
        info["timed_out"] = True
    if outcome.restarted:
        info["restarted"] = True
    return info


# -- tables ----------------------------------------------------------------------------------------

MAX_CELL = 200
"""Characters of a value that are shown."""
_MAX_BYTES = 32
_MISTAKABLE = re.compile(
    r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)|null|true|false|[xe]?'.*|\s.*|.*\s|",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROLS = {number: repr(chr(number))[1:-1] for number in [*range(32), 127]}
_CONTROLS[ord("\\")] = "\\\\"
_NUMBERS = {int, float, Decimal}


def render(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the table: a line of names, a rule, and a line for each row."""
    padded = []
    for number, name in enumerate(columns):
        values = [row[number] for row in rows]
        texts = [_cut(name.translate(_CONTROLS)), *map(shown, values)]
        padded.append(_padded(texts, to_the_right=_are_numbers(values)))
    lines = [" | ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    lines.insert(1, "-+-".join(["-" * _width(cells[0]) for cells in padded]))
    return "\n".join(lines)


def shown(value: Value) -> str:
    """Return one value as it stands in a table."""
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _cut(repr(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _binary(bytes(value))
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, (date, clock)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return _cut(f"[{', '.join(shown(item) for item in value)}]")
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}")
    return _text(str(value))


def _text(value: str) -> str:
    if value.isascii() and value.isalpha() and value[0] not in "nNtTfFiI":
        return _cut(value)  # the usual case, quickly
    if _CONTROL.search(value):
        return _cut("e'" + value.translate(_CONTROLS).replace("'", "''") + "'")
    if _MISTAKABLE.fullmatch(value):
        return _cut("'" + value.replace("'", "''") + "'")
    return _cut(value)


def _binary(value: bytes) -> str:
    if len(value) <= _MAX_BYTES:
        return f"x'{value.hex()}'"
    return f"x'{value[:_MAX_BYTES].hex()}…' ({len(value):,} bytes)"


def _cut(text: str) -> str:
    if len(text) <= MAX_CELL:
        return text
    return f"{text[:MAX_CELL]}… ({len(text):,} characters)"


def _are_numbers(values: Sequence[Value]) -> bool:
    """Return whether there are numbers among the values, and nothing else but NULL."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    return bool(kinds) and kinds <= _NUMBERS


def _padded(texts: Sequence[str], to_the_right: bool) -> list[str]:
    widths = [_width(text) for text in texts]
    full = max(widths)
    if to_the_right:
        return [" " * (full - width) + text for text, width in zip(texts, widths, strict=True)]
    return [text + " " * (full - width) for text, width in zip(texts, widths, strict=True)]


def _width(text: str) -> int:
    """Return the columns that a terminal takes for a text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
