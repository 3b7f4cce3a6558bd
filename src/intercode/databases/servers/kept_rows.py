"""How much of what a server gives is kept in this process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from intercode.databases.base import Failure, Outcome, Row, Table
from intercode.errors import OutputLimitError
from intercode.sandbox.base import Limits

Kind = Literal["table", "view"]
NOT_READ: tuple[Sequence[Row], Outcome] = ((), Outcome(failure=Failure("not read")))
"""Columns and rows of a view that is not to be read."""
_RESULT_BYTES, _STATE_BYTES = 16, 64
"""How many bytes of rows are kept for each byte of an action's output; of a whole state."""


class Keeper:
    """Keeps the first rows of a result and counts the others.

    Args:
        rows: How many are kept at most; None: all.
        limits: Of which the output's says how many bytes are kept.
    """

    def __init__(self, rows: int | None, limits: Limits | None) -> None:
        self.kept: list[Row] = []
        self.total = 0
        self._rows = sys.maxsize if rows is None else rows
        self._bytes = sys.maxsize if limits is None else limits.output * _RESULT_BYTES

    def extend(self, rows: list[Row]) -> None:
        """Some more rows."""
        self.total += len(rows)
        if self.full or not rows:
            return
        self._bytes -= size_of(rows)
        if self._bytes >= 0:
            self.kept += rows[: self._rows - len(self.kept)]
        elif len(rows) > 1:  # find out with which row it is too much
            self.total -= len(rows)
            self._bytes += size_of(rows)
            for row in rows:
                self.extend([row])

    @property
    def full(self) -> bool:
        """Whether no more rows are kept."""
        return len(self.kept) >= self._rows or self._bytes < 0


def size_of(rows: Sequence[Row]) -> int:
    """About how many bytes rows take."""
    texts = [len(cell) for row in rows for cell in row if type(cell) is str or type(cell) is bytes]
    return sum(texts) + 16 * len(rows)


def state_limits(limits: Limits) -> Limits:
    """The limits with which one table of a state is read."""
    return replace(limits, output=limits.output * _STATE_BYTES // _RESULT_BYTES)


def read_table(name: str, kind: Kind, columns: Sequence[Row], outcome: Outcome) -> Table:
    """A table as it was read.

    Args:
        name: Its name.
        kind: What it is.
        columns: Name and declared type of each.
        outcome: Of reading its rows.

    Raises:
        OutputLimitError: It cannot be read.
    """
    if outcome.failure is None:
        declared = tuple((str(column), str(type_)) for column, type_ in columns)
        return Table(kind, declared, outcome.results[-1].rows)
    if kind == "view" and not outcome.timed_out:
        # It reads what is not there any more: it has neither columns nor rows.
        return Table(kind, (), ())
    raise OutputLimitError(f"{name} cannot be read: {outcome.failure.message}")


def check_size(name: str, outcome: Outcome, size: int, limits: Limits) -> None:
    """Refuse a state that is too large.

    Args:
        name: The database's.
        outcome: Of reading a table.
        size: Of all tables so far.
        limits: The session's.

    Raises:
        OutputLimitError: It is.
    """
    complete = all(result.complete for result in outcome.results)
    if not complete or size > limits.output * _STATE_BYTES:
        raise OutputLimitError(
            f"the tables of {name} hold more than {limits.output * _STATE_BYTES >> 10} KiB: "
            f"{_STATE_BYTES} times the limit for output"
        )
