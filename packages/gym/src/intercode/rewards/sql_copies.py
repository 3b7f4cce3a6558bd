"""Mutated copies of a task's database, on which an answer is asked for again.

A gold that gives no rows, one row of NULL, 0, 1 and empty text, or a single small number can be
guessed: many a wrong answer gives the same, an empty select or a constant among them. Such a gold
is asked again on mutated copies of the database, chosen so that it gives something else there; a
right answer follows, a guess does not. Where all that it gives there is 0, 1 or nothing (it asks
whether there is any), it is also asked on a copy on which it gives the same as on the original: an
answer that only tells copies from the original fails there.

Gentle mutations are tried first (`intercode.rewards.sql_mutate`): the others change names that were
unique in the data, which an answer may have relied on. None doubles what gold looks up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import product

from intercode.databases.base import Result, Value
from intercode.databases.convert.build import as_sqlite, cached
from intercode.databases.source import Source
from intercode.errors import RewardError, TaskError
from intercode.rewards.sql_compare import compare
from intercode.rewards.sql_conditions import Wanted, wanted
from intercode.rewards.sql_mutate import VERSION, mutate
from intercode.rewards.sql_run import GoldAnswer, Grader
from intercode.task import Task

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
        copy = mutated(source, asked, seed, gentle)
        with suppress(
            RewardError, TaskError
        ):  # the copy lacks a fact that gold or the task's setup relies on
            there = grader.gold(task, gold, copy)
            yield copy, _differs(original, there), _is_nothing(there.result)


def _differs(one: GoldAnswer, other: GoldAnswer) -> bool:
    return not compare(one.result, other.result, ordered=one.ordered, groups=one.groups).equal


def mutated(source: Source, asked: Wanted, seed: int, gentle: bool) -> Source:
    """Return the copy of a seed, made if it is not there yet."""
    text = f"mutated {VERSION}\0{source.digest}\0{asked!r}\0{seed}\0{gentle}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cached(digest, lambda made: mutate(as_sqlite(source), made, asked, seed, gentle=gentle))
    return Source(source.name, path, "sqlite", digest)
