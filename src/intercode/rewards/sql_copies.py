"""Golds that can be guessed, and the databases on which a guess shows.

A gold that gives no rows, or one row of NULL, 0, 1 and empty text, is met by many a wrong answer,
an empty select among them. Such a gold is asked again on mutated copies of the database, chosen
so that it gives something else there; a right answer follows, a guess does not.
"""

from __future__ import annotations

import hashlib

from intercode.databases.base import Result
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
"""How many copies are made to find them."""


def guessable(result: Result) -> bool:
    """Whether a result is one that an agent could give without having looked."""
    if not result.rows:
        return True
    nothing = (None, 0, 1, "", b"")
    return len(result.rows) == 1 and all(value in nothing for value in result.rows[0])


def copies(grader: Grader, task: Task, gold: str, source: Source) -> tuple[Source, ...]:
    """Mutated copies of a database on which a gold gives something else; may be none.

    The first that give it something which cannot be guessed either; if there are too few, also
    such as give it another guess.

    Raises:
        RewardError: Gold failed on the database itself.
        DatabaseError: The engine failed.
    """
    return grader.cached("copies", task, source, gold, lambda: _find(grader, task, gold, source))


def _find(grader: Grader, task: Task, gold: str, source: Source) -> tuple[Source, ...]:
    original = grader.gold(task, gold, source)
    query = grader.facts(task, gold).query
    asked = Wanted() if query is None else wanted(query)
    found: list[Source] = []
    weak: list[Source] = []
    for seed in range(TRIES):
        copy = _mutated(source, asked, seed)
        try:
            mutated = grader.gold(task, gold, copy)
        except (RewardError, TaskError):
            continue  # the mutation broke what gold or the task's setup relies on
        if _differs(original, mutated):
            (weak if guessable(mutated.result) else found).append(copy)
        if len(found) == COPIES:
            break
    return tuple((found + weak)[:COPIES])


def _differs(one: GoldAnswer, other: GoldAnswer) -> bool:
    return not compare(one.result, other.result, ordered=one.ordered, groups=one.groups).equal


def _mutated(source: Source, asked: Wanted, seed: int) -> Source:
    """The copy of a seed, made if it is not there yet."""
    text = f"mutated {VERSION}\0{source.digest}\0{asked!r}\0{seed}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    path = cached(digest, lambda made: mutate(as_sqlite(source), made, asked, seed))
    return Source(source.name, path, "sqlite", digest)
