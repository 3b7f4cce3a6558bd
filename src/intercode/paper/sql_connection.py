"""The one connection of 2023: the agent's and gold's, on which nothing is ever undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from intercode.paper.sql_reward import Answer

TIMEOUT = 30.0
"""Seconds for one statement. The recorded runs had no limit, and nothing in them took as long."""
MAX_ROWS = 500_000
"""Rows of one result."""
ERROR = "Error executing query: "
"""How the observation of a statement that failed begins."""


class Connection(Protocol):
    """Where actions and golds run. State stays: of the session, and in the databases."""

    def use(self, database: str) -> None:
        """Go to a task's database, as 2023 did before each episode.

        Raises:
            TaskError: There is no such database.
            DatabaseError: The server failed.
        """

    def execute(self, sql: str) -> Answer:
        """Run one statement.

        Raises:
            DatabaseError: The server failed.
        """

    def close(self) -> None:
        """End it. Idempotent."""


class Databases(Protocol):
    """The databases of a run, on one engine."""

    engine: str
    """Product and version, for the report."""

    def connect(self) -> Connection:
        """A new connection, to what the earlier ones have left."""

    def close(self) -> None:
        """Leave nothing behind. Idempotent."""


def failed(message: str) -> str:
    """The observation of a statement that failed."""
    return f"{ERROR}{message}"


def rows(values: Iterable[Iterable[object]]) -> list[object]:
    """Rows as the 2023 driver gave them: a list of tuples."""
    return [tuple(row) for row in values]
