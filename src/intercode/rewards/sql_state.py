"""How well a task was done that asks for a change: the tables as they were left.

**Equal** means: the same tables and views by name, with columns of the same names and of types of
the same family, and the same rows as a multiset, values compared as in a result
(`intercode.rewards.sql_compare`). The order of columns and rows, the names of indexes, defaults
and constraints are not compared: what they do to the rows is.

**The overlap** counts what was changed: each table, view and row that one state has and the
pristine one has not, or the reverse. It is Dice's coefficient of gold's changes and the agent's,
so that doing nothing is worth 0, and so is whatever gold left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from intercode.databases.base import Table, Value
from intercode.rewards.sql_compare import comparable

State = Mapping[str, Table]

_FAMILIES = (
    ("boolean", r"bool"),
    ("text", r"char|text|clob|enum|set|string|uuid|json"),
    ("moment", r"date|time|year|interval"),
    ("bytes", r"blob|binary|bytea"),
    ("number", r"int|serial|real|floa|doub|dec|num|money|bit"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """How an agent's change compares with gold's."""

    equal: bool
    overlap: float
    tables: float
    """The share of the tables and views, of those that either changed, that are as gold's."""
    reason: str = ""
    """In words, why they are not equal."""


def compare_states(pristine: State, gold: State, agent: State) -> Change:
    """Compare what an agent left with what gold left, both begun from the pristine state."""
    states = [_by_name(state) for state in (pristine, gold, agent)]
    names = sorted(set().union(*states))
    wanted: Counter[Hashable] = Counter()
    done: Counter[Hashable] = Counter()
    touched, wrong = [], []
    for name in names:
        before, golden, left = _items(name, [state.get(name) for state in states])
        wanted += _changes(name, before, golden)
        done += _changes(name, before, left)
        if golden != left:
            wrong.append(name)
        if golden != left or golden != before:
            touched.append(name)
    right, total = (wanted & done).total(), wanted.total() + done.total()
    if not wrong:
        return Change(True, 1.0, 1.0)
    overlap = 2 * right / total if total else 0.0
    return Change(False, overlap, 1 - len(wrong) / len(touched), _reason(wrong, states))


def family(declared: str) -> str:
    """What kind of values a declared type holds: ``INTEGER`` and ``DECIMAL(8,2)`` hold numbers."""
    for name, pattern in _FAMILIES:
        if re.search(pattern, declared, re.IGNORECASE):
            return name
    return declared.lower()


def _by_name(state: State) -> dict[str, Table]:
    return {key: state[name] for name, key in _keys(state).items()}


def _keys(names: Iterable[str]) -> dict[str, str]:
    """Each name's key, which is the same in capitals; but PostgreSQL can have both at once."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (name != name.lower(), name)):
        keys[name] = name if name.lower() in taken else name.lower()
        taken.add(name.lower())
    return keys


def _items(name: str, tables: Sequence[Table | None]) -> list[Counter[Hashable]]:
    """What there is of a table in each of the states: the table itself and its rows."""
    if all(table is tables[0] or table == tables[0] for table in tables[1:]):
        return [Counter()] * len(tables)  # it is the same in all, and that is all that counts
    columns = [_columns(table) for table in tables]
    for column in sorted(set().union(*columns)):
        there = [column in own for own in columns]
        values = [own[column] for own, has in zip(columns, there, strict=True) if has]
        merged = iter(comparable(list(chain.from_iterable(values))))
        for own, has in zip(columns, there, strict=True):
            if has:
                own[column] = list(islice(merged, len(own[column])))
    return [
        Counter() if table is None else Counter(_rows(table, own))
        for table, own in zip(tables, columns, strict=True)
    ]


def _columns(table: Table | None) -> dict[str, Sequence[Value]]:
    """The values of a table's columns, by their names."""
    if table is None:
        return {}
    values = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    keys = _keys(name for name, _ in table.columns)
    names = [keys[name] for name, _ in table.columns]
    return dict(zip(names, values, strict=True))


def _rows(table: Table, columns: Mapping[str, Sequence[Value]]) -> Iterator[Hashable]:
    keys = _keys(name for name, _ in table.columns)
    types = {keys[name]: family(declared) for name, declared in table.columns}
    shape = tuple(sorted(types.items())) if table.kind == "table" else tuple(sorted(types))
    yield "made", table.kind, shape
    names = tuple(sorted(columns))
    for row in zip(*(columns[name] for name in names), strict=True):
        yield names, row


def _changes(name: str, before: Counter[Hashable], after: Counter[Hashable]) -> Counter[Hashable]:
    changes: Counter[Hashable] = Counter()
    for what, items in (("gone", before - after), ("new", after - before)):
        changes.update({(name, what, item): count for item, count in items.items()})
    return changes


def _reason(wrong: Sequence[str], states: Sequence[Mapping[str, Table]]) -> str:
    pristine, gold, agent = states
    parts = []
    for name in wrong:
        if name not in agent:
            parts.append(f"{name} is missing")
        elif name not in gold:
            parts.append(f"{name} is extra")
        elif pristine.get(name) == agent[name]:
            parts.append(f"{name} is unchanged")
        else:
            parts.append(f"{name} is not as it should be")
    return ", ".join(parts)
