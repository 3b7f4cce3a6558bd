"""Runs of golds and answers, each on a fresh copy of the database that no agent has touched.

Changes that the agent made in its own database therefore have no influence: changed rows, views,
triggers, temporary tables, variables, the current database. Each run has a new session for the
grader, whose changes are discarded at its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from intercode.databases.base import (
    DatabaseEngine,
    DatabaseSession,
    Role,
    SqlActionOutcome,
    StatementResult,
    TableState,
)
from intercode.databases.source import DatabaseSource
from intercode.episode import Episode
from intercode.errors import ActionError, OutputLimitError, RewardError, TaskError
from intercode.rewards.gold import GoldCache, LateError, blame_task, run_with_retry
from intercode.rewards.sql_compare import TiedRows, compare
from intercode.rewards.sql_gold import GoldQueryFacts, add_order_keys, group_rows, read_facts
from intercode.task import Task

MAX_ROWS = 200_000
"""The most rows of a result that are compared. The engine's byte limit may apply earlier."""

T = TypeVar("T")


class TaskDatabases(Protocol):
    """The tasks' databases, and the operations that open them."""

    engine: DatabaseEngine

    def source(self, task: Task) -> DatabaseSource:
        """Return the source of the task's database."""

    def open(
        self, task: Task, role: Role = "agent", source: DatabaseSource | None = None
    ) -> DatabaseSession:
        """Open a session with the task's database, and run the task's setup.

        Args:
            task: The task.
            role: The user of the session: the agent or the grader.
            source: Another database to open; None: the task's.
        """


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """The result of gold, if gold asks for an answer."""

    result: StatementResult
    ordered: bool
    """Whether the order of the result's rows counts."""
    groups: Sequence[TiedRows] | None
    """The groups of rows that tie in gold's order; None: unknown, or the order does not count."""


@dataclass(frozen=True, slots=True)
class GoldTableChange:
    """The effect of gold, if gold asks for a change: the tables before and after."""

    pristine_state: Mapping[str, TableState]
    gold_state: Mapping[str, TableState]


@dataclass(frozen=True, slots=True)
class AgentAnswerResult:
    """The result of the agent's answer on a fresh copy."""

    result: StatementResult | None
    trouble: str = ""
    """The reason why no result exists; empty if one exists."""


def last_answer(episode: Episode) -> str | None:
    """Return the agent's answer: its last action that returned a result set without an error."""
    for turn in reversed(episode.turns):
        if turn.ok and turn.info.get("executed", True) and turn.info.get("columns"):
            return turn.action
    return None


class SqlGrader:
    """The runner of golds and answers.

    Args:
        databases: The opener of the tasks' databases.
        cache: The cache of golds' results. A task with ``"metadata": {"cache_gold": false}`` is not
            cached, for instance because its gold depends on the clock.
    """

    def __init__(self, databases: TaskDatabases, cache: GoldCache | None = None) -> None:
        self.databases = databases
        self._cache = GoldCache(0) if cache is None else cache

    def dialect(self, task: Task) -> str:
        """Return the SQL dialect in which the task's gold is written."""
        return str(task.metadata.get("dialect", self.databases.engine.dialect))

    def facts(self, task: Task, gold: str) -> GoldQueryFacts:
        """Return the facts that the text of a gold shows, such as whether it orders its rows."""
        return read_facts(gold, self.dialect(task))

    def answer_facts(self, sql: str) -> GoldQueryFacts:
        """Return the facts that the text of an agent's answer shows."""
        return read_facts(sql, self.databases.engine.dialect)

    def get_cached(
        self, kind: str, task: Task, source: DatabaseSource, gold: str, compute: Callable[[], T]
    ) -> T:
        """Return the result of `compute`, from the cache if possible.

        Args:
            kind: The kind of the result, a part of the key.
            task: The task.
            source: The database.
            gold: A gold of the task; ``""`` for a result that depends on no gold.
            compute: Computes the result.
        """
        if not task.caches_gold:
            return compute()
        key_parts = kind, self.databases.engine.name, source.digest, task.setup or "", gold
        text = "\0".join(key_parts).encode("utf-8", "surrogateescape")
        key = f"sql {hashlib.blake2b(text, digest_size=16).hexdigest()}"
        return self._cache.get(key, compute)

    def gold(
        self, task: Task, gold: str, source: DatabaseSource, *, is_repeat: bool = False
    ) -> GoldAnswer:
        """Return the result of a gold that asks for an answer, run in a database.

        Args:
            task: The task.
            gold: One of its golds.
            source: The database.
            is_repeat: Whether to run gold again even if its result is cached.

        Raises:
            RewardError: Gold failed, returned no result set, or too large a result.
            DatabaseError: The engine failed.
        """
        if is_repeat:
            return self._run_gold(task, gold, source)
        return self.get_cached(
            "answer", task, source, gold, lambda: self._run_gold(task, gold, source)
        )

    def change(self, task: Task, gold: str, source: DatabaseSource) -> GoldTableChange:
        """Return the effect of a gold that asks for a change, run in a database.

        Raises:
            RewardError: Gold failed, or changed nothing.
            DatabaseError: The engine failed.
        """
        return self.get_cached(
            "change", task, source, gold, lambda: self._change(task, gold, source)
        )

    def answer(self, task: Task, sql: str, source: DatabaseSource) -> AgentAnswerResult:
        """Return the result of an agent's answer in a database.

        Raises:
            DatabaseError: The engine failed.
        """
        with closing(self.databases.open(task, "grader", source)) as session:
            try:
                outcome = session.execute(sql, timeout=task.timeout, max_rows=MAX_ROWS)
            except ActionError as error:
                return AgentAnswerResult(None, str(error))
        if outcome.failure is not None:
            return AgentAnswerResult(None, outcome.failure.message)
        result = _last_result(outcome)
        return AgentAnswerResult(result, "" if result else "it gives no result set")

    def _run_gold(self, task: Task, gold: str, source: DatabaseSource) -> GoldAnswer:
        return run_with_retry(
            lambda timeout_factor: self._run_gold_once(task, gold, source, timeout_factor)
        )

    def _run_gold_once(
        self, task: Task, gold: str, source: DatabaseSource, timeout_factor: int
    ) -> GoldAnswer:
        facts = self.facts(task, gold)
        with self._session(task, source) as session:
            result = _last_result(_execute(session, task, gold, timeout_factor))
            if result is None:
                raise RewardError(f"task {task.task_id!r}: gold gives no result set: {gold}")
            if not result.complete:
                raise RewardError(f"task {task.task_id!r}: gold gives too many rows: {gold}")
            row_groups = (
                self._group_gold_rows(session, task, facts, result) if facts.ordered else None
            )
        return GoldAnswer(result, facts.ordered, row_groups)

    def _group_gold_rows(
        self, session: DatabaseSession, task: Task, facts: GoldQueryFacts, gold: StatementResult
    ) -> Sequence[TiedRows] | None:
        """Return gold's rows in groups that tie in its order; None if the order keys are unknown.

        Gold runs once more, with its order keys as additional columns.
        """
        keyed_query = (
            None if facts.query is None else add_order_keys(facts.query, self.dialect(task))
        )
        if keyed_query is None:
            return None
        outcome = session.execute(keyed_query.sql, timeout=task.timeout, max_rows=MAX_ROWS)
        result = _last_result(outcome)
        if outcome.failure is not None or result is None or not result.complete:
            return None
        if len(result.columns) != len(gold.columns) + keyed_query.added_count:
            return None
        row_groups = group_rows(keyed_query, result.rows)
        # If the groups contradict the order of gold's own result, they are wrong.
        return row_groups if compare(gold, gold, ordered=True, groups=row_groups).equal else None

    def _change(self, task: Task, gold: str, source: DatabaseSource) -> GoldTableChange:
        pristine_state = self.get_cached(
            "state", task, source, "", lambda: self._state(task, source)
        )

        def change(timeout_factor: int) -> Mapping[str, TableState]:
            with self.open_changed_session(task, gold, source, timeout_factor) as session:
                return _read_state(session, task)

        gold_state = run_with_retry(change)
        unchanged_names = {
            name for name, table in gold_state.items() if pristine_state.get(name) == table
        }
        if unchanged_names == pristine_state.keys() == gold_state.keys():
            raise RewardError(f"task {task.task_id!r}: gold changes nothing: {gold}")
        # All golds of this database share one object for each unchanged table.
        return GoldTableChange(
            pristine_state,
            {
                table_name: pristine_state[table_name]
                if table_name in unchanged_names
                else state_table
                for table_name, state_table in gold_state.items()
            },
        )

    def _state(self, task: Task, source: DatabaseSource) -> Mapping[str, TableState]:
        def state(_: int) -> Mapping[str, TableState]:
            with self._session(task, source) as session:
                return _read_state(session, task)

        return run_with_retry(state)

    @contextmanager
    def open_changed_session(
        self, task: Task, gold: str, source: DatabaseSource, timeout_factor: int = 1
    ) -> Iterator[DatabaseSession]:
        """Open a session with a database in which a gold has made its change.

        Args:
            task: The task.
            gold: One of its golds.
            source: The database.
            timeout_factor: The factor on the task's time limit for gold.

        Raises:
            RewardError: Gold failed.
            DatabaseError: The engine failed.
        """
        with self._session(task, source) as session:
            _execute(session, task, gold, timeout_factor)
            yield session

    @contextmanager
    def _session(self, task: Task, source: DatabaseSource) -> Iterator[DatabaseSession]:
        """Open a session in which gold runs; an end of the sandbox is attributed to gold."""
        with (
            blame_task(task, "gold"),
            closing(self.databases.open(task, "grader", source)) as session,
        ):
            yield session


def golds(task: Task) -> tuple[str, ...]:
    """Return the task's golds.

    Raises:
        TaskError: The task has no gold.
    """
    if not task.gold:
        raise TaskError(f"task {task.task_id!r}: field 'gold' is missing")
    return task.gold


def _execute(
    session: DatabaseSession, task: Task, gold: str, timeout_factor: int
) -> SqlActionOutcome:
    seconds = timeout_factor * session.limits.seconds(task.timeout)
    outcome = session.execute(gold, timeout=seconds, max_rows=MAX_ROWS)
    if outcome.timed_out:
        raise LateError(f"task {task.task_id!r}: gold ran into the time limit: {gold}")
    if outcome.failure is not None:
        raise RewardError(f"task {task.task_id!r}: gold failed: {outcome.failure.message}: {gold}")
    return outcome


def _read_state(session: DatabaseSession, task: Task) -> Mapping[str, TableState]:
    try:
        return session.state()
    except OutputLimitError as error:
        raise LateError(f"task {task.task_id!r}: its change cannot be graded: {error}") from error


def _last_result(outcome: SqlActionOutcome) -> StatementResult | None:
    return next((result for result in reversed(outcome.results) if result.columns), None)
