"""Parts of all task families: seeded draws, the names and values of a split, and drafts.

A draw uses only the method ``random`` of `random.Random`, because Python guarantees the same
numbers in all versions for this method alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")

SPLITS = ("train", "validation", "test", "compositions")
"""``validation`` and ``test`` have names and values that ``train`` never has. ``compositions`` has
the names and values of ``train``, and pairs of operations that no other split has."""

_SYLLABLES = tuple(a + b for a in "bdfgklmnprstvz" for b in "aiou" if a + b != "su")
_EXCLUDED_WORDS = [
    "dago",
    "loli",
    "mofo",
    "nano",
    "nazi",
    "paki",
    "puta",
    "puto",
    "dik",
    "fag",
    "fuk",
    "nig",
    "tit",
]
"""Excluded words: the name of a program, and offensive words."""


def _combine(prefixes: Sequence[str], suffixes: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        prefix + suffix
        for prefix in prefixes
        for suffix in suffixes
        if prefix + suffix not in _EXCLUDED_WORDS
    )


_WORDS = _combine(_SYLLABLES, _SYLLABLES)
"""Words of four letters. No word is part of another, or a word of the queries ("take", "line" and
"move" are). A policy can spell a word that it has never seen."""
_ENDS = _combine(_SYLLABLES, "bgklmnt")
_HELD_OUT_RATIO = 4
"""One pair of operations in four is reserved for ``compositions``."""


class TaskDraw:
    """A source of random choices, determined by its facts on every machine."""

    def __init__(self, *facts: object) -> None:
        self._random_float = random.Random("/".join(map(str, facts))).random

    def draw_below(self, limit: int) -> int:
        """Draw an integer from 0 to `limit` - 1."""
        return int(self._random_float() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Draw an item."""
        return choices[self.draw_below(len(choices))]

    def pick_several(self, choices: Sequence[T], count: int) -> list[T]:
        """Draw `count` different items."""
        indices: dict[int, None] = {}
        while len(indices) < count:
            indices.setdefault(self.draw_below(len(choices)))
        return [choices[index] for index in indices]


@dataclass(frozen=True, slots=True)
class NamePool:
    """The names and values of a split."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    """Integers of two digits."""
    counts: tuple[int, ...]
    """Quantities, such as the number of lines to take."""
    ends: tuple[str, ...]
    """Suffixes of file names."""

    @classmethod
    def from_split(cls, split: str) -> NamePool:
        """Return the pool of a split."""
        return _POOLS["train" if split == "compositions" else split]


def _pool(residues: Sequence[int], counts: Sequence[int]) -> NamePool:
    """Return the names and values of the given sixths, by position modulo 6."""
    words, ends = (
        tuple(item for index, item in enumerate(all_items) if index % 6 in residues)
        for all_items in (_WORDS, _ENDS)
    )
    return NamePool(
        words, tuple(n for n in range(10, 100) if n % 6 in residues), tuple(counts), ends
    )


_POOLS = {
    "train": _pool((1, 2, 3, 4), (2, 3, 5, 8)),
    "validation": _pool((0, 5), (7,)),
    "test": _pool((0, 5), (4, 6)),
}
# ``validation`` and ``test`` share two sixths by halves; each half has even and odd numbers.
for _offset, _name in enumerate(("validation", "test")):
    _shared_pool = _POOLS[_name]
    _POOLS[_name] = NamePool(
        _shared_pool.words[_offset::2],
        tuple(n for n in _shared_pool.numbers if (n + 1) // 6 % 2 == _offset),
        _shared_pool.counts,
        _shared_pool.ends[_offset::2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraft:
    """A task without its name."""

    query: str
    gold: str
    wrong_solutions: tuple[str, ...]
    """Solutions without one step of gold, which therefore have another effect."""
    operations: tuple[str, ...]
    looks: tuple[str, ...] = ()
    """Actions that print data that gold needs and the query omits."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the task."""


OperationFilter = Callable[[Sequence[str]], bool]
"""Predicate: whether operations in this order belong to the split."""
Family = Callable[[TaskDraw, NamePool, int, OperationFilter], "TaskDraft | None"]
"""Function that drafts a task with a number of steps; None if the draw makes no valid task."""


def has_held_out_pair(kind: str, operations: Sequence[str]) -> bool:
    """Return whether two consecutive operations are a pair for ``compositions``."""
    return any(_is_held_out(kind, *pair) for pair in pairwise(operations))


@cache
def _is_held_out(kind: str, first_operation: str, second_operation: str) -> bool:
    digest = blake2b(
        f"{kind}/{first_operation}/{second_operation}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_RATIO == 0


def join_steps(steps: Sequence[str]) -> str:
    """Join steps into the end of a sentence: ``a, b, then c``."""
    *earlier_steps, last_step = steps
    return f"{', '.join(earlier_steps)}, then {last_step}" if earlier_steps else last_step
