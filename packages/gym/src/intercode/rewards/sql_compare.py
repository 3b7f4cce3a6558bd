"""Comparison of two results of SQL, and their overlap.

A result is a multiset of whole rows, or where gold's outermost query orders, a sequence. The names
of its columns do not matter; their number does, and their order unless it may be another. Values
are compared by type:

- Numbers by value, whatever their type: ``3 = 3.0 = Decimal('3') = TRUE``. In a column that holds
  fractions, on either side, two numbers are equal if they differ by at most 1e-6 of the larger or
  1e-9 (`RELATIVE`, `ABSOLUTE`), or are linked by numbers of that column that do; whole columns are
  compared exactly. NaN equals itself.
- Texts exactly: case, blanks and all. ``'3'`` is not 3, ``''`` is not NULL, and NULL is not 0.
- Dates, times and intervals by type: a date is neither its text nor its midnight.
- Lists and objects by their content, numbers in them exactly.

Linking makes "about equal" an equivalence, so that rows can be counted by hash: comparing takes
one sort of a column's distinct numbers, and no row is compared with more than one other. There are
no buckets, hence no bucket edges at which nearly equal numbers part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice, permutations
from typing import Any

from intercode.databases.base import Result, Row, Value

RELATIVE = 1e-6
ABSOLUTE = 1e-9

_EXACT_FLOATS = 2.0**53
"""The size from which on a float is an approximation, whole as it looks."""
_PLAIN: frozenset[type] = frozenset(
    {int, bool, str, bytes, type(None), date, datetime, time, timedelta}
)
"""Types whose own equality is ours."""
_FRACTIONAL: frozenset[type] = frozenset({float, Decimal})
_NUMBERS: frozenset[type] = frozenset({int, bool, float, Decimal})
_NAN = ("a number", "NaN")
_PERMUTATIONS = 120
"""The number of orders of columns that are tried."""


Order = tuple[int, ...]
"""The place in the answer of each of gold's columns."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that gold puts at the same place: any order among them is right."""

    rows: Sequence[Row]
    take: int
    """The number of them in the result: less than all where a LIMIT cuts through them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of a comparison of two results."""

    equal: bool
    overlap: float
    """Dice's coefficient of the two multisets of rows, 2·|common| / (|gold| + |answer|): 1.0 for
    the same rows in any order, 0.0 for none in common."""
    reason: str = ""
    """The reason, in words, why they are not equal."""
    orders: tuple[Order, ...] = field(default=(), compare=False)
    """The orders of the answer's columns in which they are equal, its own first; not all, where
    there are many."""


def compare(
    gold: Result,
    answer: Result,
    *,
    ordered: bool = False,
    groups: Sequence[Group] | None = None,
    permute_columns: bool = False,
    among: Sequence[Order] | None = None,
    spare: Sequence[int] = (),
) -> Comparison:
    """Compare an answer with gold. A result whose rows are not all here equals nothing.

    Args:
        gold: The result of gold.
        answer: The result of the answer.
        ordered: Whether the order of the rows counts.
        groups: If it counts: gold's rows by their place in the order. None: each has its own.
        permute_columns: Whether the columns may come in another order.
        among: Which orders are tried; None: those that the values allow.
        spare: The columns of the answer of which it may have one in addition to gold's.
    """
    own = tuple(range(len(answer.columns)))
    if len(gold.columns) == len(answer.columns):
        bases = [own]
    elif spare and len(gold.columns) == len(answer.columns) - 1:
        bases = [own[:index] + own[index + 1 :] for index in spare]
    else:
        return Comparison(False, 0.0, f"{_columns(answer)}, not {len(gold.columns)}")
    groups = groups if ordered else None
    best: Comparison | None = None
    equal: list[Order] = []
    for order in dict.fromkeys(_tried(gold, answer, bases, permute_columns, among)):
        rows = answer.rows
        if order != own:
            rows = [tuple(row[index] for index in order) for row in answer.rows]
        found = _compare(gold, replace(answer, rows=rows), ordered, groups)
        if found.equal:
            equal.append(order)
        if best is None or (found.equal, found.overlap) > (best.equal, best.overlap):
            best = found
    assert best is not None  # one order was tried at least
    return replace(best, orders=tuple(equal))


def _tried(
    gold: Result,
    answer: Result,
    bases: Sequence[Order],
    permute_columns: bool,
    among: Sequence[Order] | None,
) -> Iterator[Order]:
    """Yield the orders to try: those of the bases, then the others that may be."""
    yield from (base for base in bases if among is None or base in among or not permute_columns)
    # Results of other lengths are equal in no order; to try 120 of 200,000 rows takes minutes.
    if not permute_columns or len(gold.rows) != len(answer.rows):
        return
    if among is not None:
        yield from islice(among, _PERMUTATIONS)
        return
    for base in bases:
        rows = [tuple(row[index] for index in base) for row in answer.rows]
        allowed = _orders(gold.rows, rows) if gold.rows else permutations(range(len(base)))
        for order in islice(allowed, _PERMUTATIONS):
            yield tuple(base[index] for index in order)


def in_own_order(order: Order) -> bool:
    """Return whether the answer has gold's columns in gold's order."""
    return list(order) == sorted(order)


def exchanges_alike(order: Order, gold: Result) -> bool:
    """Return whether an order exchanges columns of one type, which values do not tell apart."""
    kinds = [{_kind(value) for value in column} for column in zip(*gold.rows, strict=True)]
    places = [sorted(order).index(index) for index in order]
    return any(kinds[at] & kinds[index] for at, index in enumerate(places) if at != index)


def _kind(value: Value) -> type:
    return float if type(value) in _NUMBERS else type(value)


def keys(*tables: Sequence[Row]) -> list[list[Hashable]]:
    """Return the rows of tables of the same width as keys that are equal if the rows are."""
    rows = list(chain.from_iterable(tables))
    columns = [comparable(column) for column in zip(*rows, strict=True)]
    made = iter(zip(*columns, strict=True))
    return [list(islice(made, len(table))) for table in tables]


def comparable(column: Sequence[Value]) -> Sequence[Hashable]:
    """Replace each value of a column by one that equals those that it counts as equal to."""
    kinds = set(map(type, column))
    if kinds <= _PLAIN:
        return column
    if not kinds <= _PLAIN | _NUMBERS or any(map(_is_nan, column)):
        column = [_hashable(value) for value in column]
    if not any(type(value) in _FRACTIONAL and not _is_whole(value) for value in column):
        return column
    same = _linked({value for value in column if type(value) in _NUMBERS})
    return [same.get(value, value) for value in column]


def _linked(numbers: Iterable[Any]) -> dict[Any, float]:
    """Map numbers to representatives: those within the tolerance of a neighbour share one."""
    same: dict[Any, float] = {}
    finite = [(value, number) for number in numbers if math.isfinite(value := _as_float(number))]
    first = last = math.nan
    for value, number in sorted(finite):
        if not value - last <= max(ABSOLUTE, RELATIVE * max(abs(value), abs(last))):
            first = value
        same[number] = first
        last = value
    return same


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _is_whole(number: float | Decimal) -> bool:
    if isinstance(number, float):
        return math.isinf(number) or (abs(number) < _EXACT_FLOATS and number.is_integer())
    return number.is_infinite() or number == number.to_integral_value()


def _is_nan(value: Value) -> bool:
    # The one value of these types that differs from itself.
    return type(value) in _FRACTIONAL and bool(value != value)


def _hashable(value: Value) -> Hashable:
    if _is_nan(value):
        return _NAN
    if isinstance(value, (list, tuple)):
        return ("a list", tuple(map(_hashable, value)))
    if isinstance(value, dict):
        return ("an object", frozenset((key, _hashable(item)) for key, item in value.items()))
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value if isinstance(value, Hashable) else repr(value)


def _compare(
    gold: Result, answer: Result, ordered: bool, groups: Sequence[Group] | None
) -> Comparison:
    spare = [row for group in groups or () for row in group.rows]
    wanted, given, allowed = keys(gold.rows, answer.rows, spare)
    missing, extra = Counter(wanted), Counter(given)
    common = missing & extra
    missing, extra = missing - common, extra - common
    # Rows that were not kept count as rows, though their values are not known.
    lost = _uncounted(answer)
    shared = common.total()
    total = len(wanted) + len(given) + lost
    overlap = 2 * shared / total if total else 1.0
    complete = gold.complete and answer.complete
    if complete and ordered:
        equal = _in_order(given, allowed, groups) if groups is not None else wanted == given
    else:
        equal = complete and not missing and not extra
    if equal:
        return Comparison(True, 1.0)
    return Comparison(False, overlap, _reason(missing.total(), extra.total() + lost, complete))


def _in_order(
    given: Sequence[Hashable], allowed: Sequence[Hashable], groups: Sequence[Group]
) -> bool:
    """Return whether each place of the order has rows that may be there, and as many."""
    if len(given) != sum(group.take for group in groups):
        return False
    rows, candidates = iter(given), iter(allowed)
    for group in groups:
        there = Counter(islice(candidates, len(group.rows)))
        if Counter(islice(rows, group.take)) - there:
            return False
    return True


def _uncounted(result: Result) -> int:
    return 0 if result.total is None else result.total - len(result.rows)


def _reason(missing: int, extra: int, complete: bool) -> str:
    if not complete:
        return "a result is too large to be compared"
    if not missing and not extra:
        return "the same rows in another order"
    parts = []
    if missing:
        parts.append(f"{missing:,} {'row is' if missing == 1 else 'rows are'} missing")
    if extra:
        parts.append(f"{extra:,} {'row is' if extra == 1 else 'rows are'} extra")
    return ", ".join(parts)


def _columns(result: Result) -> str:
    return "1 column" if len(result.columns) == 1 else f"{len(result.columns)} columns"


def _orders(gold: Sequence[Row], answer: Sequence[Row]) -> Iterator[tuple[int, ...]]:
    """Yield orders of the answer's columns by which each has the values of gold's column there."""
    if len(gold) != len(answer) or not gold:
        return
    wanted, given = list(zip(*gold, strict=True)), list(zip(*answer, strict=True))
    fitting = [
        tuple(index for index, theirs in enumerate(given) if _same_values(ours, theirs))
        for ours in wanted
    ]
    if all(fitting.count(indices) == len(indices) for indices in fitting):
        yield from _assignments(fitting)


def _assignments(
    fitting: Sequence[tuple[int, ...]], taken: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each place one of the columns that fit, and none to two."""
    if len(taken) == len(fitting):
        yield taken
        return
    for index in fitting[len(taken)]:
        if index not in taken:
            yield from _assignments(fitting, (*taken, index))


def _same_values(one: Sequence[Value], other: Sequence[Value]) -> bool:
    values = comparable([*one, *other])
    return Counter(values[: len(one)]) == Counter(values[len(one) :])
