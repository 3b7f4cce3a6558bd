"""The default SQL reward: the correct result set or, for a change, the correct tables.

**Gold asks for an answer** if it is a query. The agent's answer is its last action that succeeded
and returned a result set. Answer and gold run again, each on a fresh copy of the database
(`intercode.rewards.sql_run`). The value 1.0 requires equal results
(`intercode.rewards.sql_compare`). The rows must have the same order if gold's outermost query
orders them (`intercode.rewards.sql_gold`).

In three cases the results must also be equal on mutated copies of the database. Gold's result could
be guessed; columns of one type are in another order than gold's; or the answer has a further column
(`intercode.rewards.sql_explain`). A task may allow another column order
(``metadata.permute_columns``, set in Spider's tasks). One order must then hold on the database and
on all copies.

**Gold asks for a change** otherwise. The tables that the agent left are compared with gold's. If
the episode still runs, reading the tables commits an open transaction.

**Below 1.0**, the value is at most 0.99: the overlap of the rows or of the changes. For an answer
that is wrong on a copy alone, the overlap on that copy counts. Of several golds, the best match
counts. Gold that fails is an error, never a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from intercode.databases.base import DatabaseSession, Row, StatementResult, Value
from intercode.databases.source import DatabaseSource
from intercode.episode import Episode, Score
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_compare import (
    Order,
    ResultComparison,
    TiedRows,
    compare,
    is_ambiguous_order,
    is_in_own_order,
)
from intercode.rewards.sql_explain import find_uses, is_used_by_gold
from intercode.rewards.sql_mutated_copies import copies, is_guessable
from intercode.rewards.sql_run import (
    AgentAnswerResult,
    GoldAnswer,
    SqlGrader,
    TaskDatabases,
    golds,
    last_answer,
)
from intercode.rewards.sql_state_compare import compare_states
from intercode.rewards.sql_views_triggers import program_differences
from intercode.task import Task

MAX_INEXACT_VALUE = 0.99
"""The highest value of an inexact result."""

_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 200


class SqlReward:
    """The reward that compares an episode's answer or changes with gold's.

    Args:
        databases: The opener of the tasks' databases, for the grader.
        cache: The cache of golds' results; None: no cache.
        permute_columns: Whether an answer's columns may have another order; None: the task decides.
        columns: The columns that an answer may have. ``exact``: gold's. ``explained``: gold's, and
            possibly a further column that explains them (`intercode.rewards.sql_explain`). None:
            the task decides.
    """

    VERSION = 2
    """The version of the scores: raise the number when any score can differ."""

    def __init__(
        self,
        databases: TaskDatabases,
        cache: GoldCache | None = None,
        *,
        permute_columns: bool | None = None,
        columns: str | None = None,
    ) -> None:
        self._grader = SqlGrader(databases, cache)
        self._permute_columns = permute_columns
        self._columns = columns

    def __call__(self, task: Task, episode: Episode, session: DatabaseSession) -> Score:
        """Return the score against the best gold.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold could not be run.
            DatabaseError: The engine failed, or the connection was lost.
        """
        best: Score | None = None
        for gold in golds(task):
            if self._grader.facts(task, gold).changes:
                score = self._score_change(task, gold, session)
            else:
                score = self._score_answer(task, gold, last_answer(episode))
            if best is None or score.value > best.value:
                best = score
            if best.value == 1.0:
                break
        assert best is not None  # a task has at least one gold
        return best

    def _score_change(self, task: Task, gold: str, session: DatabaseSession) -> Score:
        source = self._grader.databases.source(task)
        change, agent = self._grader.change(task, gold, source), session.state()
        comparison = compare_states(change.pristine_state, change.gold_state, agent)
        if comparison.equal and (
            wrong_tables := program_differences(self._grader, task, gold, source, agent)
        ):
            # Tables with a wrong program count as unchanged by the agent.
            remaining_state = {
                name: table for name, table in agent.items() if name not in wrong_tables
            }
            remaining_state |= {
                name: table for name, table in change.pristine_state.items() if name in wrong_tables
            }
            comparison = compare_states(change.pristine_state, change.gold_state, remaining_state)
            comparison = replace(comparison, equal=False, reason=", ".join(wrong_tables.values()))
        value = 1.0 if comparison.equal else min(comparison.overlap, MAX_INEXACT_VALUE)
        detail = {"reason": comparison.reason} if comparison.reason else {}
        return Score(value, {"tables": comparison.tables, "overlap": comparison.overlap}, detail)

    def _score_answer(self, task: Task, gold: str, sql: str | None) -> Score:
        source = self._grader.databases.source(task)
        if sql is None:
            gold_answer = self._grader.gold(task, gold, source)
            return _score(
                ResultComparison(False, 0.0, "no action gave a result set"), gold_answer.result
            )
        gold_answer, answer, comparison = self._compare(task, gold, sql, source)
        score = _score(comparison, gold_answer.result, sql, answer)
        if not comparison.equal:
            return score
        if (
            self._grader.facts(task, gold).reads_table
            and not self._grader.answer_facts(sql).reads_table
        ):
            score = _add_detail(score, hard_coded=True)
        if _is_explained(comparison, gold_answer.result, answer):
            return self._confirm_answer(
                task, gold, sql, source, _add_detail(score, explained=True), comparison
            )
        if is_guessable(gold_answer.result) or _is_ambiguous(comparison, gold_answer.result):
            return self._confirm_answer(task, gold, sql, source, score, comparison)
        return (
            score
            if _is_in_own_order(comparison)
            else _add_detail(score, columns="in another order")
        )

    def _confirm_answer(
        self,
        task: Task,
        gold: str,
        sql: str,
        source: DatabaseSource,
        score: Score,
        comparison: ResultComparison,
    ) -> Score:
        """Score an answer on mutated copies: its result may equal gold's by chance."""
        mutated_copies = copies(self._grader, task, gold, source)
        for copy in mutated_copies:
            gold_answer, answer, copy_comparison = self._compare(
                task, gold, sql, copy, comparison.orders
            )
            if not copy_comparison.equal:
                reason = f"on a mutated copy of the database: {copy_comparison.reason}"
                copy_comparison = ResultComparison(False, copy_comparison.overlap, reason)
                return _score(copy_comparison, gold_answer.result, sql, answer)
            comparison = copy_comparison
        if not mutated_copies:
            gold_result = self._grader.gold(task, gold, source).result
            if _is_ambiguous(comparison, gold_result):
                reason = "the columns are in another order, and no mutated copy tells them apart"
                return _score(ResultComparison(False, comparison.overlap, reason), gold_result, sql)
            if "explained" in score.detail:
                reason = "a further column, and no mutated copy tells it from gold's"
                return _score(ResultComparison(False, comparison.overlap, reason), gold_result, sql)
            note = "gold can be guessed: no mutated copy was found that gives something else"
            score = _add_detail(score, note=note)
        if "explained" in score.detail:
            (extra_column,) = {*range(len(comparison.orders[0]) + 1)} - {*comparison.orders[0]}
            if not self._has_effect(task, gold, sql, extra_column, (source, *mutated_copies)):
                reason = "a further column, by which nothing is ordered, grouped or filtered"
                gold_result = self._grader.gold(task, gold, source).result
                return _score(ResultComparison(False, comparison.overlap, reason), gold_result, sql)
        return (
            score
            if _is_in_own_order(comparison)
            else _add_detail(score, columns="in another order")
        )

    def _compare(
        self,
        task: Task,
        gold: str,
        sql: str,
        source: DatabaseSource,
        orders: Sequence[Order] | None = None,
    ) -> tuple[GoldAnswer, AgentAnswerResult, ResultComparison]:
        """Run gold and an answer in a database, and compare their results.

        Args:
            task: The task.
            gold: One of its golds.
            sql: The answer.
            source: The database.
            orders: The orders of the answer's columns that hold on the database; None: not known
                yet. On a mutated copy only these orders are tried, and rows that tie in gold's
                order may be added.
        """
        gold_answer = self._grader.gold(task, gold, source)
        answer = self._grader.answer(task, sql, source)
        comparison = self._compare_results(task, gold_answer, sql, answer, orders)
        if answer.result and not comparison.equal and self._grader.facts(task, gold).leaves_choice:
            # The engine may choose other rows in each run. Gold therefore runs a second time before
            # the answer counts as wrong.
            repeated_answer = self._grader.gold(task, gold, source, is_repeat=True)
            repeated_comparison = self._compare_results(task, repeated_answer, sql, answer, orders)
            if repeated_comparison.equal:
                return repeated_answer, answer, repeated_comparison
        return gold_answer, answer, comparison

    def _can_permute(self, task: Task) -> bool:
        is_permitted = task.metadata.get("permute_columns") is True
        return is_permitted if self._permute_columns is None else self._permute_columns

    def _explaining_columns(self, task: Task, sql: str) -> tuple[int, ...]:
        """List the answer's columns that may be added to gold's columns, by position."""
        column_mode = task.metadata.get("columns") if self._columns is None else self._columns
        if column_mode != "explained":
            return ()
        query, dialect = self._grader.answer_facts(sql).query, self._grader.databases.engine.dialect
        return tuple(dict.fromkeys(column_use.column for column_use in find_uses(query, dialect)))

    def _has_effect(
        self, task: Task, gold: str, sql: str, column: int, sources: Sequence[DatabaseSource]
    ) -> bool:
        """Return whether a further column of an answer really orders, groups or filters the result.

        If gold uses the column's expression in this way, too, the effect is not tested.

        Args:
            task: The task.
            gold: One of its golds.
            sql: The answer.
            column: The position of the further column.
            sources: The database and its mutated copies.
        """
        query, dialect = self._grader.answer_facts(sql).query, self._grader.databases.engine.dialect
        return is_used_by_gold(self._grader.facts(task, gold).query, query, column) or any(
            all(any(self._differs(task, sql, text, p) for p in sources) for text in use.variants)
            for use in find_uses(query, dialect)
            if use.column == column
        )

    def _differs(self, task: Task, sql: str, other_sql: str, source: DatabaseSource) -> bool:
        first_result, second_result = (
            self._grader.answer(task, text, source).result for text in (sql, other_sql)
        )
        return (
            first_result is None
            or second_result is None
            or not compare(first_result, second_result, ordered=True).equal
        )

    def _compare_results(
        self,
        task: Task,
        gold: GoldAnswer,
        sql: str,
        answer: AgentAnswerResult,
        orders: Sequence[Order] | None,
    ) -> ResultComparison:
        result = answer.result
        if result is None:
            return ResultComparison(
                False, 0.0, f"on a fresh copy of the database: {answer.trouble}"
            )

        has_extra_column = len(result.columns) == len(gold.result.columns) + 1
        extra_columns = self._explaining_columns(task, sql) if has_extra_column else ()

        def compare_with(gold: GoldAnswer) -> ResultComparison:
            return compare(
                gold.result,
                result,
                ordered=gold.ordered,
                groups=gold.groups,
                permute_columns=self._can_permute(task),
                candidate_orders=orders,
                extra_columns=extra_columns,
            )

        comparison = compare_with(gold)
        if comparison.equal or orders is None or gold.groups is None:
            return comparison
        tied_comparison = compare_with(_add_tied_rows(gold, gold.groups))
        return tied_comparison if tied_comparison.equal else comparison


def _add_tied_rows(gold: GoldAnswer, groups: Sequence[TiedRows]) -> GoldAnswer:
    """Return gold's result with all rows that tie with a row of the result.

    In a copy, other rows may tie with the first row. An answer that returns all first rows is right
    on the data, where only one exists. The answer must then be right on the copy, too.
    """
    rows = [row for group in groups for row in group.rows]
    result = replace(gold.result, rows=rows, total=len(rows))
    return replace(
        gold,
        result=result,
        groups=[replace(tied_group, take=len(tied_group.rows)) for tied_group in groups],
    )


def _is_in_own_order(comparison: ResultComparison) -> bool:
    return is_in_own_order(comparison.orders[0])


def _is_explained(
    comparison: ResultComparison, gold: StatementResult, answer: AgentAnswerResult
) -> bool:
    """Return whether an answer is right and has a column in addition to gold's."""
    result = answer.result
    return comparison.equal and result is not None and len(result.columns) > len(gold.columns)


def _is_ambiguous(comparison: ResultComparison, gold: StatementResult) -> bool:
    """Return whether columns of one type may have been exchanged, which only copies can reveal."""
    return not _is_in_own_order(comparison) and any(
        is_ambiguous_order(order, gold) for order in comparison.orders
    )


def _add_detail(score: Score, **detail: Any) -> Score:
    return Score(score.value, score.parts, {**score.detail, **detail})


def _score(
    comparison: ResultComparison,
    gold: StatementResult,
    sql: str | None = None,
    answer: AgentAnswerResult | None = None,
) -> Score:
    value = 1.0 if comparison.equal else min(comparison.overlap, MAX_INEXACT_VALUE)
    part_scores = {"execution_accuracy": float(comparison.equal), "overlap": comparison.overlap}
    detail: dict[str, Any] = {"gold_rows": _first_rows(gold.rows)}
    if sql is not None:
        detail["answer"] = sql
    if answer is not None and answer.result is not None:
        detail["answer_rows"] = _first_rows(answer.result.rows)
    if comparison.reason:
        detail["reason"] = comparison.reason
    return Score(value, part_scores, detail)


def _first_rows(rows: Sequence[Row]) -> list[list[Any]]:
    """Return the first rows, in plain JSON types."""
    return [[_json_value(value) for value in row] for row in rows[:_SHOWN_ROWS]]


def _json_value(value: Value) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
