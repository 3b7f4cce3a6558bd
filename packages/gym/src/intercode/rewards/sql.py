"""The default SQL reward: the right answer, or for a task that asks for a change, the right tables.

**A query** as gold asks for an answer: the agent's last action that ended without an error and
gave a result set. It is run again on a fresh copy of the database (`intercode.rewards.sql_run`),
and so is gold, on another; 1.0 means that the results are equal (`intercode.rewards.sql_compare`),
in order where gold's outermost query orders (`intercode.rewards.sql_gold`). They must be equal on
mutated copies, too, if gold's result could be guessed, or if the answer has columns of one type in
another order than gold. Where a task allows another order (``metadata.permute_columns``, as
Spider's do), one must hold on the database and all copies.

**A change** as gold is graded by the tables that the agent left. In an episode that still runs,
looking at them commits an open transaction.

**Below 1.0**, never above 0.99, the overlap of the rows, or of the changes. Where gold can be
guessed, the overlap on a copy counts. Of several golds the best counts. Gold that fails is an
error, never a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from intercode.databases.base import Result, Row, Session, Value
from intercode.databases.source import Source
from intercode.episode import Episode, Score
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_compare import (
    Comparison,
    Group,
    Order,
    compare,
    exchanges_alike,
    in_own_order,
)
from intercode.rewards.sql_copies import copies, guessable
from intercode.rewards.sql_explain import uses, uses_alike
from intercode.rewards.sql_programs import differing
from intercode.rewards.sql_run import Answer, Databases, GoldAnswer, Grader, golds, last_answer
from intercode.rewards.sql_states import compare_states
from intercode.task import Task

NOT_EXACT = 0.99
"""The highest value below that of an exact result."""

_SHOWN_ROWS = 20
_SHOWN_CHARACTERS = 200


class SqlReward:
    """Compares the answer or the changes of an episode with those of gold.

    Args:
        databases: Opens the tasks' databases, for the grader.
        cache: The cache of golds' results; None: they are not kept.
        permute_columns: Whether an answer's columns may come in another order; None: as the task
            says.
        columns: Which columns an answer has: ``exact``, gold's; ``explained``, also one that
            explains them (`intercode.rewards.sql_explain`); None: as the task says.
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(
        self,
        databases: Databases,
        cache: GoldCache | None = None,
        *,
        permute_columns: bool | None = None,
        columns: str | None = None,
    ) -> None:
        self._grader = Grader(databases, cache)
        self._permute = permute_columns
        self._columns = columns

    def __call__(self, task: Task, episode: Episode, session: Session) -> Score:
        """Return the score against the best gold.

        Raises:
            TaskError: The task has no gold.
            RewardError: Gold could not be run.
            DatabaseError: The engine failed, or was lost.
        """
        best: Score | None = None
        for gold in golds(task):
            if self._grader.facts(task, gold).changes:
                score = self._changed(task, gold, session)
            else:
                score = self._answered(task, gold, last_answer(episode))
            if best is None or score.value > best.value:
                best = score
            if best.value == 1.0:
                break
        assert best is not None  # there is at least one gold
        return best

    def _changed(self, task: Task, gold: str, session: Session) -> Score:
        source = self._grader.databases.source(task)
        change, agent = self._grader.change(task, gold, source), session.state()
        found = compare_states(change.before, change.after, agent)
        if found.equal and (wrong := differing(self._grader, task, gold, source, agent)):
            # They count as what was left alone.
            rest = {name: t for name, t in agent.items() if name not in wrong}
            rest |= {name: t for name, t in change.before.items() if name in wrong}
            found = compare_states(change.before, change.after, rest)
            found = replace(found, equal=False, reason=", ".join(wrong.values()))
        value = 1.0 if found.equal else min(found.overlap, NOT_EXACT)
        detail = {"reason": found.reason} if found.reason else {}
        return Score(value, {"tables": found.tables, "overlap": found.overlap}, detail)

    def _answered(self, task: Task, gold: str, sql: str | None) -> Score:
        source = self._grader.databases.source(task)
        if sql is None:
            wanted = self._grader.gold(task, gold, source)
            return _score(Comparison(False, 0.0, "no action gave a result set"), wanted.result)
        wanted, answer, found = self._compare(task, gold, sql, source)
        score = _score(found, wanted.result, sql, answer)
        if not found.equal:
            return score
        if self._grader.facts(task, gold).reads and not self._grader.answer_facts(sql).reads:
            score = _with(score, hard_coded=True)
        if _explains(found, wanted.result, answer):
            return self._confirmed(task, gold, sql, source, _with(score, explained=True), found)
        if guessable(wanted.result) or _exchanges_alike(found, wanted.result):
            return self._confirmed(task, gold, sql, source, score, found)
        return score if _in_own_order(found) else _with(score, columns="in another order")

    def _confirmed(
        self, task: Task, gold: str, sql: str, source: Source, score: Score, found: Comparison
    ) -> Score:
        """Score an answer that is right, but may be so by chance."""
        others = copies(self._grader, task, gold, source)
        for copy in others:
            wanted, answer, there = self._compare(task, gold, sql, copy, found.orders)
            if not there.equal:
                reason = f"on a mutated copy of the database: {there.reason}"
                there = Comparison(False, there.overlap, reason)
                return _score(there, wanted.result, sql, answer)
            found = there
        if not others:
            given = self._grader.gold(task, gold, source).result
            if _exchanges_alike(found, given):
                reason = "the columns are in another order, and no mutated copy tells them apart"
                return _score(Comparison(False, found.overlap, reason), given, sql)
            if "explained" in score.detail:
                reason = "a further column, and no mutated copy tells it from gold's"
                return _score(Comparison(False, found.overlap, reason), given, sql)
            note = "gold can be guessed: no mutated copy was found that gives something else"
            score = _with(score, note=note)
        if "explained" in score.detail:
            (further,) = {*range(len(found.orders[0]) + 1)} - {*found.orders[0]}
            if not self._has_effect(task, gold, sql, further, (source, *others)):
                reason = "a further column, by which nothing is ordered, grouped or filtered"
                given = self._grader.gold(task, gold, source).result
                return _score(Comparison(False, found.overlap, reason), given, sql)
        return score if _in_own_order(found) else _with(score, columns="in another order")

    def _compare(
        self,
        task: Task,
        gold: str,
        sql: str,
        source: Source,
        orders: Sequence[Order] | None = None,
    ) -> tuple[GoldAnswer, Answer, Comparison]:
        """Run gold and an answer in a database, and compare their results.

        Args:
            task: The task.
            gold: One of its golds.
            sql: The answer.
            source: The database.
            orders: The orders of the answer's columns that may be right; None: they are not known.
                They are known on a mutated copy, where more rows are tied than in the data.
        """
        wanted = self._grader.gold(task, gold, source)
        answer = self._grader.answer(task, sql, source)
        found = self._compared(task, wanted, sql, answer, orders)
        if answer.result and not found.equal and self._grader.facts(task, gold).chooses:
            # The engine may have chosen otherwise then: before the answer is called wrong, gold
            # gets the same chance as it.
            again = self._grader.gold(task, gold, source, again=True)
            other = self._compared(task, again, sql, answer, orders)
            if other.equal:
                return again, answer, other
        return wanted, answer, found

    def _permutes(self, task: Task) -> bool:
        said = task.metadata.get("permute_columns") is True
        return said if self._permute is None else self._permute

    def _explained(self, task: Task, sql: str) -> tuple[int, ...]:
        """List the columns of an answer that may stand beside those that were asked for."""
        said = task.metadata.get("columns") if self._columns is None else self._columns
        if said != "explained":
            return ()
        query, dialect = self._grader.answer_facts(sql).query, self._grader.databases.engine.dialect
        return tuple(dict.fromkeys(use.column for use in uses(query, dialect)))

    def _has_effect(
        self, task: Task, gold: str, sql: str, column: int, places: Sequence[Source]
    ) -> bool:
        """Return whether an answer's result depends on how it uses one of its columns."""
        query, dialect = self._grader.answer_facts(sql).query, self._grader.databases.engine.dialect
        return uses_alike(self._grader.facts(task, gold).query, query, column) or any(
            all(any(self._differs(task, sql, text, p) for p in places) for text in use.without)
            for use in uses(query, dialect)
            if use.column == column
        )

    def _differs(self, task: Task, sql: str, other: str, source: Source) -> bool:
        one, two = (self._grader.answer(task, text, source).result for text in (sql, other))
        return one is None or two is None or not compare(one, two, ordered=True).equal

    def _compared(
        self,
        task: Task,
        gold: GoldAnswer,
        sql: str,
        answer: Answer,
        orders: Sequence[Order] | None,
    ) -> Comparison:
        result = answer.result
        if result is None:
            return Comparison(False, 0.0, f"on a fresh copy of the database: {answer.trouble}")

        further = len(result.columns) == len(gold.result.columns) + 1
        spare = self._explained(task, sql) if further else ()

        def compared(gold: GoldAnswer) -> Comparison:
            return compare(
                gold.result,
                result,
                ordered=gold.ordered,
                groups=gold.groups,
                permute_columns=self._permutes(task),
                among=orders,
                spare=spare,
            )

        found = compared(gold)
        if found.equal or orders is None or gold.groups is None:
            return found
        whole = compared(_with_tied(gold, gold.groups))
        return whole if whole.equal else found


def _with_tied(gold: GoldAnswer, groups: Sequence[Group]) -> GoldAnswer:
    """Return gold's result with all rows that are tied with one of it.

    A copy may tie the first row with others. An answer that gives all rows that are first, as gold
    might have done, is right on the data and must be right on the copy.
    """
    rows = [row for group in groups for row in group.rows]
    result = replace(gold.result, rows=rows, total=len(rows))
    return replace(gold, result=result, groups=[replace(g, take=len(g.rows)) for g in groups])


def _in_own_order(found: Comparison) -> bool:
    return in_own_order(found.orders[0])


def _explains(found: Comparison, gold: Result, answer: Answer) -> bool:
    """Return whether an answer is right with a column in addition to gold's."""
    given = answer.result
    return found.equal and given is not None and len(given.columns) > len(gold.columns)


def _exchanges_alike(found: Comparison, gold: Result) -> bool:
    """Return whether only copies can tell that a column is not taken for another of its type."""
    return not _in_own_order(found) and any(exchanges_alike(one, gold) for one in found.orders)


def _with(score: Score, **detail: Any) -> Score:
    return Score(score.value, score.parts, {**score.detail, **detail})


def _score(
    found: Comparison, gold: Result, sql: str | None = None, answer: Answer | None = None
) -> Score:
    value = 1.0 if found.equal else min(found.overlap, NOT_EXACT)
    parts = {"execution_accuracy": float(found.equal), "overlap": found.overlap}
    detail: dict[str, Any] = {"gold_rows": _head(gold.rows)}
    if sql is not None:
        detail["answer"] = sql
    if answer is not None and answer.result is not None:
        detail["answer_rows"] = _head(answer.result.rows)
    if found.reason:
        detail["reason"] = found.reason
    return Score(value, parts, detail)


def _head(rows: Sequence[Row]) -> list[list[Any]]:
    """Return the first rows, in plain JSON types."""
    return [[_plain(value) for value in row] for row in rows[:_SHOWN_ROWS]]


def _plain(value: Value) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
