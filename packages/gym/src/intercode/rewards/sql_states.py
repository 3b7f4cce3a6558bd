"""Comparison of two states of a database: of what a task's gold left, and an agent.

*Equal* means: the same tables and views by name, with columns of the same names and of types of the
same family, and the same rows as a multiset, values compared as in a result; the same constraints,
whatever their names; triggers for the same events. The order of columns and rows, and indexes that
serve speed alone, are not compared. A table that the change makes may have more constraints than
gold's, where these say no more than how its own columns are filled: `_HARMLESS`.

*The overlap* counts the changes: each table, view, constraint and row that one state has and the
pristine one has not, or the reverse. It is Dice's coefficient of gold's changes and the agent's, so
that doing nothing is worth 0, and so is whatever gold left alone.

What views and triggers do is compared by `intercode.rewards.sql_programs`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from intercode.databases.base import Constraint, Table, Value
from intercode.rewards.sql_compare import comparable

State = Mapping[str, Table]

_FAMILIES = (
    ("boolean", r"bool"),
    ("text", r"char|text|clob|enum|set|string|uuid|json"),
    ("moment", r"date|time|year|interval"),
    ("bytes", r"blob|binary|bytea"),
    ("number", r"int|serial|real|floa|doub|dec|num|money|bit"),
)


_HARMLESS = frozenset(("not null", "default", "foreign key"))
_WORD = re.compile(r"\w+|'(?:[^']|'')*'|[^\w\s\"`\[\]]")
_TRAIT = re.compile(
    r"on conflict \w+|collate (?!binary\b)\w+|deferrable initially deferred|strict$"
)
"""Properties of constraints that only the definition of a table has."""
_EVENT = re.compile(r"\b(insert|update|delete|truncate)\b", re.IGNORECASE)
_HEAD = re.compile(
    r"""\s*CREATE\s.*?\bTRIGGER\s+(?:IF\s+NOT\s+EXISTS\s+)?
    (?:(?:\w+|"[^"]*"|`[^`]*`|\[[^\]]*\])\s*\.\s*)?(?:\w+|"[^"]*"|`[^`]*`|\[[^\]]*\])
    (?P<events>.*?)\bON\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of a comparison of an agent's change with gold's."""

    equal: bool
    overlap: float
    tables: float
    """The share of tables and views as gold leaves them, of those that either changed."""
    reason: str = ""
    """The reason, in words, why they are not equal."""


def compare_states(pristine: State, gold: State, agent: State) -> Change:
    """Compare what an agent left with what gold left, both begun from the pristine state."""
    states = [_by_name(state) for state in (pristine, gold, agent)]
    states[2] = {
        name: _without_harmless(table, states[1][name])
        if name in states[1] and name not in states[0]
        else table
        for name, table in states[2].items()
    }
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
    return Change(False, overlap, 1 - len(wrong) / len(touched), _why_not(wrong, states))


def family(declared: str) -> str:
    """Return the family of a declared type: ``INTEGER`` and ``DECIMAL(8,2)`` are numbers."""
    for name, pattern in _FAMILIES:
        if re.search(pattern, declared, re.IGNORECASE):
            return name
    return declared.lower()


def normal(text: str) -> str:
    """Return a piece of SQL without what its writers do in different ways: blanks, case, quotes."""
    words = (word if word[0] == "'" else word.lower() for word in _WORD.findall(text))
    plain = " ".join(words)
    while plain.startswith("( ") and plain.endswith(" )") and _is_one(plain):
        plain = plain[2:-2]
    return plain


def events(definition: str) -> list[str]:
    """Return the events that a trigger is for, by the statement that creates it."""
    head = _HEAD.match(definition)
    found = _EVENT.findall(head["events"] if head else definition)
    return sorted({event.lower() for event in (found if head else found[:1])})


def _is_one(plain: str) -> bool:
    """Return whether the first parenthesis is closed by the last."""
    depth = 0
    for index, word in enumerate(words := plain.split(" ")):
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return index == len(words) - 1
    return False


def _without_harmless(agent: Table, gold: Table) -> Table:
    """Return a table that the agent made without harmless constraints that gold's has not."""
    wanted = _rules(gold)
    kept = [c for c in agent.constraints if c.kind not in _HARMLESS or _rules(gold, c) & wanted]
    return replace(agent, constraints=tuple(kept))


def _rules(table: Table, *some: Constraint) -> set[Hashable]:
    """Return constraints of a table, all or some, in a form in which equal ones are equal."""
    keys = {
        frozenset(map(str.lower, c.columns)) for c in table.constraints if c.kind == "primary key"
    }
    rules: set[Hashable] = set()
    for constraint in some or table.constraints:
        if constraint.kind == "check":
            continue  # by what it does
        columns = tuple(map(str.lower, constraint.columns))
        whole = frozenset(columns)
        if constraint.kind == "not null" and any(whole <= key for key in keys):
            continue  # a key says so already
        if constraint.kind == "unique" and not constraint.text and whole in keys:
            continue
        text = normal(constraint.text)
        if constraint.kind == "default" and (text == "null" or text.startswith("nextval")):
            continue
        if constraint.kind == "foreign key":
            rules.add((constraint.kind, columns, text))
        else:
            rules.add((constraint.kind, whole, text))
    return rules


def _by_name(state: State) -> dict[str, Table]:
    return {key: state[name] for name, key in _lower_keys(state).items()}


def _lower_keys(names: Iterable[str]) -> dict[str, str]:
    """Map names to keys without regard to case; but PostgreSQL can have both forms at once."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (name != name.lower(), name)):
        keys[name] = name if name.lower() in taken else name.lower()
        taken.add(name.lower())
    return keys


def _items(name: str, tables: Sequence[Table | None]) -> list[Counter[Hashable]]:
    """List the items of a table in each of the states: the table itself and its rows."""
    if all(table is tables[0] or table == tables[0] for table in tables[1:]):
        return [Counter()] * len(tables)  # it is the same in all, and that is all that counts
    columns = [_columns_of(table) for table in tables]
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


def _columns_of(table: Table | None) -> dict[str, Sequence[Value]]:
    """Return the values of a table's columns, by their names."""
    if table is None:
        return {}
    values = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    keys = _lower_keys(name for name, _ in table.columns)
    names = [keys[name] for name, _ in table.columns]
    return dict(zip(names, values, strict=True))


def _rows(table: Table, columns: Mapping[str, Sequence[Value]]) -> Iterator[Hashable]:
    keys = _lower_keys(name for name, _ in table.columns)
    types = {keys[name]: family(declared) for name, declared in table.columns}
    shape = tuple(sorted(types.items())) if table.kind == "table" else tuple(sorted(types))
    yield "made", table.kind, shape
    yield from _rules(table)
    if table.kind == "table":
        yield from ({("trait", word) for word in _TRAIT.findall(normal(table.definition))})
    yield from sorted(
        {("trigger", event) for t in table.triggers for event in events(t.definition)}
    )
    names = tuple(sorted(columns))
    for row in zip(*(columns[name] for name in names), strict=True):
        yield names, row


def _changes(name: str, before: Counter[Hashable], after: Counter[Hashable]) -> Counter[Hashable]:
    changes: Counter[Hashable] = Counter()
    for what, items in (("gone", before - after), ("new", after - before)):
        changes.update({(name, what, item): count for item, count in items.items()})
    return changes


def _why_not(wrong: Sequence[str], states: Sequence[Mapping[str, Table]]) -> str:
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
