"""What the names of one ``SELECT`` mean, and which columns a set of columns determines.

Functional dependencies as MySQL 8 finds them: a key determines its table's columns; an equality
in ``WHERE`` or ``ON`` determines one side by the other, or by a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

Node = Any
"""Of a parsed statement: sqlglot's `Expression`, which newer versions call `Expr`."""
UNREADABLE = (SqlglotError, RecursionError, LookupError, ValueError, TypeError, AttributeError)
"""What sqlglot raises over texts that it cannot read: mostly its own errors; not for all."""
Column = tuple[str, str]
"""A relation's alias and a column's name, both in lower case."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, or the result of a subquery, as a ``FROM`` clause has it."""

    shown: str
    """How messages begin its columns' names: ``database.alias``."""
    columns: Mapping[str, str]
    """Names in lower case → as they were declared."""
    keys: tuple[frozenset[str], ...] = ()
    """Sets of columns of which each determines the row."""


Tables = Mapping[str, Relation]
"""The tables of the current database by their names in lower case."""


def own_nodes(root: Node) -> Iterator[Node]:
    """The nodes of an expression, subqueries not entered."""
    yield from root.walk(prune=lambda node: isinstance(node, exp.Query) and node is not root)


def from_clause(select: exp.Select) -> Node | None:
    """What follows ``FROM``, first."""
    found = select.args.get("from_") or select.args.get("from")  # named so before sqlglot 28
    return found.this if isinstance(found, exp.From) else None


class Scope:
    """The relations of one ``SELECT`` and what holds between their columns.

    Args:
        select: The query.
        tables: The tables that there are.
        database: The current database, for messages.

    Raises:
        LookupError: It reads from what is not known here.
    """

    def __init__(self, select: exp.Select, tables: Tables, database: str) -> None:
        self._tables = tables
        self._database = database
        self.relations: dict[str, Relation] = {}
        self._rules: list[tuple[frozenset[Column], Column]] = []
        first = from_clause(select)
        if first is not None:
            self._add(first)
        joins: list[exp.Join] = select.args.get("joins") or []
        for join in joins:
            self._add(join.this)
        for join in joins:
            self._join(join)
        if where := select.args.get("where"):
            self._learn(where.this)
        self._rules += list(self._key_rules())

    def resolve(self, column: exp.Column) -> Column | None:
        """Which column a name means; None for an alias or a column of an outer query."""
        name, table = column.name.lower(), column.table.lower()
        for alias, relation in self.relations.items():
            if name in relation.columns and table in ("", alias):
                return alias, name
        return None

    def shown(self, column: Column) -> str:
        """A column's full name, as messages have it."""
        relation = self.relations[column[0]]
        return f"{relation.shown}.{relation.columns[column[1]]}"

    def determined(self, by: Iterable[Column]) -> set[Column]:
        """The columns that have one value wherever those of `by` have."""
        known = set(by)
        grew = True
        while grew:
            new = {to for given, to in self._rules if to not in known and given <= known}
            known |= new
            grew = bool(new)
        return known

    def _add(self, source: Node) -> None:
        alias = source.alias_or_name.lower()
        if isinstance(source, exp.Table) and not source.args.get("joins"):
            table = self._tables[source.name.lower()]
            shown = f"{source.db or self._database}.{source.alias_or_name}"
            self.relations[alias] = Relation(shown, table.columns, table.keys)
        elif isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select):
            self.relations[alias] = self._derived(source.alias_or_name, source.this)
        else:
            raise LookupError(alias)

    def _derived(self, alias: str, select: exp.Select) -> Relation:
        names = [item.alias_or_name for item in select.expressions]
        if any(item.is_star for item in select.expressions):
            inner = Scope(select, self._tables, self._database)
            names = [name for r in inner.relations.values() for name in r.columns.values()]
        return Relation(alias, {name.lower(): name for name in names}, tuple(_keys(select)))

    def _join(self, join: exp.Join) -> None:
        optional = join.side in ("LEFT", "RIGHT", "FULL")
        inner = join.this.alias_or_name.lower() if join.side == "LEFT" else None
        if on := join.args.get("on"):
            self._learn(on, inner, constants=not optional)
        for name in join.args.get("using") or []:
            sides = [(a, name.name.lower()) for a, r in self.relations.items()]
            sides = [side for side in sides if side[1] in self.relations[side[0]].columns]
            for one, two in pairwise(sides):
                self._rules += [(frozenset({one}), two), (frozenset({two}), one)]

    def _learn(self, condition: Node, into: str | None = None, constants: bool = True) -> None:
        """Take the equalities that a condition enforces.

        Args:
            condition: The condition.
            into: Only the columns of this relation are determined by it (an outer join's).
            constants: Whether a constant determines a column.
        """
        condition = condition.unnest()
        if isinstance(condition, exp.And):
            self._learn(condition.left, into, constants)
            self._learn(condition.right, into, constants)
        elif isinstance(condition, exp.EQ):
            for to, given in ((condition.left, condition.right), (condition.right, condition.left)):
                column = self.resolve(to) if isinstance(to, exp.Column) else None
                if column is None or (into is not None and column[0] != into):
                    continue
                sources = self._columns(given)
                if sources or constants:
                    self._rules.append((frozenset(sources), column))

    def _columns(self, expression: Node) -> set[Column]:
        columns = (n for n in own_nodes(expression) if isinstance(n, exp.Column))
        return {found for column in columns if (found := self.resolve(column)) is not None}

    def _key_rules(self) -> Iterator[tuple[frozenset[Column], Column]]:
        for alias, relation in self.relations.items():
            for key in relation.keys:
                given = frozenset((alias, name) for name in key)
                for name in relation.columns:
                    if name not in key:
                        yield given, (alias, name)


def _keys(select: exp.Select) -> Iterator[frozenset[str]]:
    """The keys of a subquery's result, as far as its grouping makes one."""
    group = select.args.get("group")
    if group is None:
        if any(isinstance(n, exp.AggFunc) for item in select.expressions for n in own_nodes(item)):
            yield frozenset()  # a single row
        return
    names = {
        item.unalias().sql().lower(): item.alias_or_name.lower() for item in select.expressions
    }
    grouped = [names.get(one.sql().lower()) for one in group.expressions]
    key = frozenset(name for name in grouped if name is not None)
    if len(key) == len(grouped):
        yield key
