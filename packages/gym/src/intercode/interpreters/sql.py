"""SQL interpreter: an action is one or several statements, which run in one session.

The session (`intercode.databases`) executes the statements; this module renders the results as
text. The session holds the state: transactions, temporary tables and variables last from action to
action.

A result is shown as a compact, aligned table. Numbers are aligned to the right, and ``NULL`` is
written out. An ambiguous text is in quotes. A text is ambiguous if it is empty, or looks like a
number, ``NULL`` or a truth value. A text that begins or ends with a space, or begins with a quote,
is ambiguous, too. So ``3`` is a number, ``'3'`` a text, ``''`` an empty text and ``NULL`` no value.
A text with control characters is written ``e'…'``, with escapes. Two different texts never look
alike, unless they are cut. A date, or a list, may look like a text.

A result is shown as records instead if one of its texts has several lines. A long text has the same
effect if it is a ``CREATE`` statement or the only value. A text of several lines keeps its lines.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence
from datetime import date, datetime, time as clock, timedelta
from decimal import Decimal

from intercode.databases.base import (
    DatabaseSession,
    Row,
    SqlActionOutcome,
    StatementFailure,
    StatementResult,
    SupportsSessionSave,
    Value,
)
from intercode.errors import ForkError
from intercode.interpreters.base import Execution, SavedInterpreterState, wake_on_cancellation
from intercode.interpreters.schema_commands import SchemaCommand, answer, parse_command
from intercode_sandbox.base import HeadTailBuffer

MAX_ROWS = 50
"""Maximum rows of a result that are shown."""
MAX_TABLES = 1000
"""Maximum tables, or columns of a table, that a schema command shows."""
_RESTARTED = (
    "the connection was restarted: its temporary tables, variables and open transaction are gone"
)


class SqlInterpreter:
    """An `Interpreter` that runs SQL and shows results as tables.

    Args:
        session: The session in which the actions run. The code that opened the session closes it.
        max_rows: The maximum rows of each result that are shown. The number of all rows is
            reported, unless the engine stopped counting.
        dialect: The name that sqlglot has for the engine's dialect, for `schema_commands`; None:
            every action goes to the engine unchanged.
    """

    def __init__(
        self, session: DatabaseSession, max_rows: int = MAX_ROWS, *, dialect: str | None = None
    ) -> None:
        self._session = session
        self._max_rows = max_rows
        self._dialect = dialect

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action. `info` has the numbers ``columns`` and ``rows`` of its last result.

        If the last result has no columns, ``rows`` is missing.

        Raises:
            ActionError: The action contains a NUL.
            DatabaseError: The engine failed.
        """
        start_time = time.monotonic()
        if self._dialect and (command := parse_command(action, self._dialect)) is not None:
            return self._look(command, self._dialect, timeout, start_time)
        with wake_on_cancellation(self._session.kill):
            outcome = self._session.execute(action, timeout=timeout, max_rows=self._max_rows)
        return Execution(
            output=self._render_outcome(outcome, action).encode("utf-8", "surrogateescape"),
            ok=outcome.failure is None,
            notes=(_RESTARTED,) if outcome.restarted else (),
            info=_info(outcome),
            seconds=time.monotonic() - start_time,
        )

    def save(self, lossy: bool = False) -> SavedInterpreterState:
        """Save the session's database and settings. Only SQLite and DuckDB support it.

        Raises:
            ForkError: The state cannot be saved, or the database is on a server.
            DatabaseError: The engine failed.
        """
        if not isinstance(self._session, SupportsSessionSave):
            raise ForkError("a session of a database server cannot be saved: use mode='replay'")
        saved_session = self._session.save(lossy)

        def reopen() -> tuple[DatabaseSession, SqlInterpreter]:
            session = saved_session.open()
            return session, SqlInterpreter(session, self._max_rows, dialect=self._dialect)

        return SavedInterpreterState(
            reopen,
            saved_session.close,
            ("the database", "the session's settings"),
            saved_session.lost,
        )

    def close(self) -> None:
        """Do nothing: the environment closes the session."""

    def _look(
        self, command: SchemaCommand, dialect: str, timeout: float | None, start_time: float
    ) -> Execution:
        """Run a schema command. Its output is never an answer, so `info` reports 0 columns."""
        outcomes: list[SqlActionOutcome] = []

        def run(sql: str) -> SqlActionOutcome:
            # All queries of a command share its time limit; an engine accepts no limit of 0.
            remaining_seconds = (
                None if timeout is None else max(0.001, start_time + timeout - time.monotonic())
            )
            outcomes.append(
                self._session.execute(sql, timeout=remaining_seconds, max_rows=MAX_TABLES)
            )
            return outcomes[-1]

        with wake_on_cancellation(self._session.kill):
            listing = answer(command, dialect, run)
        text = listing if isinstance(listing, str) else self._render_outcome(listing, "")
        failed = isinstance(listing, SqlActionOutcome) and listing.failure is not None
        buffer = HeadTailBuffer(self._session.limits.output)
        buffer.add(text.encode("utf-8", "surrogateescape"))
        events = {
            name: True
            for name in ("timed_out", "restarted")
            if any(getattr(outcome, name) for outcome in outcomes)
        }
        return Execution(
            output=buffer.getvalue(),
            ok=not failed,
            notes=(_RESTARTED,) if "restarted" in events else (),
            info={"columns": 0, **events},
            seconds=time.monotonic() - start_time,
        )

    def _render_outcome(self, outcome: SqlActionOutcome, action: str) -> str:
        blocks = [_result(result) for result in outcome.results]
        if outcome.failure is not None:
            blocks.append(_failure(outcome.failure, action))
        text = "\n\n".join(blocks)
        limit = self._session.limits.output
        if len(text) <= limit // 4:  # any characters fit, at 4 bytes each
            return text
        buffer = HeadTailBuffer(limit)
        buffer.add(text.encode("utf-8", "surrogateescape"))
        return buffer.getvalue().decode("utf-8", "replace") if buffer.truncated else text


def _result(result: StatementResult) -> str:
    if result.columns:
        render_rows = render_records if has_long_text(result.rows) else render
        return f"{render_rows(result.columns, result.rows)}\n{_count(result)}"
    return "ok" if result.affected_rows is None else f"ok, {_rows(result.affected_rows)} changed"


def _count(result: StatementResult) -> str:
    row_count = len(result.rows)
    if result.total is None:
        return f"(the first {row_count} of more rows than were counted)"
    if row_count < result.total:
        return f"(the first {row_count} of {_rows(result.total)})"
    return f"({_rows(result.total)})"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _failure(failure: StatementFailure, action: str) -> str:
    text = f"Error {failure.code or ''}".rstrip() + f": {failure.message}"
    if failure.position is None:
        return text
    prefix = action[: failure.position]
    line, column = prefix.count("\n") + 1, len(prefix) - (prefix.rfind("\n") + 1) + 1
    return f"{text} (line {line}, column {column})"


def _info(outcome: SqlActionOutcome) -> dict[str, object]:
    last_result = (
        outcome.results[-1] if outcome.results and outcome.failure is None else StatementResult()
    )
    info: dict[str, object] = {"columns": len(last_result.columns)}
    if last_result.columns:
        info["rows"] = last_result.total
    if any(len(result.rows) != result.total for result in outcome.results if result.columns):
        info["truncated"] = True
    if outcome.timed_out:
        info["timed_out"] = True
    if outcome.restarted:
        info["restarted"] = True
    return info


# -- tables ----------------------------------------------------------------------------------------

MAX_CELL = 200
"""Maximum characters of a value in a table."""
MAX_TEXT = 4000
"""Maximum characters of a value in a record."""
MAX_RULE = 100
"""Maximum columns of the line below the names: a terminal's width, even if a value is wider."""
_MAX_BYTES = 32
_MISTAKABLE = re.compile(
    r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)|null|true|false|[xe]?'.*|\s.*|.*\s|",
    re.IGNORECASE | re.DOTALL,
)
_CREATE = re.compile(r"\s*CREATE\s", re.IGNORECASE)
_LINES = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f]*")
"""A text whose only control characters are line ends and tabs."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CONTROLS = {number: repr(chr(number))[1:-1] for number in [*range(32), 127]}
_CONTROLS[ord("\\")] = "\\\\"
_NUMBERS = {int, float, Decimal}


def render(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return a table as text: a line of names, a ruled line, and a line for each row."""
    padded_columns = []
    for column_index, name in enumerate(columns):
        values = [row[column_index] for row in rows]
        texts = [_cut(name.translate(_CONTROLS)), *map(render_value, values)]
        padded_columns.append(_pad_column(texts, to_the_right=_are_numbers(values)))
    lines = [" | ".join(cells).rstrip() for cells in zip(*padded_columns, strict=True)]
    lines.insert(1, "-+-".join(["-" * _width(cells[0]) for cells in padded_columns])[:MAX_RULE])
    return "\n".join(lines)


def has_long_text(rows: Sequence[Row]) -> bool:
    """Return whether to show a result as records: a text has several lines, or is long.

    A text that a table would cut is long. Such a text counts only if it is the result's only value
    or a ``CREATE`` statement.
    """
    is_single_value = len(rows) == 1 and len(rows[0]) == 1
    return any(
        isinstance(value, str)
        and (
            _has_lines(value)
            or (len(value) > MAX_CELL and (is_single_value or _CREATE.match(value) is not None))
        )
        for row in rows
        for value in row
    )


def _has_lines(value: str) -> bool:
    return "\n" in value and _LINES.fullmatch(value) is not None


def render_records(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return rows as records, one below the other; a text of several lines keeps its lines.

    The name of a single column is at the top, with a line of dashes before each value. With several
    columns, each value follows its column's name.
    """
    names = [_cut(name.translate(_CONTROLS)) for name in columns]
    if len(names) == 1:
        rule = "-" * min(MAX_RULE, max(_width(names[0]), 3))
        return "\n".join([names[0], *(f"{rule}\n{_full_text(value)}" for (value,) in rows)])
    lines = []
    for row_number, row in enumerate(rows, 1):
        lines.append(f"-- row {row_number} --")
        for name, value in zip(names, row, strict=True):
            separator = "\n" if isinstance(value, str) and _has_lines(value) else " "
            lines.append(f"{name}:{separator}{_full_text(value)}")
    return "\n".join(lines)


def _full_text(value: Value) -> str:
    if isinstance(value, str) and (_has_lines(value) or _CONTROL.search(value) is None):
        return (
            _cut(value, MAX_TEXT) if len(value) > MAX_CELL or "\n" in value else render_value(value)
        )
    return render_value(value)


def render_value(value: Value) -> str:
    """Return the text of one value in a table."""
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
        return _cut(f"[{', '.join(render_value(item) for item in value)}]")
    if isinstance(value, dict):
        return _cut(
            "{" + ", ".join(f"{key}: {render_value(item)}" for key, item in value.items()) + "}"
        )
    return _text(str(value))


def _text(value: str) -> str:
    if value.isascii() and value.isalpha() and value[0] not in "nNtTfFiI":
        return _cut(value)  # fast path for the usual case
    if _CONTROL.search(value):
        return _cut("e'" + value.translate(_CONTROLS).replace("'", "''") + "'")
    if _MISTAKABLE.fullmatch(value):
        return _cut("'" + value.replace("'", "''") + "'")
    return _cut(value)


def _binary(value: bytes) -> str:
    if len(value) <= _MAX_BYTES:
        return f"x'{value.hex()}'"
    return f"x'{value[:_MAX_BYTES].hex()}…' ({len(value):,} bytes)"


def _cut(text: str, max_length: int = MAX_CELL) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text):,} characters)"


def _are_numbers(values: Sequence[Value]) -> bool:
    """Return whether the values are numbers or NULL, with at least one number."""
    kinds = set(map(type, values))
    kinds.discard(type(None))
    return bool(kinds) and kinds <= _NUMBERS


def _pad_column(texts: Sequence[str], to_the_right: bool) -> list[str]:
    widths = [_width(text) for text in texts]
    max_width = max(widths)
    if to_the_right:
        return [" " * (max_width - width) + text for text, width in zip(texts, widths, strict=True)]
    return [text + " " * (max_width - width) for text, width in zip(texts, widths, strict=True)]


def _width(text: str) -> int:
    """Return the width of a text in terminal columns."""
    if text.isascii():
        return len(text)
    wide_count = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide_count - sum(unicodedata.combining(character) != 0 for character in text)
