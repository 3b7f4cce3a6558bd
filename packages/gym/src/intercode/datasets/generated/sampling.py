"""Parts that all generators of tasks share.

`SeededChoices` makes random choices from a seed, `TaskNamePool` has the names and values of a
split, and `TaskDraft` is a generated task without its id.

`SeededChoices` uses only the method ``random`` of ``random.Random``. For this method alone, Python
guarantees the same numbers in all versions.
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
"""The splits. ``validation`` and ``test`` have names and values that ``train`` never has.
``compositions`` has the names and values of ``train``, and pairs of consecutive operations that no
other split has."""

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
"""The excluded words: the name of a program (``nano``), and offensive words."""


def _combine(prefixes: Sequence[str], suffixes: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        prefix + suffix
        for prefix in prefixes
        for suffix in suffixes
        if prefix + suffix not in _EXCLUDED_WORDS
    )


_WORDS = _combine(_SYLLABLES, _SYLLABLES)
"""Words of four letters. Each word consists of two syllables, so a policy can spell a word that it
has never seen. No word is a part of another word. No word is an English word that queries contain,
such as "take", "line" or "move"."""
_ENDS = _combine(_SYLLABLES, "bgklmnt")
_HELD_OUT_RATIO = 4
"""The divisor of the share of held-out pairs: one pair of operations in four occurs only in the
split ``compositions``."""


class SeededChoices:
    """A source of random choices, which depend only on the arguments of the constructor.

    Equal arguments give the same choices on every machine.
    """

    def __init__(self, *facts: object) -> None:
        self._random_float = random.Random("/".join(map(str, facts))).random

    def draw_below(self, limit: int) -> int:
        """Draw an integer from 0 to `limit` - 1."""
        return int(self._random_float() * limit)

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of the choices."""
        return choices[self.draw_below(len(choices))]

    def pick_several(self, choices: Sequence[T], count: int) -> list[T]:
        """Draw `count` different choices, in random order."""
        indices: dict[int, None] = {}
        while len(indices) < count:
            indices.setdefault(self.draw_below(len(choices)))
        return [choices[index] for index in indices]


@dataclass(frozen=True, slots=True)
class TaskNamePool:
    """The names and values that the tasks of a split may contain."""

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    """Integers of two digits, which are data."""
    counts: tuple[int, ...]
    """Quantities in operations, such as the number of lines to take."""
    ends: tuple[str, ...]
    """Suffixes of file names, without the dot."""

    @classmethod
    def from_split(cls, split: str) -> TaskNamePool:
        """Return the names and values of a split."""
        return _POOLS["train" if split == "compositions" else split]


def _pool(residues: Sequence[int], counts: Sequence[int]) -> TaskNamePool:
    """Return a part of all names and values.

    All words, suffixes and numbers are divided into six parts, by their position (or value) modulo
    6.

    Args:
        residues: The parts to include, 0 to 5.
        counts: The quantities of the pool.
    """
    words, ends = (
        tuple(item for index, item in enumerate(all_items) if index % 6 in residues)
        for all_items in (_WORDS, _ENDS)
    )
    return TaskNamePool(
        words, tuple(n for n in range(10, 100) if n % 6 in residues), tuple(counts), ends
    )


_POOLS = {
    "train": _pool((1, 2, 3, 4), (2, 3, 5, 8)),
    "validation": _pool((0, 5), (7,)),
    "test": _pool((0, 5), (4, 6)),
}
# ``validation`` and ``test`` both have the parts 0 and 5. Each split gets one half of these parts,
# and each half has even and odd numbers.
for _offset, _name in enumerate(("validation", "test")):
    _shared_pool = _POOLS[_name]
    _POOLS[_name] = TaskNamePool(
        _shared_pool.words[_offset::2],
        tuple(n for n in _shared_pool.numbers if (n + 1) // 6 % 2 == _offset),
        _shared_pool.counts,
        _shared_pool.ends[_offset::2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraft:
    """A generated task without its id."""

    query: str
    gold: str
    wrong_solutions: tuple[str, ...]
    """Solutions with another result than gold. Most of them omit a step of gold."""
    operations: tuple[str, ...]
    looks: tuple[str, ...] = ()
    """Actions that print data which gold contains, but the query omits."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the task."""


OperationFilter = Callable[[Sequence[str]], bool]
"""A function that returns whether operations, in this order, belong to a split."""
Family = Callable[[SeededChoices, TaskNamePool, int, OperationFilter], "TaskDraft | None"]
"""A function that drafts a task with a number of operations. The result is None if the random
choices make no valid task."""


def has_held_out_pair(kind: str, operations: Sequence[str]) -> bool:
    """Return whether any pair of consecutive operations is held out for ``compositions``."""
    return any(_is_held_out(kind, *pair) for pair in pairwise(operations))


@cache
def _is_held_out(kind: str, first_operation: str, second_operation: str) -> bool:
    digest = blake2b(
        f"{kind}/{first_operation}/{second_operation}".encode(), digest_size=4
    ).digest()
    return int.from_bytes(digest, "big") % _HELD_OUT_RATIO == 0


def join_steps(steps: Sequence[str]) -> str:
    """Join the phrases of steps: ``a, b, then c``."""
    *earlier_steps, last_step = steps
    return f"{', '.join(earlier_steps)}, then {last_step}" if earlier_steps else last_step
