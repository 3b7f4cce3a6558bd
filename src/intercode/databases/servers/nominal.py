"""What comes out of a clone, with the database's nominal name for the clone's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from intercode.databases.base import Outcome, Result, Row, Table
from intercode.databases.servers.names import Edit, original


@dataclass(frozen=True, slots=True)
class Nominal:
    """A clone's name, and the one that it goes by."""

    clone: str
    name: str

    def outcome(self, outcome: Outcome, edits: Sequence[Edit]) -> Outcome:
        """An outcome of an action in which these edits were made."""
        results, failure = outcome.results, outcome.failure
        if failure is not None:
            position = failure.position
            if position is not None:
                position = original(position, edits)
            failure = replace(failure, message=self._text(failure.message), position=position)
        elif not any(map(self._is_named, results)):
            return outcome
        return replace(outcome, results=tuple(map(self._result, results)), failure=failure)

    def state(self, tables: Mapping[str, Table]) -> dict[str, Table]:
        """A state."""
        return {
            self._text(name): replace(
                table,
                columns=tuple((self._text(n), self._text(kind)) for n, kind in table.columns),
                rows=self._rows(table.rows),
            )
            for name, table in tables.items()
        }

    def _is_named(self, result: Result) -> bool:
        """Whether the clone's name is in a result."""
        clone = self.clone
        return any(clone in column for column in result.columns) or any(
            type(cell) is str and clone in cell for row in result.rows for cell in row
        )

    def _result(self, result: Result) -> Result:
        if not self._is_named(result):
            return result
        columns = tuple(map(self._text, result.columns))
        return replace(result, columns=columns, rows=self._rows(result.rows))

    def _rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [tuple(self._text(c) if type(c) is str else c for c in row) for row in rows]

    def _text(self, text: str) -> str:
        return text.replace(self.clone, self.name) if self.clone in text else text
