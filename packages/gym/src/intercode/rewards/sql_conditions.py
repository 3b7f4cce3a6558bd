"""Conditions of a query: the constants with which it compares columns, and its lookups of rows.

A *condition* gives values that are inserted into a mutated copy of the database
(`database_mutator`), so the query finds other rows in the copy. A *lookup* consists of one
comparison of a column with a constant, or of several on one table that AND joins. If a lookup finds
a single row in the data, an agent that reads the data may rely on that row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations
from typing import Any, Literal

from sqlglot import exp

_SAME_TEXT = (exp.Lower, exp.Upper, exp.Trim, exp.Paren, exp.Cast)
"""Functions that leave a value recognisable: only case, blanks or the type may change."""
_MAX_COMPARISONS = 4
"""The most comparisons of one AND that are combined; four comparisons give 15 lookups."""

Constant = int | float | str


@dataclass(frozen=True, slots=True)
class ColumnCondition:
    """Values of one column that a condition of the query accepts, or that lie at its bound."""

    table: str
    """The table's name in lower case; empty if the query does not show it."""
    column: str
    """The column's name in lower case."""
    values: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class ConstantComparison:
    """A comparison of a column with a constant that may single out a row."""

    column: str
    """The column's name in lower case."""
    operator: Literal["=", "LIKE"]
    value: Constant


@dataclass(frozen=True, slots=True)
class RowLookup:
    """Comparisons by which a query may find one row of a table; the row satisfies all of them."""

    table: str
    """The table's name in lower case; empty if the query does not show it."""
    comparisons: tuple[ConstantComparison, ...]


@dataclass(frozen=True, slots=True)
class QueryConditions:
    """The conditions and lookups of a query."""

    conditions: tuple[ColumnCondition, ...] = ()
    """The conditions that compare a column with constants, without repetitions."""
    count: int = 0
    """The largest number with which the query compares a count of rows; 0 if none."""
    lookups: tuple[RowLookup, ...] = ()
    """The lookups of single comparisons and of their combinations, without repetitions."""


def collect_conditions(query: exp.Query) -> QueryConditions:
    """Return the conditions and lookups of a query."""
    conditions = [
        condition for node in query.find_all(*_VALUES) for condition in _parse_conditions(node)
    ]
    counts = [
        value
        for node in query.find_all(*_VALUES)
        if isinstance(node.this, exp.Count)
        if isinstance(value := _constant(node.args.get("expression")), int)
    ]
    lookups = tuple(dict.fromkeys(_lookups(query)))
    return QueryConditions(tuple(dict.fromkeys(conditions)), max(counts, default=0), lookups)


def _lookups(query: exp.Query) -> Iterator[RowLookup]:
    """Yield a lookup for each comparison, and for each combination within one AND on one table."""
    joined_comparisons: dict[tuple[int, str], list[ConstantComparison]] = {}
    for node in query.find_all(exp.EQ, exp.In, exp.Like, exp.ILike):
        for table, comparison in _comparisons(node):
            yield RowLookup(table, (comparison,))
            if not isinstance(node, exp.In) or len(node.expressions) == 1:
                group = joined_comparisons.setdefault((id(_conjunction(node)), table), [])
                if comparison not in group:
                    group.append(comparison)
    for (_, table), comparisons in joined_comparisons.items():
        for size in range(2, _MAX_COMPARISONS + 1):
            for combination in combinations(comparisons[:_MAX_COMPARISONS], size):
                yield RowLookup(table, combination)


def _comparisons(node: Any) -> Iterator[tuple[str, ConstantComparison]]:
    operands = [node.this, *([node.expression] if node.args.get("expression") else [])]
    operands += node.expressions
    plain_operands = [
        expression.this if isinstance(expression, _SAME_TEXT) else expression
        for expression in operands
    ]
    column = next(
        (
            expression
            for expression in plain_operands
            if isinstance(expression, exp.Column) and _constant(expression) is None
        ),
        None,
    )
    operator: Literal["=", "LIKE"] = "LIKE" if isinstance(node, (exp.Like, exp.ILike)) else "="
    if column is not None:
        for operand in operands:
            if (value := _constant(operand)) is not None:
                yield _table_name(column), ConstantComparison(column.name.lower(), operator, value)


def _conjunction(node: Any) -> Any:
    """Return the largest expression around a comparison that is joined with it by AND alone."""
    while isinstance(node.parent, (exp.And, exp.Paren)):
        node = node.parent
    # The conditions of joins and of WHERE in one SELECT must hold together.
    clause = node.parent
    return clause.parent_select if isinstance(clause, (exp.Where, exp.Join)) else node


def _parse_conditions(node: Any) -> Iterator[ColumnCondition]:
    kind, left_operand = type(node), node.this
    right_operands = [node.args[key] for key in ("expression", "low", "high") if node.args.get(key)]
    right_operands += node.expressions
    if _only_column(left_operand) is None and len(right_operands) == 1:  # 3 < x
        left_operand, right_operands, kind = (
            right_operands[0],
            [left_operand],
            _MIRRORED_OPERATORS.get(kind, kind),
        )
    column = _only_column(left_operand)
    constants = [value for value in map(_constant, right_operands) if value is not None]
    if column is None or not constants:
        return
    values = [accepted_value for value in constants for accepted_value in _VALUES[kind](value)]
    if values:
        yield ColumnCondition(
            _table_name(column), column.name.lower(), tuple(dict.fromkeys(values))
        )


def _only_column(node: Any) -> exp.Column | None:
    """Return the only column in an expression of a single row; None otherwise.

    Expressions such as ``a``, ``LOWER(a)`` and ``YEAR(a)`` have one column; aggregates are
    excluded.
    """
    if node.find(exp.AggFunc, exp.Query) is not None:
        return None
    columns = list(node.find_all(exp.Column))
    return columns[0] if len(columns) == 1 else None


def _constant(node: Any) -> Constant | None:
    if isinstance(node, (exp.Cast, exp.Paren)):
        node = node.this
    if isinstance(node, exp.Neg):
        value = _constant(node.this)
        return None if value is None or isinstance(value, str) else -value
    if isinstance(node, exp.Column) and not node.table and node.this.args.get("quoted"):
        return node.name  # SQLite reads a quoted name without such a column as a text
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.name
    return int(node.name) if node.is_int else float(node.name)


def _table_name(column: exp.Column) -> str:
    """Return the name of a column's table in lower case; empty if the query does not show it."""
    select: Any = column.find_ancestor(exp.Select)
    while select is not None:
        sources = [*_from_sources(select), *(join.this for join in select.args.get("joins") or ())]
        tables = [source for source in sources if isinstance(source, exp.Table)]
        for table in tables:
            if column.table and table.alias_or_name.lower() == column.table.lower():
                return str(table.name.lower())
        if not column.table:
            return str(tables[0].name.lower()) if len(sources) == len(tables) == 1 else ""
        select = select.find_ancestor(exp.Select)
    return ""


def _from_sources(select: exp.Select) -> list[Any]:
    clause = select.args.get("from_") or select.args.get("from")
    return [] if clause is None else [clause.this]


def _shift_value(value: Constant, offset: int) -> list[Constant]:
    """Return a list with one value: slightly above `value` for offset 1, below it for offset -1.

    A number changes by the offset, and a date by as many days. For another text, a final "z" is
    added, or the last character is removed.
    """
    if not isinstance(value, str):
        return [value + offset]
    with suppress(ValueError, OverflowError):
        return [(date.fromisoformat(value[:10]) + timedelta(days=offset)).isoformat() + value[10:]]
    return [value + "z"] if offset > 0 else [value[:-1]]


def _like_values(value: Constant) -> list[Constant]:
    return [str(value).replace("%", "").replace("_", "a")]


_MIRRORED_OPERATORS: dict[Any, Any] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_VALUES: dict[Any, Any] = {
    exp.EQ: lambda value: [value],
    exp.NEQ: lambda value: [value],
    exp.In: lambda value: [value],
    exp.Between: lambda value: [value],
    exp.GT: lambda value: [*_shift_value(value, 1), value],
    exp.GTE: lambda value: [value, *_shift_value(value, 1)],
    exp.LT: lambda value: [*_shift_value(value, -1), value],
    exp.LTE: lambda value: [value, *_shift_value(value, -1)],
    exp.Like: _like_values,
    exp.ILike: _like_values,
}
"""Type of a condition → function of its constant that returns the values to insert.

The values to insert are accepted by the condition, or are its bound. For ``!=`` the refused value
is inserted.
"""
