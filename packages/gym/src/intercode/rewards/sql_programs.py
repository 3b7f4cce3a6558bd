"""Views, triggers and checks of a change, compared by what they do.

Their texts may differ. Where they do, gold is run on mutated copies of the database, its views and
triggers are replaced by the agent's, and both must go on giving the same: the rows of each view,
and for triggers the tables after some rows were inserted, updated and deleted. So a view of literal
rows is none of the data. Checks are evaluated for values around the constants in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from intercode.databases.base import Session, Table, Trigger, Value
from intercode.databases.source import Source
from intercode.errors import OutputLimitError, RewardError, TaskError
from intercode.rewards.sql_conditions import Wanted, wanted
from intercode.rewards.sql_copies import COPIES, TRIES, mutated
from intercode.rewards.sql_gold import DIALECTS, parsed
from intercode.rewards.sql_run import Grader
from intercode.rewards.sql_states import State, compare_states, family, normal
from intercode.syntax import quoted
from intercode.task import Task

_PLANTED = 40
"""The most pairs of a column and a constant of triggers that are tried in one table."""
_ASSIGNMENTS = 600
"""The most rows of values for which checks are compared."""


def differing(
    grader: Grader, task: Task, gold: str, source: Source, agent: State
) -> dict[str, str]:
    """Return the tables and views whose programs do something else than gold's, with the reason.

    Args:
        grader: Runs gold.
        task: The task.
        gold: One of its golds, which asks for a change.
        source: The task's database.
        agent: The tables that the agent left, equal to those that gold leaves but for programs.

    Raises:
        RewardError: Gold could not be run.
        DatabaseError: The engine failed.
    """
    change = grader.change(task, gold, source)
    ours, theirs = _folded(change.after), _folded(agent)
    names = [name for name in ours if name in theirs]
    dialect = grader.databases.engine.dialect
    found: dict[str, str] = {}
    for name in names:
        texts = [_checks(state[name][1], dialect) for state in (ours, theirs)]
        if {*map(normal, texts[0])} != {*map(normal, texts[1])} and not _checks_alike(
            grader, task, source, ours[name][1], texts
        ):
            found[theirs[name][0]] = f"{theirs[name][0]} does not check what it should"
    if all(_programs(ours[name][1]) == _programs(theirs[name][1]) for name in names):
        return found
    for place in (source, *_copies(grader, task, gold, source)):
        found |= _compared(grader, task, gold, place, change.after, agent)
    return found


def _folded(state: State) -> dict[str, tuple[str, Table]]:
    return {name.lower(): (name, table) for name, table in state.items()}


def _programs(table: Table) -> list[str]:
    view = [normal(table.definition)] if table.kind == "view" else []
    return view + sorted(normal(_text(trigger)) for trigger in table.triggers)


def _text(trigger: Trigger) -> str:
    return f"{trigger.function};\n{trigger.definition}" if trigger.function else trigger.definition


def _copies(grader: Grader, task: Task, gold: str, source: Source) -> list[Source]:
    """Return mutated copies on which gold can be run, first those on which its views differ."""
    dialect = grader.dialect(task)
    asked = Wanted()
    for tree in parsed(gold, dialect):
        more = wanted(tree)
        asked = Wanted(
            tuple(dict.fromkeys(asked.conditions + more.conditions)),
            max(asked.count, more.count),
            tuple(dict.fromkeys(asked.lookups + more.lookups)),
        )
    there = _views(grader.change(task, gold, source).after)
    found: list[Source] = []
    alike: list[Source] = []
    for gentle, seed in product((True, False), range(TRIES)):
        copy = mutated(source, asked, seed, gentle)
        with suppress(RewardError, TaskError):
            here = _views(grader.change(task, gold, copy).after)
            differs = not all(
                compare_states({}, {n: t}, {n: here[n]}).equal for n, t in there.items()
            )
            (found if differs else alike).append(copy)
        if len(found) == COPIES or (not there and len(alike) == COPIES):
            break
    return (found + alike)[:COPIES]


def _views(state: State) -> dict[str, Table]:
    return {name: table for name, table in state.items() if table.kind == "view"}


def _compared(
    grader: Grader, task: Task, gold: str, source: Source, ours: State, theirs: State
) -> dict[str, str]:
    """Compare gold's programs with the agent's in a database in which gold has made its change."""
    with (
        grader.changed(task, gold, source) as session,
        grader.changed(task, gold, source) as other,
    ):
        dialect = grader.databases.engine.dialect
        if refused := _replaced(other, dialect, ours, theirs):
            return {name: f"{name} cannot be made in a copy of the database" for name in refused}
        found = _different(session, other)
        triggered = {
            name for state in (ours, theirs) for name, table in state.items() if table.triggers
        }
        for name in sorted(triggered - found.keys()):
            texts = [_text(t) for s in (ours, theirs) if name in s for t in s[name].triggers]
            words = {word.lower() for text in texts for word in re.findall(r"\w+", text)}
            read = [other for other in ours if other != name and other.lower() in words]
            probes = Probes(session, dialect, texts)
            for probe in chain(*map(probes.constants, read), probes.all(name)):
                outcomes = [one.execute(probe, max_rows=0).failure for one in (session, other)]
                if (outcomes[0] is None) != (outcomes[1] is None) or _different(session, other):
                    found[name] = f"the triggers of {name} do not do what they should"
                    break
    return found


def _replaced(session: Session, dialect: str, ours: State, theirs: State) -> list[str]:
    """Replace gold's views and triggers by the agent's; return those that cannot be made."""
    for table in ours.values():
        for trigger in table.triggers:
            session.execute(trigger.removal)
    for name, table in _views(ours).items():
        kind = "MATERIALIZED VIEW" if "MATERIALIZED" in table.definition[:30] else "VIEW"
        others = " CASCADE" if dialect == "postgres" else ""  # it refuses while others read it
        session.execute(f"DROP {kind} {named(name, dialect)}{others}")
    waiting = [(name, table.definition) for name, table in _views(theirs).items()]
    waiting += [(name, _text(t)) for name, table in theirs.items() for t in table.triggers]
    while waiting:  # a view comes after those that it reads
        refused = [one for one in waiting if session.execute(one[1]).failure is not None]
        if len(refused) == len(waiting):
            return [name for name, _ in refused]
        waiting = refused
    return []


def _different(session: Session, other: Session) -> dict[str, str]:
    ours = session.state()
    try:
        theirs = other.state()
    except OutputLimitError as error:
        return {name: str(error) for name in ours}
    return {
        name: f"{name} is not as it should be on a copy of the database"
        for name, table in ours.items()
        # An agent's program can also have removed it.
        if name not in theirs
        or not compare_states({}, {name: _bare(table)}, {name: _bare(theirs[name])}).equal
    }


def _bare(table: Table) -> Table:
    return replace(table, constraints=(), definition="", triggers=())


# -- probes ----------------------------------------------------------------------------------------


class Probes:
    """Statements that change a table, to see what its triggers do.

    Args:
        session: Shows the table.
        dialect: The engine's.
        texts: The triggers.
    """

    def __init__(self, session: Session, dialect: str, texts: Sequence[str]) -> None:
        self._session, self._dialect = session, dialect
        self._constants = dict.fromkeys(value for text in texts for value in _constants(text))

    def all(self, name: str) -> Iterator[str]:
        """Yield statements with a table's own values, and with constants of the triggers."""
        table = self._session.state()[name]
        keys = _keys(table)
        columns = [column for column, _ in table.columns]
        where = self._name(name)
        none = (None,) * len(columns)
        for round_, values in enumerate((*table.rows[:1], *table.rows[-1:], none)):
            yield self._insert(name, columns, _fresh(table, columns, keys, values, round_))
        for index, row in enumerate(table.rows[:2]):
            for column in columns:
                if column not in keys:
                    other = table.rows[-1 - index][columns.index(column)]
                    yield self._update(name, column, _literal(other), columns, row)
            yield self._update(name, columns[0], self._name(columns[0]), columns, row)
        for row in table.rows[:2]:
            yield f"DELETE FROM {where} WHERE {self._same(columns, row)}"
            yield self._insert(name, columns, row)  # once more, for what the trigger left
            yield f"DELETE FROM {where} WHERE {self._same(columns, row)}"
        yield from self.constants(name)
        yield f"DELETE FROM {where}"

    def constants(self, name: str) -> Iterator[str]:
        """Yield statements that put the constants of the triggers into a table."""
        table = self._session.state()[name]
        columns, keys = [column for column, _ in table.columns], _keys(table)
        row = table.rows[-1] if table.rows else (None,) * len(columns)
        places = islice(product(self._constants, columns), _PLANTED)
        for number, (constant, column) in enumerate(places):
            values = _fresh(table, columns, keys, row, 10 + number)
            values[columns.index(column)] = constant
            yield self._insert(name, columns, values)
            if table.rows and column not in keys:
                yield self._update(name, column, _literal(constant), columns, row)

    def _name(self, name: str) -> str:
        return named(name, self._dialect)

    def _insert(self, name: str, columns: Sequence[str], values: Sequence[Value]) -> str:
        names = ", ".join(map(self._name, columns))
        where = self._name(name)
        return f"INSERT INTO {where} ({names}) VALUES ({', '.join(map(_literal, values))})"

    def _update(
        self, name: str, column: str, value: str, columns: Sequence[str], row: Sequence[Value]
    ) -> str:
        same = self._same(columns, row)
        return f"UPDATE {self._name(name)} SET {self._name(column)} = {value} WHERE {same}"

    def _same(self, columns: Sequence[str], row: Sequence[Value]) -> str:
        return " AND ".join(
            f"{self._name(c)} IS NULL" if v is None else f"{self._name(c)} = {_literal(v)}"
            for c, v in zip(columns, row, strict=True)
        )


def named(name: str, dialect: str) -> str:
    """Return a name as a dialect quotes it; PostgreSQL's may begin with a schema's."""
    if dialect == "postgres":
        return ".".join(map(quoted, name.split(".")))
    return quoted(name, "`" if dialect == "mysql" else '"')


def _keys(table: Table) -> set[str]:
    rules = (rule for rule in table.constraints if rule.kind in ("primary key", "unique"))
    return {column for rule in rules for column in rule.columns}


def _fresh(
    table: Table, columns: Sequence[str], keys: set[str], row: Sequence[Value], number: int
) -> list[Value]:
    """Return a row's values with others in its keys."""
    values = list(row)
    for index, column in enumerate(columns):
        if column in keys:
            held = [r[index] for r in table.rows]
            whole = all(isinstance(value, int) for value in held)
            values[index] = max(held, default=0) + 1 + number if whole else f"probe {number}"
    return values


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, (int, float)):
        return repr(value)
    return quoted(str(value), "'")


def _constants(text: str) -> Iterator[int | float | str]:
    """Yield the constants in a piece of SQL, and for numbers their neighbours."""
    for word in re.findall(r"'(?:[^']|'')*'|(?<![\w.])\d+(?:\.\d+)?", text):
        if word[0] == "'":
            yield word[1:-1].replace("''", "'")
        else:
            number = float(word) if "." in word else int(word)
            yield from (number, number - 1, number + 1)


# -- checks ----------------------------------------------------------------------------------------


def _checks(table: Table, dialect: str) -> list[str]:
    """List the conditions of a table's checks."""
    reported = [rule.text for rule in table.constraints if rule.kind == "check"]
    if reported or table.kind == "view" or "check" not in table.definition.lower():
        return reported
    try:
        tree: Any = sqlglot.parse_one(table.definition, read=DIALECTS.get(dialect, dialect))
    except (SqlglotError, RecursionError):
        return [table.definition]
    nodes = tree.find_all(exp.CheckColumnConstraint)
    return [node.this.sql(dialect=DIALECTS.get(dialect, dialect)) for node in nodes]


def _checks_alike(
    grader: Grader, task: Task, source: Source, table: Table, texts: Sequence[Sequence[str]]
) -> bool:
    """Return whether two lists of checks refuse the same values, near the constants in them."""
    said = " ".join(text for side in texts for text in side)
    words = {word.lower() for word in re.findall(r"\w+", said)}
    used = [(name, family(kind)) for name, kind in table.columns if name.lower() in words]
    values = [*dict.fromkeys(_constants(said)), None, "", "x", 0, -1, 1]
    kinds = {"number": (int, float, type(None)), "text": (str, type(None))}
    fitting = [[v for v in values if isinstance(v, kinds.get(kind, object))] for _, kind in used]
    rows = list(islice(product(*fitting), _ASSIGNMENTS))
    if not used:
        return False
    dialect = grader.databases.engine.dialect
    names = ", ".join(named(name, dialect) for name, _ in used)
    selected = " UNION ALL SELECT ".join(", ".join(map(_literal, row)) for row in rows)
    sides = ["".join(f" AND COALESCE({text}, 1 = 1)" for text in side) for side in texts]
    columns = ", ".join(f"CASE WHEN 1 = 1{side} THEN 1 ELSE 0 END" for side in sides)
    sql = f"WITH probe ({names}) AS (SELECT {selected}) SELECT {columns} FROM probe"
    with closing(grader.databases.open(task, "grader", source)) as session:
        outcome = session.execute(sql, max_rows=_ASSIGNMENTS)
    if outcome.failure is not None or not outcome.results:
        return False
    return all(one == other for one, other in outcome.results[-1].rows)
