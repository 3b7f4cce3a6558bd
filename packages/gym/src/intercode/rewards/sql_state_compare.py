"""Comparison of two states of a database: the states after gold and after the agent.

*Equal* states have the same tables and views by name. The columns of equal tables have the same
names, and types of the same family (`family`). Their rows are the same multiset, with values
compared like those of a result (`sql_compare`). The constraints are the same, whatever their names,
and so are the events of the triggers. The order of columns and rows, and indexes that serve speed
alone, are not compared. A table that the change creates may have more constraints than gold's
table, if these constraints only determine how its own columns are filled (`_HARMLESS_KINDS`).

*The overlap* counts changes: tables, views, constraints and rows that only one of two states has,
the pristine state or a later one. The formula is Dice's coefficient of gold's changes and the
agent's. Doing nothing is therefore worth 0. Items that neither gold nor the agent changed have no
influence.

`intercode.rewards.sql_views_triggers` compares the effects of views, triggers and checks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from intercode.databases.base import TableConstraint, TableState, Value
from intercode.rewards.sql_compare import comparable_values

State = Mapping[str, TableState]

_FAMILIES = (
    ("boolean", r"bool"),
    ("text", r"char|text|clob|enum|set|string|uuid|json"),
    ("moment", r"date|time|year|interval"),
    ("bytes", r"blob|binary|bytea"),
    ("number", r"int|serial|real|floa|doub|dec|num|money|bit"),
)


_HARMLESS_KINDS = frozenset(("not null", "default", "foreign key"))
_WORD = re.compile(r"\w+|'(?:[^']|'')*'|[^\w\s\"`\[\]]")
_TRAIT = re.compile(
    r"on conflict \w+|collate (?!binary\b)\w+|deferrable initially deferred|strict$"
)
"""Properties of columns, constraints and tables that only the CREATE statement shows."""
_EVENT = re.compile(r"\b(insert|update|delete|truncate)\b", re.IGNORECASE)
_HEAD = re.compile(
    r"""\s*CREATE\s.*?\bTRIGGER\s+(?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?:\w+|"[^"]*"|`[^`]*`|\[[^\]]*\])\s*\.\s*)?(?:\w+|"[^"]*"|`[^`]*`|\[[^\]]*\])
    (?P<events>.*?)\bON\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class DatabaseStateComparison:
    """The outcome of a comparison of an agent's change with gold's."""

    equal: bool
    overlap: float
    tables: float
    """The share of right tables and views among those that gold or the agent changed."""
    reason: str = ""
    """The reason, in words, why the states are not equal."""


def compare_states(pristine_state: State, gold: State, agent: State) -> DatabaseStateComparison:
    """Compare the agent's final state with gold's; both started from the pristine state."""
    states = [_index_by_name(state) for state in (pristine_state, gold, agent)]
    states[2] = {
        name: _drop_harmless_constraints(table, states[1][name])
        if name in states[1] and name not in states[0]
        else table
        for name, table in states[2].items()
    }
    names = sorted(set().union(*states))
    gold_changes: Counter[Hashable] = Counter()
    agent_changes: Counter[Hashable] = Counter()
    changed_names, wrong_names = [], []
    for name in names:
        pristine_items, gold_items, agent_item_counts = _count_rows(
            name, [state.get(name) for state in states]
        )
        gold_changes += _count_changes(name, pristine_items, gold_items)
        agent_changes += _count_changes(name, pristine_items, agent_item_counts)
        if gold_items != agent_item_counts:
            wrong_names.append(name)
        if gold_items != agent_item_counts or gold_items != pristine_items:
            changed_names.append(name)
    right_count, total = (
        (gold_changes & agent_changes).total(),
        gold_changes.total() + agent_changes.total(),
    )
    if not wrong_names:
        return DatabaseStateComparison(True, 1.0, 1.0)
    overlap = 2 * right_count / total if total else 0.0
    return DatabaseStateComparison(
        False,
        overlap,
        1 - len(wrong_names) / len(changed_names),
        _difference_reason(wrong_names, states),
    )


def family(declared_type: str) -> str:
    """Return the family of a declared type: ``INTEGER`` and ``DECIMAL(8,2)`` are numbers."""
    for name, pattern in _FAMILIES:
        if re.search(pattern, declared_type, re.IGNORECASE):
            return name
    return declared_type.lower()


def normalise_sql(text: str) -> str:
    """Return an SQL text in a normal form: without differences in blanks, case or quotes of names.

    Parentheses around the whole text are removed, too.
    """
    words = (word if word[0] == "'" else word.lower() for word in _WORD.findall(text))
    normal_text = " ".join(words)
    while (
        normal_text.startswith("( ")
        and normal_text.endswith(" )")
        and _is_parenthesised(normal_text)
    ):
        normal_text = normal_text[2:-2]
    return normal_text


def events(trigger_definition: str) -> list[str]:
    """Return the events of a trigger, from the statement that creates it."""
    head = _HEAD.match(trigger_definition)
    event_names = _EVENT.findall(head["events"] if head else trigger_definition)
    return sorted({event.lower() for event in (event_names if head else event_names[:1])})


def _is_parenthesised(normal_text: str) -> bool:
    """Return whether the last parenthesis closes the first."""
    depth = 0
    for index, word in enumerate(words := normal_text.split(" ")):
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return index == len(words) - 1
    return False


def _drop_harmless_constraints(agent: TableState, gold: TableState) -> TableState:
    """Return an agent's new table without harmless constraints that gold's table lacks."""
    gold_rules = _constraint_keys(gold)
    retained_constraints = [
        c
        for c in agent.constraints
        if c.kind not in _HARMLESS_KINDS or _constraint_keys(gold, c) & gold_rules
    ]
    return replace(agent, constraints=tuple(retained_constraints))


def _constraint_keys(table: TableState, *constraints: TableConstraint) -> set[Hashable]:
    """Return constraints of a table in a form in which equivalent constraints are equal.

    Args:
        table: The table.
        *constraints: The constraints; none: all constraints of the table.
    """
    keys = {
        frozenset(map(str.lower, key_constraint.columns))
        for key_constraint in table.constraints
        if key_constraint.kind == "primary key"
    }
    rules: set[Hashable] = set()
    for constraint in constraints or table.constraints:
        if constraint.kind == "check":
            continue  # `sql_views_triggers` compares checks by effect
        columns = tuple(map(str.lower, constraint.columns))
        column_set = frozenset(columns)
        if constraint.kind == "not null" and any(column_set <= key for key in keys):
            continue  # a primary key implies NOT NULL
        if constraint.kind == "unique" and not constraint.text and column_set in keys:
            continue
        text = normalise_sql(constraint.text)
        if constraint.kind == "default" and (text == "null" or text.startswith("nextval")):
            continue
        if constraint.kind == "foreign key":
            rules.add((constraint.kind, columns, text))
        else:
            rules.add((constraint.kind, column_set, text))
    return rules


def _index_by_name(state: State) -> dict[str, TableState]:
    return {key: state[name] for name, key in _lower_keys(state).items()}


def _lower_keys(names: Iterable[str]) -> dict[str, str]:
    """Map names to lower-case keys.

    PostgreSQL can have two names that differ only in case. The second of them keeps its own form.
    """
    keys: dict[str, str] = {}
    used_keys: set[str] = set()
    for name in sorted(names, key=lambda name: (name != name.lower(), name)):
        keys[name] = name if name.lower() in used_keys else name.lower()
        used_keys.add(name.lower())
    return keys


def _count_rows(name: str, tables: Sequence[TableState | None]) -> list[Counter[Hashable]]:
    """List a table's items in each state: kind, columns, constraints, triggers and rows."""
    if all(table is tables[0] or table == tables[0] for table in tables[1:]):
        return [Counter()] * len(tables)  # a table without changes needs no items
    columns = [_column_values(table) for table in tables]
    for column in sorted(set().union(*columns)):
        is_in_table = [column in table_columns for table_columns in columns]
        values = [
            table_columns[column]
            for table_columns, has_column in zip(columns, is_in_table, strict=True)
            if has_column
        ]
        merged_values = iter(comparable_values(list(chain.from_iterable(values))))
        for table_columns, has_column in zip(columns, is_in_table, strict=True):
            if has_column:
                table_columns[column] = list(islice(merged_values, len(table_columns[column])))
    return [
        Counter() if table is None else Counter(_hashable_rows(table, table_columns))
        for table, table_columns in zip(tables, columns, strict=True)
    ]


def _column_values(table: TableState | None) -> dict[str, Sequence[Value]]:
    """Return the values of a table's columns, by the lower-case keys of the columns."""
    if table is None:
        return {}
    values = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    keys = _lower_keys(name for name, _ in table.columns)
    names = [keys[name] for name, _ in table.columns]
    return dict(zip(names, values, strict=True))


def _hashable_rows(table: TableState, columns: Mapping[str, Sequence[Value]]) -> Iterator[Hashable]:
    keys = _lower_keys(name for name, _ in table.columns)
    types = {keys[name]: family(declared_type) for name, declared_type in table.columns}
    shape = tuple(sorted(types.items())) if table.kind == "table" else tuple(sorted(types))
    yield "made", table.kind, shape
    yield from _constraint_keys(table)
    if table.kind == "table":
        yield from ({("trait", word) for word in _TRAIT.findall(normalise_sql(table.definition))})
    yield from sorted(
        {("trigger", event) for t in table.triggers for event in events(t.definition)}
    )
    names = tuple(sorted(columns))
    for row in zip(*(columns[name] for name in names), strict=True):
        yield names, row


def _count_changes(
    name: str, old_items: Counter[Hashable], new_items: Counter[Hashable]
) -> Counter[Hashable]:
    changes: Counter[Hashable] = Counter()
    for kind, rows in (("gone", old_items - new_items), ("new", new_items - old_items)):
        changes.update({(name, kind, row): count for row, count in rows.items()})
    return changes


def _difference_reason(
    wrong_names: Sequence[str], states: Sequence[Mapping[str, TableState]]
) -> str:
    pristine_state, gold, agent = states
    descriptions = []
    for name in wrong_names:
        if name not in agent:
            descriptions.append(f"{name} is missing")
        elif name not in gold:
            descriptions.append(f"{name} is extra")
        elif pristine_state.get(name) == agent[name]:
            descriptions.append(f"{name} is unchanged")
        else:
            descriptions.append(f"{name} differs from gold's")
    return ", ".join(descriptions)
