"""The rule ``ONLY_FULL_GROUP_BY`` of MySQL 8, the server of the recorded runs.

MySQL refuses a query with an output column that the query's groups do not determine. MySQL refused
11 of the release's golds, and many queries of agents. Other engines lack this check. MariaDB's
mode of the same name ignores functional dependencies, and would refuse valid queries. SQLite has no
such mode. Therefore this module checks the text of a query, with the keys of the tables. The
dependencies are those of MySQL 8. A key determines the columns of its table. An equality in
``WHERE`` or ``ON`` determines one side by the other side, or by a constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

Node = Any
"""Type of a parsed statement's nodes: sqlglot's ``Expression``, in newer versions ``Expr``."""
PARSE_ERRORS = (SqlglotError, RecursionError, LookupError, ValueError, TypeError, AttributeError)
"""Exceptions that sqlglot raises for texts that it cannot parse; mostly, `SqlglotError`."""
Column = tuple[str, str]
"""Type of a column: the alias of its relation and its name, both in lower case."""


@dataclass(frozen=True, slots=True)
class QueryRelation:
    """A relation in a ``FROM`` clause: a table, or the result of a subquery."""

    display_name: str
    """Prefix of the relation's columns in messages: ``database.alias``, or a subquery's alias. In
    `Tables` the prefix has no effect, because a query may give each table another alias."""
    columns: Mapping[str, str]
    """Name of a column in lower case → the name as declared."""
    keys: tuple[frozenset[str], ...] = ()
    """Sets of columns; each set determines all other columns of a row."""


Tables = Mapping[str, QueryRelation]
"""Type of the tables in the current database: name in lower case → relation."""

_EXEMPT_NODES = (exp.AggFunc, exp.AnyValue, exp.Query, exp.Window)
"""Expressions within which columns need not be determined."""
_MODE = "this is incompatible with sql_mode=only_full_group_by"
_AGGREGATION = re.compile(
    r"\bGROUP\s+BY\b|\bDISTINCT\b|\b(?:COUNT|SUM|AVG|MIN|MAX|GROUP_CONCAT|STD\w*|VAR\w*)\s*\(",
    re.IGNORECASE,
)


def refusal(sql: str, tables: Tables, database: str) -> str | None:
    """Return the message with which MySQL 8 refuses a query by the rule; None for a valid query.

    Args:
        sql: The statement. A statement that cannot be parsed counts as valid, and so does a part
            that reads from unknown tables: the engine judges these.
        tables: The tables of the current database.
        database: The name of the current database.
    """
    if not _AGGREGATION.search(sql) or (tree := _parse_query(sql)) is None:
        return None
    for select in tree.find_all(exp.Select):
        try:
            message = _GroupByCheck(select, SelectScope(select, tables, database)).message()
        except (LookupError, RecursionError):
            continue
        if message is not None:
            return message
    return None


@lru_cache(maxsize=4096)
def _parse_query(sql: str) -> Node:
    try:
        tree = sqlglot.parse_one(sql, read="mysql")
    except PARSE_ERRORS:
        return None
    return tree if isinstance(tree, exp.Query) else None


class _GroupByCheck:
    """The check of one ``SELECT`` against the rule, without subqueries."""

    def __init__(self, select: exp.Select, scope: SelectScope) -> None:
        self._select = select
        self._scope = scope
        self._aliases = {item.alias.lower(): item.this for item in select.expressions if item.alias}

    def message(self) -> str | None:
        select, group = self._select, self._select.args.get("group")
        order, having = select.args.get("order"), select.args.get("having")
        order_items = (
            [expression.this for expression in order.expressions] if order is not None else []
        )
        candidate_items = [None if self._is_alias(item) else item for item in order_items]
        output_items = list(self._output_items())
        expressions = [
            *select.expressions,
            *order_items,
            *([having.this] if having is not None else []),
        ]
        if group is not None or any(map(_has_aggregate, expressions)):
            group_items = (
                [self._resolve_group_item(expression) for expression in group.expressions]
                if group is not None
                else []
            )
            determined_texts = frozenset(expression.sql().lower() for expression in group_items)
            determined_columns = self._scope.closure(self._columns(group_items))
            for clause, clause_items in (
                ("SELECT list", output_items),
                ("ORDER BY clause", candidate_items),
            ):
                if violation := self._find_undetermined(
                    clause_items, determined_columns, determined_texts
                ):
                    return _ungrouped_message(clause, *violation, is_grouped=group is not None)
        elif select.args.get("distinct"):  # with DISTINCT, ORDER BY may use only output columns
            determined_texts = frozenset(item.sql().lower() for item in output_items)
            candidate_items = [
                None if item is None or item.sql().lower() in determined_texts else item
                for item in candidate_items
            ]
            if violation := self._find_undetermined(
                candidate_items, set(self._columns(output_items))
            ):
                return (
                    f"Expression #{violation[0]} of ORDER BY clause is not in SELECT list, "
                    f"references column '{violation[1]}' which is not in SELECT list; this is "
                    "incompatible with DISTINCT"
                )
        return None

    def _output_items(self) -> Iterator[Node]:
        """Yield the output expressions of the query, with the columns in place of a star."""
        for item in self._select.expressions:
            if not item.is_star:
                yield item.unalias()
                continue
            table_alias = item.table.lower() if isinstance(item, exp.Column) else ""
            for alias, relation in self._scope.relations.items():
                if table_alias in ("", alias):
                    yield from (
                        exp.column(column_name, table=alias) for column_name in relation.columns
                    )

    def _resolve_group_item(self, item: Node) -> Node:
        """Return the expression that a ``GROUP BY`` item denotes.

        The item may be the position of an output expression, a column, or an alias.
        """
        if isinstance(item, exp.Literal) and item.is_int:
            position = int(item.this)
            if 1 <= position <= len(self._select.expressions):
                return self._select.expressions[position - 1].unalias()
        if isinstance(item, exp.Column) and self._scope.resolve(item) is None:
            return self._aliases.get(item.name.lower(), item)
        return item

    def _is_alias(self, item: Node) -> bool:
        return (
            isinstance(item, exp.Column) and not item.table and item.name.lower() in self._aliases
        )

    def _columns(self, items: Sequence[Node]) -> Iterator[Column]:
        """Yield the columns of relations among the expressions."""
        for item in items:
            if isinstance(item, exp.Column) and (column := self._scope.resolve(item)) is not None:
                yield column

    def _find_undetermined(
        self,
        items: Sequence[Node],
        determined_columns: set[Column],
        determined_texts: frozenset[str] = frozenset(),
    ) -> tuple[int, str] | None:
        """Return the first column that is not determined, or None.

        The result has the position of the column's expression, from 1, and the column's full name.

        Args:
            items: The expressions to check; None entries are skipped.
            determined_columns: The columns that count as determined.
            determined_texts: The expressions that are determined as a whole, as SQL in lower case.
        """

        def is_settled(node: Node) -> bool:
            return isinstance(node, _EXEMPT_NODES) or node.sql().lower() in determined_texts

        for position, item in enumerate(items, 1):
            for node in item.walk(prune=is_settled) if item is not None else ():
                if isinstance(node, exp.Column) and node.sql().lower() not in determined_texts:
                    column = self._scope.resolve(node)
                    if column is not None and column not in determined_columns:
                        return position, self._scope.display_name(column)
        return None


def _ungrouped_message(clause: str, position: int, column_name: str, is_grouped: bool) -> str:
    if not is_grouped:
        return (
            f"In aggregated query without GROUP BY, expression #{position} of {clause} contains "
            f"nonaggregated column '{column_name}'; {_MODE}"
        )
    return (
        f"Expression #{position} of {clause} is not in GROUP BY clause and contains nonaggregated "
        f"column '{column_name}' which is not functionally dependent on columns in GROUP BY "
        "clause; "
        f"{_MODE}"
    )


def _has_aggregate(expression: Node) -> bool:
    return any(
        isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window)
        for node in _own_nodes(expression)
    )


def _own_nodes(root: Node) -> Iterator[Node]:
    """Yield the nodes of an expression, except those of subqueries."""
    yield from root.walk(prune=lambda node: isinstance(node, exp.Query) and node is not root)


def _from_clause(select: exp.Select) -> Node | None:
    """Return the first table or subquery after ``FROM``."""
    clause = select.args.get("from_") or select.args.get("from")  # "from" before sqlglot 28
    return clause.this if isinstance(clause, exp.From) else None


class SelectScope:
    """The relations that one ``SELECT`` reads, and the dependencies between their columns.

    Args:
        select: The query.
        tables: The tables of the database.
        database: The name of the current database, for messages.

    Raises:
        LookupError: The query reads from an unknown table, or from anything but a table or a
            subquery with a single ``SELECT``.
    """

    def __init__(self, select: exp.Select, tables: Tables, database: str) -> None:
        self._tables = tables
        self._database = database
        self.relations: dict[str, QueryRelation] = {}
        self._rules: list[tuple[frozenset[Column], Column]] = []
        relation_node = _from_clause(select)
        if relation_node is not None:
            self._add(relation_node)
        joins: list[exp.Join] = select.args.get("joins") or []
        for join in joins:
            self._add(join.this)
        for join in joins:
            self._join(join)
        if where_clause := select.args.get("where"):
            self._learn(where_clause.this)
        for alias, relation in self.relations.items():
            for key in relation.keys:
                key_columns = frozenset((alias, column_name) for column_name in key)
                self._rules += [
                    (key_columns, (alias, column_name)) for column_name in relation.columns
                ]

    def resolve(self, column: exp.Column) -> Column | None:
        """Return the column that a name denotes; None for an alias or an outer query's column."""
        column_name, table_alias = column.name.lower(), column.table.lower()
        for alias, relation in self.relations.items():
            if column_name in relation.columns and table_alias in ("", alias):
                return alias, column_name
        return None

    def display_name(self, column: Column) -> str:
        """Return the full name of a column for messages."""
        relation = self.relations[column[0]]
        return f"{relation.display_name}.{relation.columns[column[1]]}"

    def closure(self, columns: Iterable[Column]) -> set[Column]:
        """Return all columns that the given columns determine, including the given ones."""
        determined_columns = set(columns)
        while (
            derived_columns := {
                target for determinants, target in self._rules if determinants <= determined_columns
            }
            - determined_columns
        ):
            determined_columns |= derived_columns
        return determined_columns

    def _add(self, relation_node: Node) -> None:
        alias = relation_node.alias_or_name.lower()
        if isinstance(relation_node, exp.Table) and not relation_node.args.get("joins"):
            table = self._tables[relation_node.name.lower()]
            display_name = f"{relation_node.db or self._database}.{relation_node.alias_or_name}"
            self.relations[alias] = QueryRelation(display_name, table.columns, table.keys)
        elif isinstance(relation_node, exp.Subquery) and isinstance(relation_node.this, exp.Select):
            self.relations[alias] = self._subquery_relation(
                relation_node.alias_or_name, relation_node.this
            )
        else:
            raise LookupError(alias)

    def _subquery_relation(self, alias: str, select: exp.Select) -> QueryRelation:
        column_names = [item.alias_or_name for item in select.expressions]
        if any(item.is_star for item in select.expressions):
            subquery_scope = SelectScope(select, self._tables, self._database)
            column_names = [
                column_name
                for relation in subquery_scope.relations.values()
                for column_name in relation.columns.values()
            ]
        return QueryRelation(
            alias,
            {column_name.lower(): column_name for column_name in column_names},
            tuple(_subquery_keys(select)),
        )

    def _join(self, join: exp.Join) -> None:
        is_outer = join.side in ("LEFT", "RIGHT", "FULL")
        nullable_alias = join.this.alias_or_name.lower() if join.side == "LEFT" else None
        if condition := join.args.get("on"):
            self._learn(condition, nullable_alias, allow_constants=not is_outer)
        for using_column in join.args.get("using") or []:
            side_columns = [
                (alias, using_column.name.lower()) for alias, relation in self.relations.items()
            ]
            side_columns = [
                side for side in side_columns if side[1] in self.relations[side[0]].columns
            ]
            for left_column, right_column in pairwise(side_columns):
                self._rules += [
                    (frozenset({left_column}), right_column),
                    (frozenset({right_column}), left_column),
                ]

    def _learn(
        self, condition: Node, target_alias: str | None = None, allow_constants: bool = True
    ) -> None:
        """Add the dependencies that follow from the equalities of a condition.

        Args:
            condition: The condition.
            target_alias: The only relation whose columns the condition determines (in an outer
                join); None: any relation.
            allow_constants: Whether an equality with a constant determines a column.
        """
        condition = condition.unnest()
        if isinstance(condition, exp.And):
            self._learn(condition.left, target_alias, allow_constants)
            self._learn(condition.right, target_alias, allow_constants)
        elif isinstance(condition, exp.EQ):
            for target, determinant in (
                (condition.left, condition.right),
                (condition.right, condition.left),
            ):
                column = self.resolve(target) if isinstance(target, exp.Column) else None
                if column is None or (target_alias is not None and column[0] != target_alias):
                    continue
                determinant_columns = self._columns(determinant)
                if determinant_columns or allow_constants:
                    self._rules.append((frozenset(determinant_columns), column))

    def _columns(self, expression: Node) -> set[Column]:
        columns = (node for node in _own_nodes(expression) if isinstance(node, exp.Column))
        return {
            resolved_column
            for column in columns
            if (resolved_column := self.resolve(column)) is not None
        }


def _subquery_keys(select: exp.Select) -> Iterator[frozenset[str]]:
    """Yield the keys of a subquery's result that follow from its groups or aggregates."""
    group = select.args.get("group")
    if group is None:
        if any(
            isinstance(node, exp.AggFunc)
            for item in select.expressions
            for node in _own_nodes(item)
        ):
            yield frozenset()  # the result has a single row
        return
    aliases_by_sql = {
        item.unalias().sql().lower(): item.alias_or_name.lower() for item in select.expressions
    }
    group_names = [
        aliases_by_sql.get(group_expression.sql().lower()) for group_expression in group.expressions
    ]
    key = frozenset(name for name in group_names if name is not None)
    if len(key) == len(group_names):
        yield key
