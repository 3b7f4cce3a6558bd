"""Columns that explain an answer: the answer orders, groups or filters by the same expression.

The question "Which city has the most people" may be answered by a name with its number. An
explaining column is an expression of the outermost SELECT, written in full. The same expression is
also a key of the ORDER BY or GROUP BY, or is compared in the WHERE or HAVING. A star names no
expression, and a constant explains nothing. A key or a condition without an effect explains nothing
either. Variants of the answer test the effect: they reverse the order, remove a key of the GROUP
BY, or make the condition true or false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from intercode.rewards.sql_gold import DIALECTS, outermost_query


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A use of an expression of the answer's SELECT in another clause of the same query.

    The other clause is ORDER BY, GROUP BY, WHERE or HAVING. The answer is the agent's query.
    """

    column: int
    """The position of the expression among the answer's columns, from 0."""
    variants: tuple[str, ...]
    """Variants of the answer: reordered, regrouped, or with the condition true or false.

    The use has an effect if each variant gives another result in the database or in a copy.
    """


def find_uses(query: exp.Query | None, dialect: str) -> list[ColumnUse]:
    """List the uses of an answer's columns that may explain the other columns.

    Args:
        query: The answer; None: it could not be parsed.
        dialect: The answer's SQL dialect.
    """
    outer_select: Any = None if query is None else outermost_query(query).copy()
    if not isinstance(outer_select, exp.Select) or any(
        column.is_star for column in outer_select.expressions
    ):
        return []
    dialect = DIALECTS.get(dialect, dialect)
    column_uses = []
    for index, column in enumerate(outer_select.expressions):
        if _is_of_rows(column.unalias()):
            for node, changes in _find_column_uses(outer_select, index, column):
                try:
                    column_uses.append(
                        ColumnUse(
                            index, tuple(_changed_queries(outer_select, node, changes, dialect))
                        )
                    )
                except SqlglotError:
                    continue
    return column_uses


def is_used_by_gold(gold: exp.Query | None, query: exp.Query | None, column: int) -> bool:
    """Return whether gold, too, orders, groups or filters by the expression of a column.

    Args:
        gold: The query of gold; None if it could not be parsed.
        query: The answer's query; None if it could not be parsed.
        column: The position of the answer's column, from 0.
    """
    gold_select: Any = None if gold is None else outermost_query(gold)
    answer_select: Any = None if query is None else outermost_query(query)
    if not isinstance(gold_select, exp.Select) or not isinstance(answer_select, exp.Select):
        return False
    keys = [key.this for key in _clause(gold_select, "order").expressions]
    keys += _clause(gold_select, "group").expressions
    for clause in ("where", "having"):
        keys += [condition.this for condition in _conditions(_clause(gold_select, clause))]
    column_expression = _normalise_expression(
        answer_select.expressions[column].unalias(), tables=False
    )
    return any(_normalise_expression(key, tables=False) == column_expression for key in keys)


def _is_of_rows(expression: Any) -> bool:
    """Return whether an expression depends on the rows, unlike a constant or a subquery."""
    if expression.find(exp.Query) is not None:
        return False
    return expression.find(exp.Column, exp.Count) is not None


NodeChange = Callable[[Any], Any]


def _find_column_uses(
    select: Any, index: int, column: Any
) -> Iterator[tuple[Any, tuple[NodeChange, ...]]]:
    """Yield the parts of a SELECT that use a column, each with changes that test its effect."""
    own_expression, name = column.unalias(), column.alias.lower()
    has_aggregate = own_expression.find(exp.AggFunc) is not None

    def is_reference(node: Any, can_be_alias: bool) -> bool:
        if isinstance(node, exp.Literal) and node.is_int:
            return int(node.name) == index + 1
        alias = isinstance(node, exp.Column) and not node.table and node.name.lower() == name
        return (can_be_alias and bool(name) and alias) or _is_same_expression(own_expression, node)

    for key in _clause(select, "order").expressions:
        if is_reference(key.this, can_be_alias=True):
            yield key, (_reverse_order,)
    for key in _clause(select, "group").expressions:
        if is_reference(key, can_be_alias=False):
            yield key, (lambda _: None,)
    # In HAVING, a name that equals an aggregate's alias can only refer to that alias.
    for clause in ("where", "having"):
        for condition in _conditions(_clause(select, clause)):
            operands = [
                condition.this,
                *([condition.expression] * isinstance(condition, exp.Binary)),
            ]
            can_be_alias = has_aggregate and clause == "having"
            if any(
                is_reference(operand, can_be_alias)
                for operand in operands
                if not isinstance(operand, exp.Literal)
            ):
                yield condition, (lambda _: exp.true(), lambda _: exp.false())


def _changed_queries(
    select: Any, node: Any, changes: tuple[NodeChange, ...], dialect: str
) -> Iterator[str]:
    """Yield one query for each change, with the change applied to a part of the original.

    Args:
        select: The original query.
        node: The part of the query to change.
        changes: Functions that return the replacement of the part; None removes the part.
        dialect: The SQL dialect of the result.
    """
    for change in changes:
        copy = select.copy()
        pairs = zip(select.walk(), copy.walk(), strict=True)
        target_node = next(new_node for old_node, new_node in pairs if old_node is node)
        new_node = change(target_node.copy())
        if new_node is not None:
            target_node.replace(new_node)
        elif len(target_node.parent.expressions) > 1:
            target_node.pop()
        else:
            copy.set("group", None)
        yield copy.sql(dialect=dialect)


def _reverse_order(key: Any) -> Any:
    key.set("desc", not key.args.get("desc"))
    key.set("nulls_first", None)
    return key


def _clause(select: Any, name: str) -> Any:
    return select.args.get(name) or exp.Tuple()


def _conditions(node: Any) -> Iterator[Any]:
    """Yield the comparisons in a condition, without those in nested queries."""
    if isinstance(node, exp.Query):
        return
    if isinstance(node, (exp.Predicate, exp.Between, exp.In, exp.Like)):
        yield node
    for child in node.iter_expressions():
        yield from _conditions(child)


def _is_same_expression(first_expression: Any, second_expression: Any) -> bool:
    """Return whether two expressions are the same, even if one of them omits table names."""
    first_expression, second_expression = (
        _normalise_expression(expression) for expression in (first_expression, second_expression)
    )
    if first_expression == second_expression:
        return True
    bare_expressions = [
        _normalise_expression(expression, tables=False)
        for expression in (first_expression, second_expression)
    ]
    columns = [
        list(expression.find_all(exp.Column))
        for expression in (first_expression, second_expression)
    ]
    return bare_expressions[0] == bare_expressions[1] and any(
        not column.table for expression_columns in columns for column in expression_columns
    )


def _normalise_expression(expression: Any, *, tables: bool = True) -> Any:
    """Return an expression with names in lower case, without quotes and parentheses."""

    def simplify_node(node: Any) -> Any:
        if isinstance(node, exp.Paren):
            return node.this
        if isinstance(node, exp.Identifier):
            return exp.to_identifier(node.name.lower(), quoted=False)
        if isinstance(node, exp.Column) and not tables:
            return exp.column(node.name.lower())
        return node

    return expression.copy().transform(simplify_node)
