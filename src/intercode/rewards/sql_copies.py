"""Golds that can be guessed, and the databases on which a guess shows.

A gold that gives no rows, one row of NULL, 0, 1 and empty text, or a single small number, is met by
many a wrong answer, an empty select or a constant among them. Such a gold is asked again on mutated
copies of the database, chosen so that it gives something else there; a right answer follows, a
guess does not. Where all that it gives there is 0, 1 or nothing (it asks whether there is any), it
is also asked on one that gives the same as the original: what only tells copies from the original
fails there.

Gentle mutations are tried first (`intercode.rewards.sql_mutate`): the others double what was unique
in the data, which an answer may have relied on.
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
from intercode.rewards.sql_constants import Wanted, wanted
from intercode.rewards.sql_mutate import VERSION, mutate
from intercode.rewards.sql_run import GoldAnswer, Grader
from intercode.task import Task

COPIES = 2
"""On how many copies an answer must agree."""
TRIES = 10
"""How many copies of each kind are made to find them."""
_SMALL = 100
"""From here on, a number is none that a guess meets."""


def guessable(result: Result) -> bool:
    """Whether a result is one that an agent could give without having looked."""
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
    """Mutated copies of a database on which a gold gives something else; may be none.

    The first that give it something; if there are too few, also such as give it nothing, or 0 or
    1, and then one that gives it the same as the original.

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
    """Copies; for each whether gold gives something else there, and whether it gives nothing."""
    original = grader.gold(task, gold, source)
    for gentle, seed in product((True, False), range(TRIES)):
        copy = _mutated(source, asked, seed, gentle)
        with suppress(RewardError, TaskError):  # it broke what gold or the task's setup relies on
            mutated = grader.gold(task, gold, copy)
            yield copy, _differs(original, mutated), _is_nothing(mutated.result)


def _differs(one: GoldAnswer, other: GoldAnswer) -> bool:
    return not compare(one.result, other.result, ordered=one.ordered, groups=one.groups).equal


def _mutated(source: Source, asked: Wanted, seed: int, gentle: bool) -> Source:
    """The copy of a seed, made if it is not there yet."""
    text = f"mutated {VERSION}\0{source.digest}\0{asked!r}\0{seed}\0{gentle}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cached(digest, lambda made: mutate(as_sqlite(source), made, asked, seed, gentle=gentle))
    return Source(source.name, path, "sqlite", digest)
