"""How hard a query is, by the rule of Spider's authors (Yu et al. 2018; their ``evaluation.py``).

Counted, in the outermost query (of a set operation, the first):

- *components*: WHERE, GROUP BY, ORDER BY and LIMIT, each once; each join; each OR and each LIKE
  in the conditions of ON, WHERE and HAVING;
- *nested queries*: conditions that hold a subquery, and one for UNION, INTERSECT or EXCEPT;
- *others*, each at most once: several aggregates (in SELECT and ORDER BY; the authors' count also
  takes a negated condition, and what joins the conditions of HAVING, for one), several columns
  selected, several conditions in WHERE, several columns to group by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEVELS = ("easy", "medium", "hard", "extra")

_Node = Any  # of sqlglot's tree; its base class has another name in each of its versions


def hardness(sql: str, dialect: str = "sqlite") -> str | None:
    """One of `LEVELS`; None for what is no query that can be parsed."""
    import sqlglot
    from sqlglot import exp

    try:
        query: _Node = sqlglot.parse_one(sql, dialect=dialect)
    except sqlglot.errors.SqlglotError:
        return None
    is_set = isinstance(query, exp.SetOperation)
    while isinstance(query, (exp.SetOperation, exp.Subquery)):
        query = query.this
    return _level(*_count(query, is_set)) if isinstance(query, exp.Select) else None


def _level(components: int, nested: int, others: int) -> str:
    if nested == 0:
        if components <= 1 and others == 0:
            return "easy"
        if (components <= 1 and others <= 2) or (components <= 2 and others <= 1):
            return "medium"
        if (components <= 2 and others > 2) or (components == 3 and others <= 2):
            return "hard"
    elif nested == 1 and components <= 1 and others == 0:
        return "hard"
    return "extra"


def _count(query: _Node, is_set: bool) -> tuple[int, int, int]:
    from sqlglot import exp

    joins = query.args.get("joins") or []
    where = list(_conditions(query.args.get("where")))
    having = list(_conditions(query.args.get("having")))
    every = [*where, *having, *(c for join in joins for c in _conditions(join.args.get("on")))]
    group, order = query.args.get("group"), query.args.get("order")
    ors = sum(_ors(join.args.get("on")) for join in joins)
    ors += _ors(query.args.get("where")) + _ors(query.args.get("having"))
    likes = sum(isinstance(_positive(condition), exp.Like) for condition in every)
    clauses = [query.args.get(name) for name in ("where", "group", "order", "limit")]
    components = sum(clause is not None for clause in clauses) + len(joins) + ors + likes
    nested = is_set + sum(condition.find(exp.Select) is not None for condition in every)
    aggregates = sum(isinstance(column.unalias(), exp.AggFunc) for column in query.expressions)
    aggregates += len(list(order.find_all(exp.AggFunc))) if order else 0
    aggregates += sum(isinstance(condition, exp.Not) for condition in [*where, *having])
    aggregates += max(0, len(having) - 1)
    others = [
        aggregates > 1,
        len(query.expressions) > 1,
        len(where) > 1,
        group is not None and len(group.expressions) > 1,
    ]
    return components, nested, sum(others)


def _conditions(clause: _Node) -> Iterator[_Node]:
    """What AND and OR join in a clause."""
    from sqlglot import exp

    if clause is None:
        return
    body = _body(clause)
    if isinstance(body, exp.Connector):
        yield from _conditions(body.left)
        yield from _conditions(body.right)
    else:
        yield body


def _ors(clause: _Node) -> int:
    from sqlglot import exp

    if clause is None:
        return 0
    body = _body(clause)
    if not isinstance(body, exp.Connector):
        return 0
    return isinstance(body, exp.Or) + _ors(body.left) + _ors(body.right)


def _body(clause: _Node) -> _Node:
    from sqlglot import exp

    body = clause.this if isinstance(clause, (exp.Where, exp.Having)) else clause
    return body.unnest()


def _positive(condition: _Node) -> _Node:
    from sqlglot import exp

    return condition.this if isinstance(condition, exp.Not) else condition
