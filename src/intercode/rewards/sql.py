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

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

from intercode.databases.base import Result, Row, Session, Value
from intercode.databases.convert.build import as_sqlite, cached
from intercode.databases.source import Source
from intercode.episode import Episode, Score
from intercode.errors import RewardError, TaskError
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_compare import (
    Comparison,
    Group,
    Order,
    compare,
    compare_states,
    exchanges_alike,
)
from intercode.rewards.sql_mutate import VERSION, Wanted, mutate, wanted
from intercode.rewards.sql_run import Answer, Databases, GoldAnswer, Grader, golds, last_answer
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
    """

    VERSION = 1
    """Raise it when any score can differ."""

    def __init__(
        self,
        databases: Databases,
        cache: GoldCache | None = None,
        *,
        permute_columns: bool | None = None,
    ) -> None:
        self._grader = Grader(databases, cache)
        self._permute = permute_columns

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
        change = self._grader.change(task, gold, self._grader.databases.source(task))
        found = compare_states(change.before, change.after, session.state())
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
            note = "gold can be guessed: no mutated copy was found that gives something else"
            score = _with(score, note=note)
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
        found = self._compared(task, wanted, answer, orders)
        if answer.result and not found.equal and self._grader.facts(task, gold).chooses:
            # The engine may have chosen otherwise then: before the answer is called wrong, gold
            # gets the same chance as it.
            again = self._grader.gold(task, gold, source, again=True)
            other = self._compared(task, again, answer, orders)
            if other.equal:
                return again, answer, other
        return wanted, answer, found

    def _permutes(self, task: Task) -> bool:
        said = task.metadata.get("permute_columns") is True
        return said if self._permute is None else self._permute

    def _compared(
        self, task: Task, gold: GoldAnswer, answer: Answer, orders: Sequence[Order] | None
    ) -> Comparison:
        result = answer.result
        if result is None:
            return Comparison(False, 0.0, f"on a fresh copy of the database: {answer.trouble}")

        def compared(gold: GoldAnswer) -> Comparison:
            return compare(
                gold.result,
                result,
                ordered=gold.ordered,
                groups=gold.groups,
                permute_columns=self._permutes(task),
                among=orders,
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
    return found.orders[0] == tuple(range(len(found.orders[0])))


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


# -- mutated copies --------------------------------------------------------------------------------

# A gold that gives no rows, one row of NULL, 0, 1 and empty text, or a single small number can be
# guessed: many a wrong answer gives the same, an empty select or a constant among them. Such a gold
# is asked again on mutated copies of the database, chosen so that it gives something else there; a
# right answer follows, a guess does not. Where all that it gives there is 0, 1 or nothing (it asks
# whether there is any), it is also asked on a copy on which it gives the same as on the original:
# an answer that only tells copies from the original fails there.
#
# Gentle mutations are tried first (`intercode.rewards.sql_mutate`): the others double values that
# were unique in the data, which an answer may have relied on.

COPIES = 2
"""The number of copies on which an answer must agree."""
TRIES = 10
"""The number of copies of each kind that are made to find them."""
_SMALL = 100
"""The size from which on a number cannot be guessed."""


def guessable(result: Result) -> bool:
    """Return whether an agent could give this result without having looked."""
    return _is_nothing(result) or (
        len(result.rows) == 1 and len(result.columns) == 1 and _is_small(result.rows[0][0])
    )


def _is_nothing(result: Result) -> bool:
    nothing = (None, 0, 1, "", b"")
    return not result.rows or (
        len(result.rows) == 1 and all(value in nothing for value in result.rows[0])
    )


def _is_small(value: Value) -> bool:
    if not isinstance(value, (int, float, Decimal)):
        return False
    number = float(value)
    return abs(number) < _SMALL and number.is_integer()


def copies(grader: Grader, task: Task, gold: str, source: Source) -> tuple[Source, ...]:
    """Return mutated copies of a database on which a gold gives something else; may be none.

    Copies on which it gives a result come first; if there are too few, also those on which it gives
    nothing, or 0 or 1, and then one on which it gives the same as on the original.

    Raises:
        RewardError: Gold failed on the database itself.
        DatabaseError: The engine failed.
    """
    return grader.cached("copies", task, source, gold, lambda: _find(grader, task, gold, source))


def _find(grader: Grader, task: Task, gold: str, source: Source) -> tuple[Source, ...]:
    query = grader.facts(task, gold).query
    asked = Wanted() if query is None else wanted(query)
    found: list[Source] = []
    weak: list[Source] = []
    for copy, differs, is_nothing in _tried(grader, task, gold, source, asked):
        if differs:
            (weak if is_nothing else found).append(copy)
        if len(found) == COPIES:
            return tuple(found)
    if not weak:
        return tuple(found)
    others = _tried(grader, task, gold, source, Wanted())
    alike = next((copy for copy, differs, _ in others if not differs), None)
    return (*(found + weak)[:COPIES], *([] if alike is None else [alike]))


def _tried(
    grader: Grader, task: Task, gold: str, source: Source, asked: Wanted
) -> Iterator[tuple[Source, bool, bool]]:
    """Yield copies; each with whether gold differs there, and whether it gives nothing there."""
    original = grader.gold(task, gold, source)
    for gentle, seed in product((True, False), range(TRIES)):
        copy = _mutated(source, asked, seed, gentle)
        with suppress(
            RewardError, TaskError
        ):  # the copy lacks a fact that gold or the task's setup relies on
            mutated = grader.gold(task, gold, copy)
            yield copy, _differs(original, mutated), _is_nothing(mutated.result)


def _differs(one: GoldAnswer, other: GoldAnswer) -> bool:
    return not compare(one.result, other.result, ordered=one.ordered, groups=one.groups).equal


def _mutated(source: Source, asked: Wanted, seed: int, gentle: bool) -> Source:
    """Return the copy of a seed, made if it is not there yet."""
    text = f"mutated {VERSION}\0{source.digest}\0{asked!r}\0{seed}\0{gentle}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cached(digest, lambda made: mutate(as_sqlite(source), made, asked, seed, gentle=gentle))
    return Source(source.name, path, "sqlite", digest)
