"""Mutated copies of a task's database, on which an answer runs again.

Some results of gold can be guessed: no rows, one row of NULL, 0, 1 and empty text, or a single
small number. Many wrong answers give the same result, among them an empty select or a constant. A
guessable gold therefore runs again on mutated copies of the database on which its result differs. A
right answer gives gold's result on the copy, too, but a guess does not. If too few copies give more
than 0, 1 or nothing (an existence question), one copy with the original's result is added. An
answer that only distinguishes copies from the original fails on that copy.

Gentle mutations are tried before rough ones (`intercode.rewards.database_mutator`). Rough mutations
change names that were unique in the data, on which an answer may have relied. No mutation for
gold's query duplicates a unique value that gold looks up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from decimal import Decimal
from itertools import product

from intercode.databases.base import StatementResult, Value
from intercode.databases.convert.build import as_sqlite, get_cached_file
from intercode.databases.source import DatabaseSource
from intercode.errors import RewardError, TaskError
from intercode.rewards.database_mutator import VERSION, mutate
from intercode.rewards.sql_compare import compare
from intercode.rewards.sql_conditions import QueryConditions, collect_conditions
from intercode.rewards.sql_run import GoldAnswer, SqlGrader
from intercode.task import Task

COPIES = 2
"""The number of copies with another result of gold on which an answer must agree with gold."""
TRIES = 10
"""The most copies that are created of each kind (gentle, rough) in search of such copies."""
_GUESSABLE_LIMIT = 100
"""The absolute value from which a number counts as impossible to guess."""


def is_guessable(result: StatementResult) -> bool:
    """Return whether an agent could give this result without a look at the data."""
    return _is_nothing(result) or (
        len(result.rows) == 1 and len(result.columns) == 1 and _is_small(result.rows[0][0])
    )


def _is_nothing(result: StatementResult) -> bool:
    empty_values = (None, 0, 1, "", b"")
    return not result.rows or (
        len(result.rows) == 1 and all(value in empty_values for value in result.rows[0])
    )


def _is_small(value: Value) -> bool:
    if not isinstance(value, (int, float, Decimal)):
        return False
    number = float(value)
    return abs(number) < _GUESSABLE_LIMIT and number.is_integer()


def copies(
    grader: SqlGrader, task: Task, gold: str, source: DatabaseSource
) -> tuple[DatabaseSource, ...]:
    """Return mutated copies of a database on which gold's result differs; possibly none.

    Copies on which gold's result is not empty come first. If too few exist, copies with no rows, 0
    or 1 follow, and then one copy with the original's result.

    Raises:
        RewardError: Gold failed on the database itself.
        DatabaseError: The engine failed.
    """
    return grader.get_cached(
        "copies", task, source, gold, lambda: _find_copies(grader, task, gold, source)
    )


def _find_copies(
    grader: SqlGrader, task: Task, gold: str, source: DatabaseSource
) -> tuple[DatabaseSource, ...]:
    query = grader.facts(task, gold).query
    query_conditions = QueryConditions() if query is None else collect_conditions(query)
    strong_copies: list[DatabaseSource] = []
    weak_copies: list[DatabaseSource] = []
    for copy, is_different, is_nothing in _try_copies(grader, task, gold, source, query_conditions):
        if is_different:
            (weak_copies if is_nothing else strong_copies).append(copy)
        if len(strong_copies) == COPIES:
            return tuple(strong_copies)
    if not weak_copies:
        return tuple(strong_copies)
    further_copies = _try_copies(grader, task, gold, source, QueryConditions())
    equal_copy = next((copy for copy, is_different, _ in further_copies if not is_different), None)
    return (*(strong_copies + weak_copies)[:COPIES], *([] if equal_copy is None else [equal_copy]))


def _try_copies(
    grader: SqlGrader,
    task: Task,
    gold: str,
    source: DatabaseSource,
    query_conditions: QueryConditions,
) -> Iterator[tuple[DatabaseSource, bool, bool]]:
    """Yield copies: (copy, whether gold's result differs, whether the result is empty, 0 or 1)."""
    original = grader.gold(task, gold, source)
    for is_gentle, seed in product((True, False), range(TRIES)):
        copy = mutated_copy(source, query_conditions, seed, is_gentle)
        # Gold fails on a copy that lacks a fact on which gold or the setup relies.
        with suppress(RewardError, TaskError):
            copy_answer = grader.gold(task, gold, copy)
            yield copy, _is_different(original, copy_answer), _is_nothing(copy_answer.result)


def _is_different(original_answer: GoldAnswer, copy_answer: GoldAnswer) -> bool:
    return not compare(
        original_answer.result,
        copy_answer.result,
        ordered=original_answer.ordered,
        groups=original_answer.groups,
    ).equal


def mutated_copy(
    source: DatabaseSource, query_conditions: QueryConditions, seed: int, is_gentle: bool
) -> DatabaseSource:
    """Return the mutated copy for these arguments, from the cache if the copy exists already."""
    # A tuple of values, since a key with names of classes and fields would change with them.
    conditions = astuple(query_conditions)
    text = f"mutated {VERSION}\0{source.digest}\0{conditions!r}\0{seed}\0{is_gentle}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = get_cached_file(
        digest,
        lambda new_path: mutate(
            as_sqlite(source), new_path, query_conditions, seed, is_gentle=is_gentle
        ),
    )
    return DatabaseSource(source.name, path, "sqlite", digest)
