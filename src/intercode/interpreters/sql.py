"""The SQL interpreter: an action is one statement or several, run in one session.

The session (`intercode.databases`) knows the engine; this makes text of what it gives. State lives
in the session: transactions, temporary tables and variables stay from action to action.
"""

from __future__ import annotations

import time

from intercode.databases.base import Failure, Outcome, Result, Session
from intercode.interpreters.base import Execution
from intercode.interpreters.sql_table import render
from intercode.sandbox.base import OutputBuffer

MAX_ROWS = 50
"""Rows of a result that are shown."""
_RESTARTED = (
    "the connection was restarted: its temporary tables, variables and open transaction are gone"
)


class SqlInterpreter:
    """Runs SQL and shows results as tables.

    Args:
        session: Where it runs; closed by whoever opened it.
        max_rows: Rows of each result that are shown. How many there are is always said.
    """

    def __init__(self, session: Session, max_rows: int = MAX_ROWS) -> None:
        self._session = session
        self._max_rows = max_rows

    def execute(self, action: str, timeout: float | None = None) -> Execution:
        """Run one action. `info` has ``columns`` and ``rows`` of its last result, for the reward.

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

    def close(self) -> None:
        """Nothing to do: the session is the environment's."""

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
    text = (
        f"Error {failure.code}: {failure.message}"
        if failure.code
        else (f"Error: {failure.message}")
    )
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
