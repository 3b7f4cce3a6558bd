"""The results of an action's statements, within its limits: rows kept, rows only counted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Any

from intercode.databases.embedded.inside import wire

_MOST_COUNTED = 1_000_000
_PER_VALUE = 16
"""What a value weighs beside its characters or bytes."""
_FLAT = {type(None), bool, int, float, str, bytes, Decimal, date, datetime, clock_time, timedelta}
_LONG = {str, bytes}

Message = list[Any]
"""What goes over the wire: a result is ``[columns, rows, total, changed]``, a failure
``[message, code, position]``, an outcome ``[results, failure, timed out, written]``."""


class Collector:
    """Takes the rows of one action's statements.

    Args:
        seconds: For all of them.
        max_rows: Rows kept of each.
        max_bytes: What the rows that are kept may weigh, together.
    """

    def __init__(self, seconds: float, max_rows: int, max_bytes: int) -> None:
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.max_rows = max_rows
        self.left = max_bytes

    def left_seconds(self) -> float:
        """Until the time limit."""
        return self.deadline - time.monotonic()

    def late(self) -> bool:
        """Whether the time limit is reached."""
        return time.monotonic() >= self.deadline

    def lateness(self) -> Message:
        """The failure that says so."""
        return [f"interrupted: it reached the time limit of {self.seconds:g} s", "", None]

    def result(self, columns: Iterable[str], rows: Iterable[Any], changed: int | None) -> Message:
        """The result of one statement; see `Message`."""
        names = list(columns)
        self.left -= sum(len(name) + _PER_VALUE for name in names)
        kept: list[Any] = []
        rest = self._keep(iter(rows), kept)
        total = len(kept) if rest is None else self._count(rest, len(kept) + 1)
        return [names, kept, total, changed]

    def _keep(self, rows: Iterator[Any], kept: list[Any]) -> Iterator[Any] | None:
        """Keep what fits; what comes after the first row that does not, if there is one."""
        for row in rows:
            if len(kept) >= self.max_rows:
                return rows
            weight = sum([len(value) for value in row if type(value) in _LONG])
            weight += _PER_VALUE * len(row)
            if not _FLAT.issuperset(map(type, row)):
                row = [wire.nest(value) for value in row]
                weight += len(wire.encode(row))
            if weight > self.left:
                return rows
            self.left -= weight
            kept.append(row)
        return None

    def _count(self, rows: Iterator[Any], count: int) -> int | None:
        try:
            for _ in rows:
                count += 1
                if count >= _MOST_COUNTED:
                    return None
        except Exception:
            if self.late():  # what is no longer kept need not be counted to its end
                return None
            raise
        return count
