"""``ONLY_FULL_GROUP_BY`` as MySQL 8, which the recorded runs had, enforces it.

A query is refused if it shows a column that its groups do not determine; 11 of the release's golds
are. MariaDB's mode of that name knows no functional dependencies and would refuse right ones, and
SQLite has none, so the rule is decided here, from the query's text and the tables' keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import sqlglot
from sqlglot import exp

from intercode.paper.sql_scope import UNREADABLE, Column, Node, Scope, Tables, own_nodes

_MODE = "this is incompatible with sql_mode=only_full_group_by"
_RULED = re.compile(
    r"\bGROUP\s+BY\b|\bDISTINCT\b|\b(?:COUNT|SUM|AVG|MIN|MAX|GROUP_CONCAT|STD\w*|VAR\w*)\s*\(",
    re.IGNORECASE,
)


def refusal(sql: str, tables: Tables, database: str) -> str | None:
    """The message with which MySQL 8 refuses a query by that rule; None if it does not.

    Args:
        sql: The statement. What cannot be understood is not refused: the engine will say.
        tables: The tables of the current database.
        database: Its name.
    """
    if not _RULED.search(sql) or (tree := _parsed(sql)) is None:
        return None
    for select in tree.find_all(exp.Select):
        try:
            message = _Check(select, Scope(select, tables, database)).message()
        except (LookupError, RecursionError):
            continue
        if message is not None:
            return message
    return None


@lru_cache(maxsize=4096)
def _parsed(sql: str) -> Node:
    try:
        tree = sqlglot.parse_one(sql, read="mysql")
    except UNREADABLE:
        return None
    return tree if isinstance(tree, exp.Query) else None


class _Check:
    def __init__(self, select: exp.Select, scope: Scope) -> None:
        self._select = select
        self._scope = scope
        self._aliases = {item.alias.lower(): item.this for item in select.expressions if item.alias}

    def message(self) -> str | None:
        select = self._select
        group = select.args.get("group")
        parts = [*select.expressions, *self._order()]
        if having := select.args.get("having"):
            parts.append(having.this)
        if group is not None or any(_aggregates(part) for part in parts):
            return self._ungrouped(group)
        if select.args.get("distinct"):
            return self._undistinct()
        return None

    def _order(self) -> Sequence[Node]:
        order = self._select.args.get("order")
        return [one.this for one in order.expressions] if order is not None else ()

    def _ungrouped(self, group: exp.Group | None) -> str | None:
        grouped = [self._meant(one) for one in group.expressions] if group is not None else []
        texts = frozenset(one.sql().lower() for one in grouped)
        columns = (self._scope.resolve(one) for one in grouped if isinstance(one, exp.Column))
        known = self._scope.determined(column for column in columns if column is not None)
        for place, item in enumerate(self._items(), 1):
            if isinstance(item, tuple):
                loose = item if item not in known else None
            else:
                loose = self._loose(item, known, texts)
            if loose is not None:
                return self._ungrouped_message(place, "SELECT list", loose, group)
        for place, item in enumerate(self._order(), 1):
            if self._is_alias(item):
                continue
            if (loose := self._loose(item, known, texts)) is not None:
                return self._ungrouped_message(place, "ORDER BY clause", loose, group)
        return None

    def _ungrouped_message(
        self, place: int, clause: str, column: Column, group: exp.Group | None
    ) -> str:
        name = self._scope.shown(column)
        if group is None:
            return (
                f"In aggregated query without GROUP BY, expression #{place} of {clause} contains "
                f"nonaggregated column '{name}'; {_MODE}"
            )
        return (
            f"Expression #{place} of {clause} is not in GROUP BY clause and contains nonaggregated "
            f"column '{name}' which is not functionally dependent on columns in GROUP BY clause; "
            f"{_MODE}"
        )

    def _undistinct(self) -> str | None:
        """Of a ``SELECT DISTINCT`` only what it shows can be the order."""
        shown = {item.unalias().sql().lower() for item in self._select.expressions}
        items = list(self._items())
        known = {item for item in items if isinstance(item, tuple)}
        for item in items:
            if isinstance(item, exp.Column) and (column := self._scope.resolve(item)) is not None:
                known.add(column)
        for place, item in enumerate(self._order(), 1):
            if self._is_alias(item) or item.sql().lower() in shown:
                continue
            if (loose := self._loose(item, known, frozenset())) is not None:
                return (
                    f"Expression #{place} of ORDER BY clause is not in SELECT list, references "
                    f"column '{self._scope.shown(loose)}' which is not in SELECT list; this is "
                    "incompatible with DISTINCT"
                )
        return None

    def _items(self) -> Iterator[Node]:
        """What the query shows; stars as the columns that they stand for."""
        for item in self._select.expressions:
            if not item.is_star:
                yield item.unalias()
                continue
            only = item.table.lower() if isinstance(item, exp.Column) else ""
            for alias, relation in self._scope.relations.items():
                if only in ("", alias):
                    yield from ((alias, name) for name in relation.columns)

    def _meant(self, item: Node) -> Node:
        """What an element of ``GROUP BY`` means: a column first, then an alias, a position."""
        if isinstance(item, exp.Literal) and item.is_int:
            place = int(item.this)
            if 1 <= place <= len(self._select.expressions):
                return self._select.expressions[place - 1].unalias()
        if isinstance(item, exp.Column) and self._scope.resolve(item) is None:
            return self._aliases.get(item.name.lower(), item)
        return item

    def _is_alias(self, item: Node) -> bool:
        return (
            isinstance(item, exp.Column) and not item.table and item.name.lower() in self._aliases
        )

    def _loose(self, item: Node, known: set[Column], texts: frozenset[str]) -> Column | None:
        """A column in `item`, outside aggregates and subqueries, that is not determined."""

        def settled(node: Node) -> bool:
            return (
                isinstance(node, (exp.AggFunc, exp.AnyValue, exp.Query, exp.Window))
                or node.sql().lower() in texts
            )

        for node in item.walk(prune=settled):
            if isinstance(node, exp.Column) and node.sql().lower() not in texts:
                column = self._scope.resolve(node)
                if column is not None and column not in known:
                    return column
        return None


def _aggregates(item: Node) -> bool:
    return any(
        isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window)
        for node in own_nodes(item)
    )
