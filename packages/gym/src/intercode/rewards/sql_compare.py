"""Comparison of two SQL results, and their overlap.

A result is a multiset of whole rows or, if gold's outermost query orders, a sequence. Column names
do not matter. The number and the order of columns matter, unless the caller allows another order or
a further column. Values are compared by type:

- Numbers by value, whatever their type: ``3 = 3.0 = Decimal('3') = TRUE``. A tolerance applies to
  columns in which a fraction occurs, in gold or in the answer. Two numbers that differ by at most
  1e-6 of the larger or 1e-9 (`RELATIVE`, `ABSOLUTE`) are equal. If a chain of such pairs in the
  column links two numbers, they are equal, too. Columns of whole numbers are compared exactly. NaN
  equals itself.
- Texts exactly: case, blanks and all. ``'3'`` is not 3, ``''`` is not NULL, and NULL is not 0.
- Dates, times and intervals by type: a date equals neither its text nor its midnight.
- Lists and objects by their content, numbers in them exactly.

Linking makes "about equal" an equivalence relation, so rows can be counted by hash. A comparison
sorts the distinct numbers of each column once, and compares no row with more than one other. The
numbers are not rounded into buckets, because a bucket's edge can separate nearly equal numbers.
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

from intercode.databases.base import Row, StatementResult, Value

RELATIVE = 1e-6
ABSOLUTE = 1e-9

_EXACT_FLOATS = 2.0**53
"""The size from which a float may be rounded, even if it looks whole."""
_PLAIN_TYPES: frozenset[type] = frozenset(
    {int, bool, str, bytes, type(None), date, datetime, time, timedelta}
)
"""Types whose Python equality is the equality of values in results."""
_FRACTIONAL_TYPES: frozenset[type] = frozenset({float, Decimal})
_NUMBER_TYPES: frozenset[type] = frozenset({int, bool, float, Decimal})
_NAN = ("a number", "NaN")
_MAX_PERMUTATIONS = 120
"""The most orders of the answer's columns that are tried."""


Order = tuple[int, ...]
"""Positions in the answer of the columns that match gold's columns, in gold's order."""


@dataclass(frozen=True, slots=True)
class TiedRows:
    """Rows that tie in gold's order: any order among them is right."""

    rows: Sequence[Row]
    take: int
    """The number of the group's rows in the result, less than all if a LIMIT cuts the group."""


@dataclass(frozen=True, slots=True)
class ResultComparison:
    """The outcome of a comparison of two results."""

    equal: bool
    overlap: float
    """Dice's coefficient of the two multisets of rows, 2·|common| / (|gold| + |answer|).

    The value is 1.0 for the same rows in any order, and 0.0 for no common row.
    """
    reason: str = ""
    """The reason, in words, why the results are not equal."""
    orders: tuple[Order, ...] = field(default=(), compare=False)
    """The orders of the answer's columns in which the results are equal; its own is first.

    If many orders exist, only some are listed.
    """


def compare(
    gold: StatementResult,
    answer: StatementResult,
    *,
    ordered: bool = False,
    groups: Sequence[TiedRows] | None = None,
    permute_columns: bool = False,
    candidate_orders: Sequence[Order] | None = None,
    extra_columns: Sequence[int] = (),
) -> ResultComparison:
    """Compare an answer with gold. A result that was cut at a limit equals no other result.

    Args:
        gold: The result of gold.
        answer: The result of the answer.
        ordered: Whether the order of the rows counts.
        groups: Gold's rows in groups that tie, if the order counts; None: every row's place counts.
        permute_columns: Whether the columns may have another order.
        candidate_orders: The orders to try; None: the orders that the values allow.
        extra_columns: Positions of the answer's columns, one of which may be added to gold's.
    """
    own_order = tuple(range(len(answer.columns)))
    if len(gold.columns) == len(answer.columns):
        bases = [own_order]
    elif extra_columns and len(gold.columns) == len(answer.columns) - 1:
        bases = [own_order[:index] + own_order[index + 1 :] for index in extra_columns]
    else:
        return ResultComparison(
            False, 0.0, f"{_column_count_text(answer)}, not {len(gold.columns)}"
        )
    groups = groups if ordered else None
    best: ResultComparison | None = None
    equal_orders: list[Order] = []
    orders = dict.fromkeys(
        _candidate_orders(gold, answer, bases, permute_columns, candidate_orders)
    )
    # Results of different lengths may have no order to try, but still have an overlap.
    for order in orders or bases:
        rows = answer.rows
        if order != own_order:
            rows = [tuple(row[index] for index in order) for row in answer.rows]
        comparison = _compare(gold, replace(answer, rows=rows), ordered, groups)
        if comparison.equal:
            equal_orders.append(order)
        if best is None or (comparison.equal, comparison.overlap) > (best.equal, best.overlap):
            best = comparison
    assert best is not None  # `bases` is never empty
    return replace(best, orders=tuple(equal_orders))


def _candidate_orders(
    gold: StatementResult,
    answer: StatementResult,
    bases: Sequence[Order],
    permute_columns: bool,
    candidate_orders: Sequence[Order] | None,
) -> Iterator[Order]:
    """Yield the orders to try: first the bases, then other orders in which the values fit.

    Args:
        gold: The result of gold.
        answer: The result of the answer.
        bases: The answer's own order, without one further column if the answer has one.
        permute_columns: Whether the columns may have another order.
        candidate_orders: The only orders to try if `permute_columns` holds; None: no restriction.
    """
    yield from (
        base
        for base in bases
        if candidate_orders is None or base in candidate_orders or not permute_columns
    )
    # Results of different lengths are equal in no order; 120 trials of 200,000 rows take minutes.
    if not permute_columns or len(gold.rows) != len(answer.rows):
        return
    if candidate_orders is not None:
        yield from islice(candidate_orders, _MAX_PERMUTATIONS)
        return
    for base in bases:
        rows = [tuple(row[index] for index in base) for row in answer.rows]
        fitting_orders = (
            _column_orders(gold.rows, rows) if gold.rows else permutations(range(len(base)))
        )
        for order in islice(fitting_orders, _MAX_PERMUTATIONS):
            yield tuple(base[index] for index in order)


def is_in_own_order(order: Order) -> bool:
    """Return whether the answer has gold's columns in gold's order."""
    return list(order) == sorted(order)


def is_ambiguous_order(order: Order, gold: StatementResult) -> bool:
    """Return whether an order exchanges columns of one type, so values alone cannot prove it."""
    kinds = [
        {_comparable_type(value) for value in column} for column in zip(*gold.rows, strict=True)
    ]
    positions = [sorted(order).index(index) for index in order]
    return any(
        kinds[position] & kinds[index]
        for position, index in enumerate(positions)
        if position != index
    )


def _comparable_type(value: Value) -> type:
    return float if type(value) in _NUMBER_TYPES else type(value)


def keys(*tables: Sequence[Row]) -> list[list[Hashable]]:
    """Return the keys of each table's rows; rows that are equal within the tolerance share one."""
    rows = list(chain.from_iterable(tables))
    columns = [comparable_values(column) for column in zip(*rows, strict=True)]
    key_rows = iter(zip(*columns, strict=True))
    return [list(islice(key_rows, len(table))) for table in tables]


def comparable_values(column: Sequence[Value]) -> Sequence[Hashable]:
    """Replace each value of a column by a representative, the same for all equal values."""
    kinds = set(map(type, column))
    if kinds <= _PLAIN_TYPES:
        return column
    if not kinds <= _PLAIN_TYPES | _NUMBER_TYPES or any(map(_is_nan, column)):
        column = [_hashable(value) for value in column]
    if not any(type(value) in _FRACTIONAL_TYPES and not _is_whole(value) for value in column):
        return column
    representatives = _representatives({value for value in column if type(value) in _NUMBER_TYPES})
    return [representatives.get(value, value) for value in column]


def _representatives(raw_values: Iterable[Any]) -> dict[Any, float]:
    """Map each number to a representative, which it shares with numbers close to it."""
    representatives: dict[Any, float] = {}
    finite_numbers = [
        (value, raw_value)
        for raw_value in raw_values
        if math.isfinite(value := _as_float(raw_value))
    ]
    representative = previous_value = math.nan
    for value, raw_value in sorted(finite_numbers):
        if not value - previous_value <= max(
            ABSOLUTE, RELATIVE * max(abs(value), abs(previous_value))
        ):
            representative = value
        representatives[raw_value] = representative
        previous_value = value
    return representatives


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
    # NaN is the only value of these types that differs from itself.
    return type(value) in _FRACTIONAL_TYPES and bool(value != value)


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
    gold: StatementResult, answer: StatementResult, ordered: bool, groups: Sequence[TiedRows] | None
) -> ResultComparison:
    group_rows = [row for group in groups or () for row in group.rows]
    gold_keys, answer_keys, group_keys = keys(gold.rows, answer.rows, group_rows)
    missing_rows, extra_rows = Counter(gold_keys), Counter(answer_keys)
    common = missing_rows & extra_rows
    missing_rows, extra_rows = missing_rows - common, extra_rows - common
    # Rows beyond the limit count, though their values are unknown.
    dropped_count = _count_dropped_rows(answer)
    common_count = common.total()
    total = len(gold_keys) + len(answer_keys) + dropped_count
    overlap = 2 * common_count / total if total else 1.0
    is_complete = gold.complete and answer.complete
    if is_complete and ordered:
        is_equal = (
            _is_in_order(answer_keys, group_keys, groups)
            if groups is not None
            else gold_keys == answer_keys
        )
    else:
        is_equal = is_complete and not missing_rows and not extra_rows
    if is_equal:
        return ResultComparison(True, 1.0)
    return ResultComparison(
        False,
        overlap,
        _reason(missing_rows.total(), extra_rows.total() + dropped_count, is_complete),
    )


def _is_in_order(
    answer_keys: Sequence[Hashable], group_keys: Sequence[Hashable], groups: Sequence[TiedRows]
) -> bool:
    """Return whether an answer has, group by group, the right number of rows of each group."""
    if len(answer_keys) != sum(group.take for group in groups):
        return False
    rows, candidates = iter(answer_keys), iter(group_keys)
    for group in groups:
        allowed_rows = Counter(islice(candidates, len(group.rows)))
        if Counter(islice(rows, group.take)) - allowed_rows:
            return False
    return True


def _count_dropped_rows(result: StatementResult) -> int:
    return 0 if result.total is None else result.total - len(result.rows)


def _reason(missing_count: int, extra_count: int, is_complete: bool) -> str:
    if not is_complete:
        return "a result is too large to be compared"
    if not missing_count and not extra_count:
        return "the same rows in another order"
    descriptions = []
    if missing_count:
        descriptions.append(
            f"{missing_count:,} {'row is' if missing_count == 1 else 'rows are'} missing"
        )
    if extra_count:
        descriptions.append(f"{extra_count:,} {'row is' if extra_count == 1 else 'rows are'} extra")
    return ", ".join(descriptions)


def _column_count_text(result: StatementResult) -> str:
    return "1 column" if len(result.columns) == 1 else f"{len(result.columns)} columns"


def _column_orders(gold: Sequence[Row], answer: Sequence[Row]) -> Iterator[tuple[int, ...]]:
    """Yield orders of the answer's columns in which each column has the values of gold's column.

    Nothing is yielded if the choices for the columns contradict each other.
    """
    if len(gold) != len(answer) or not gold:
        return
    gold_columns, answer_columns = list(zip(*gold, strict=True)), list(zip(*answer, strict=True))
    fitting = [
        tuple(
            index
            for index, answer_column in enumerate(answer_columns)
            if _are_same_values(gold_column, answer_column)
        )
        for gold_column in gold_columns
    ]
    if all(fitting.count(indices) == len(indices) for indices in fitting):
        yield from _column_assignments(fitting)


def _column_assignments(
    fitting: Sequence[tuple[int, ...]], assigned_indices: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """Yield every assignment of fitting columns to positions, each column at most once."""
    if len(assigned_indices) == len(fitting):
        yield assigned_indices
        return
    for index in fitting[len(assigned_indices)]:
        if index not in assigned_indices:
            yield from _column_assignments(fitting, (*assigned_indices, index))


def _are_same_values(first_column: Sequence[Value], second_column: Sequence[Value]) -> bool:
    values = comparable_values([*first_column, *second_column])
    return Counter(values[: len(first_column)]) == Counter(values[len(first_column) :])
