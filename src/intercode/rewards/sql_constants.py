"""What would satisfy the conditions of a query: what a mutated database is to hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from sqlglot import exp

Constant = int | float | str


@dataclass(frozen=True, slots=True)
class Condition:
    """Values of one column that a condition of the query accepts."""

    table: str
    """Lower case; empty if the query does not say."""
    column: str
    """Lower case."""
    values: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the conditions of a query ask for."""

    conditions: tuple[Condition, ...] = ()
    """Those that compare a column with constants, each once."""
    count: int = 0
    """The largest number that a count of rows is compared with."""


def wanted(query: exp.Query) -> Wanted:
    """What the conditions of a query ask for."""
    found = [condition for node in query.find_all(*_VALUES) for condition in _read(node)]
    counts = [
        value
        for node in query.find_all(*_VALUES)
        if isinstance(node.this, exp.Count)
        if isinstance(value := _constant(node.args.get("expression")), int)
    ]
    return Wanted(tuple(dict.fromkeys(found)), max(counts, default=0))


def _read(node: Any) -> Iterator[Condition]:
    kind, left = type(node), node.this
    rights = [node.args[key] for key in ("expression", "low", "high") if node.args.get(key)]
    rights += node.expressions
    if _column(left) is None and len(rights) == 1:  # 3 < x
        left, rights, kind = rights[0], [left], _MIRRORED.get(kind, kind)
    column = _column(left)
    constants = [value for value in map(_constant, rights) if value is not None]
    if column is None or not constants:
        return
    values = [accepted for value in constants for accepted in _VALUES[kind](value)]
    if values:
        yield Condition(_table(column), column.name.lower(), tuple(dict.fromkeys(values)))


def _column(node: Any) -> exp.Column | None:
    """The only column of an expression for one row: of ``a``, ``LOWER(a)``, ``YEAR(a)``."""
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
        return node.name  # SQLite takes it for a text, if there is no such column
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return node.name
    return int(node.name) if node.is_int else float(node.name)


def _table(column: exp.Column) -> str:
    """The table that a column belongs to, if the query says so."""
    select: Any = column.find_ancestor(exp.Select)
    while select is not None:
        sources = [*_from(select), *(join.this for join in select.args.get("joins") or ())]
        tables = [source for source in sources if isinstance(source, exp.Table)]
        for table in tables:
            if column.table and table.alias_or_name.lower() == column.table.lower():
                return str(table.name.lower())
        if not column.table:
            return str(tables[0].name.lower()) if len(sources) == len(tables) == 1 else ""
        select = select.find_ancestor(exp.Select)
    return ""


def _from(select: exp.Select) -> list[Any]:
    clause = select.args.get("from_") or select.args.get("from")
    return [] if clause is None else [clause.this]


def _shifted(value: Constant, by: int) -> list[Constant]:
    """A value that is a bit larger, or smaller."""
    if not isinstance(value, str):
        return [value + by]
    with suppress(ValueError, OverflowError):
        return [(date.fromisoformat(value[:10]) + timedelta(days=by)).isoformat() + value[10:]]
    return [value + "z"] if by > 0 else [value[:-1]]


def _liked(value: Constant) -> list[Constant]:
    return [str(value).replace("%", "").replace("_", "a")]


_MIRRORED: dict[Any, Any] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}
_VALUES: dict[Any, Any] = {
    exp.EQ: lambda value: [value],
    exp.NEQ: lambda value: [value],
    exp.In: lambda value: [value],
    exp.Between: lambda value: [value],
    exp.GT: lambda value: _shifted(value, 1),
    exp.GTE: lambda value: [value, *_shifted(value, 1)],
    exp.LT: lambda value: _shifted(value, -1),
    exp.LTE: lambda value: [value, *_shifted(value, -1)],
    exp.Like: _liked,
    exp.ILike: _liked,
}
"""Condition → what it accepts, or for ``!=`` refuses, by its constant."""
