"""The parts that all families share: a seeded draw, the names and values of a split, a draft.

A draw uses `random.Random` by its method ``random`` alone: that is the one whose numbers Python
promises to keep from version to version.
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
"""``validation`` and ``test`` have names and values that ``train`` never has; ``compositions`` has
those of ``train``, and pairs of operations that no other split has."""

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
"""Left out: the name of a program, and words that no one wants to read."""


def _combine(firsts: Sequence[str], lasts: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        prefix + suffix
        for prefix in firsts
        for suffix in lasts
        if prefix + suffix not in _EXCLUDED_WORDS
    )


_WORDS = _combine(_SYLLABLES, _SYLLABLES)
"""Words of four letters: none is part of another, or a word of a question (which has "take", "line"
and "move"). A policy can spell one that it has never seen."""
_ENDS = _combine(_SYLLABLES, "bgklmnt")
_HELD_OUT_RATIO = 4
"""One pair of operations in so many is kept for ``compositions``."""


class TaskDraw:
    """A source of choices, the same for the same facts on every machine."""

    def __init__(self, *facts: object) -> None:
        self._random_float = random.Random("/".join(map(str, facts))).random

    def draw_below(self, limit: int) -> int:
        """Draw a whole number from 0, below a limit."""
        return int(self._random_float() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of them."""
        return choices[self.draw_below(len(choices))]

    def pick_several(self, choices: Sequence[T], count: int) -> list[T]:
        """Draw so many different ones."""
        indices: dict[int, None] = {}
        while len(indices) < count:
            indices.setdefault(self.draw_below(len(choices)))
        return [choices[place] for place in indices]


@dataclass(frozen=True, slots=True)
class Pool:
    """The names and values of a split."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    """Of two digits."""
    counts: tuple[int, ...]
    """How many to take, as of lines."""
    ends: tuple[str, ...]
    """Suffixes of files."""

    @classmethod
    def of(cls, split: str) -> Pool:
        """Return those of a split."""
        return _POOLS["train" if split == "compositions" else split]


def _pool(parts: Sequence[int], counts: Sequence[int]) -> Pool:
    """Return the names and values of so many sixths."""
    words, ends = (
        tuple(item for row, item in enumerate(all_items) if row % 6 in parts)
        for all_items in (_WORDS, _ENDS)
    )
    return Pool(words, tuple(n for n in range(10, 100) if n % 6 in parts), tuple(counts), ends)


_POOLS = {
    "train": _pool((1, 2, 3, 4), (2, 3, 5, 8)),
    "validation": _pool((0, 5), (7,)),
    "test": _pool((0, 5), (4, 6)),
}
# The last two sixths are shared out: by halves, so that both have even and odd numbers.
for _offset, _name in enumerate(("validation", "test")):
    _shared_pool = _POOLS[_name]
    _POOLS[_name] = Pool(
        _shared_pool.words[_offset::2],
        tuple(n for n in _shared_pool.numbers if (n + 1) // 6 % 2 == _offset),
        _shared_pool.counts,
        _shared_pool.ends[_offset::2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task before it has a name."""

    query: str
    gold: str
    wrong_solutions: tuple[str, ...]
    """Gold without one of its steps: it has another effect."""
    operations: tuple[str, ...]
    looks: tuple[str, ...] = ()
    """Actions that show what gold needs and the query does not tell."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the task."""


OperationFilter = Callable[[Sequence[str]], bool]
"""Whether operations in this order belong to the split."""
Family = Callable[[TaskDraw, Pool, int, OperationFilter], "Draft | None"]
"""Drafts a task of so many steps; None: what was drawn makes no good one."""


def has_held_out_pair(kind: str, operations: Sequence[str]) -> bool:
    """Whether any two operations that follow each other are a pair for ``compositions``."""
    return any(_is_held_out(kind, *pair) for pair in pairwise(operations))


@cache
def _is_held_out(kind: str, first_operation: str, second_operation: str) -> bool:
    digest = blake2b(
        f"{kind}/{first_operation}/{second_operation}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_RATIO == 0


def join_steps(steps: Sequence[str]) -> str:
    """Join steps to a sentence's end: ``a, b, then c``."""
    *earlier_steps, last_step = steps
    return f"{', '.join(earlier_steps)}, then {last_step}" if earlier_steps else last_step
