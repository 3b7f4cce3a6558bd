"""Comparison of an agent's views, triggers and checks with gold's, by their effects.

Two definitions with different texts may have the same effect. If texts differ, gold runs on the
database and on mutated copies. In a second session, the agent's views and triggers replace gold's.
Both versions must have the same effects: the rows of each view and, for triggers, the tables after
some rows were inserted, updated and deleted. A view of literal rows does not follow the data of a
copy, so it is wrong. Checks are evaluated for values around the constants in them.
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

from intercode.databases.base import DatabaseSession, DatabaseTrigger, TableState, Value
from intercode.databases.source import DatabaseSource
from intercode.errors import OutputLimitError, RewardError, TaskError
from intercode.rewards.sql_conditions import QueryConditions, collect_conditions
from intercode.rewards.sql_gold import DIALECTS, parse_statements
from intercode.rewards.sql_mutated_copies import COPIES, TRIES, mutated_copy
from intercode.rewards.sql_run import SqlGrader
from intercode.rewards.sql_state_compare import State, compare_states, family, normalise_sql
from intercode.sql_identifiers import quote_identifier
from intercode.task import Task

_MAX_CONSTANT_PAIRS = 40
"""The most pairs of a column and a constant of a trigger that are tried in one table."""
_MAX_ASSIGNMENTS = 600
"""The most rows of values for which checks are evaluated."""


def program_differences(
    grader: SqlGrader, task: Task, gold: str, source: DatabaseSource, agent: State
) -> dict[str, str]:
    """Return the tables and views that differ from gold's in the effect of a program or a check.

    Each name comes with the reason in words. A program is a view or a trigger.

    Args:
        grader: The runner of gold.
        task: The task.
        gold: A gold of the task that asks for a change.
        source: The task's database.
        agent: The state that the agent left. Its tables equal gold's, but for definitions.

    Raises:
        RewardError: Gold could not be run.
        DatabaseError: The engine failed.
    """
    change = grader.change(task, gold, source)
    gold_tables, agent_tables = _fold_names(change.gold_state), _fold_names(agent)
    names = [name for name in gold_tables if name in agent_tables]
    dialect = grader.databases.engine.dialect
    differences: dict[str, str] = {}
    for name in names:
        texts = [
            _check_conditions(state[name][1], dialect) for state in (gold_tables, agent_tables)
        ]
        if {*map(normalise_sql, texts[0])} != {
            *map(normalise_sql, texts[1])
        } and not _are_checks_alike(grader, task, source, gold_tables[name][1], texts):
            differences[agent_tables[name][0]] = (
                f"{agent_tables[name][0]} does not check what it should"
            )
    if all(
        _program_texts(gold_tables[name][1]) == _program_texts(agent_tables[name][1])
        for name in names
    ):
        return differences
    for database in (source, *_mutated_copies(grader, task, gold, source)):
        differences |= _compare_programs(grader, task, gold, database, change.gold_state, agent)
    return differences


def _fold_names(state: State) -> dict[str, tuple[str, TableState]]:
    return {name.lower(): (name, table) for name, table in state.items()}


def _program_texts(table: TableState) -> list[str]:
    view = [normalise_sql(table.definition)] if table.kind == "view" else []
    return view + sorted(normalise_sql(_trigger_text(trigger)) for trigger in table.triggers)


def _trigger_text(trigger: DatabaseTrigger) -> str:
    return f"{trigger.function};\n{trigger.definition}" if trigger.function else trigger.definition


def _mutated_copies(
    grader: SqlGrader, task: Task, gold: str, source: DatabaseSource
) -> list[DatabaseSource]:
    """Return mutated copies on which gold runs; copies that change its views' rows come first."""
    dialect = grader.dialect(task)
    query_conditions = QueryConditions()
    for tree in parse_statements(gold, dialect):
        statement_conditions = collect_conditions(tree)
        query_conditions = QueryConditions(
            tuple(dict.fromkeys(query_conditions.conditions + statement_conditions.conditions)),
            max(query_conditions.count, statement_conditions.count),
            tuple(dict.fromkeys(query_conditions.lookups + statement_conditions.lookups)),
        )
    gold_views = _select_views(grader.change(task, gold, source).gold_state)
    strong_copies: list[DatabaseSource] = []
    equal_copies: list[DatabaseSource] = []
    for is_gentle, seed in product((True, False), range(TRIES)):
        copy = mutated_copy(source, query_conditions, seed, is_gentle)
        with suppress(RewardError, TaskError):
            copy_views = _select_views(grader.change(task, gold, copy).gold_state)
            differs = not all(
                compare_states({}, {n: t}, {n: copy_views[n]}).equal for n, t in gold_views.items()
            )
            (strong_copies if differs else equal_copies).append(copy)
        if len(strong_copies) == COPIES or (not gold_views and len(equal_copies) == COPIES):
            break
    return (strong_copies + equal_copies)[:COPIES]


def _select_views(state: State) -> dict[str, TableState]:
    return {name: table for name, table in state.items() if table.kind == "view"}


def _compare_programs(
    grader: SqlGrader,
    task: Task,
    gold: str,
    source: DatabaseSource,
    gold_state: State,
    agent_state: State,
) -> dict[str, str]:
    """Compare the effects of gold's views and triggers with the agent's in one database.

    Two sessions have gold's change. In the second session the agent's programs replace gold's.
    """
    with (
        grader.open_changed_session(task, gold, source) as session,
        grader.open_changed_session(task, gold, source) as peer,
    ):
        dialect = grader.databases.engine.dialect
        if refused_names := _replace_programs(peer, dialect, gold_state, agent_state):
            return {
                name: f"{name} cannot be made in a copy of the database" for name in refused_names
            }
        differences = _state_differences(session, peer)
        trigger_tables = {
            name
            for state in (gold_state, agent_state)
            for name, table in state.items()
            if table.triggers
        }
        for name in sorted(trigger_tables - differences.keys()):
            texts = [
                _trigger_text(trigger_definition)
                for table_state in (gold_state, agent_state)
                if name in table_state
                for trigger_definition in table_state[name].triggers
            ]
            words = {
                word.lower() for trigger_text in texts for word in re.findall(r"\w+", trigger_text)
            }
            read_tables = [peer for peer in gold_state if peer != name and peer.lower() in words]
            probes = TriggerProbes(session, dialect, texts)
            for probe in chain(*map(probes.constants, read_tables), probes.all_statements(name)):
                outcomes = [
                    database_session.execute(probe, max_rows=0).failure
                    for database_session in (session, peer)
                ]
                if (outcomes[0] is None) != (outcomes[1] is None) or _state_differences(
                    session, peer
                ):
                    differences[name] = f"the triggers of {name} do not do what they should"
                    break
    return differences


def _replace_programs(
    session: DatabaseSession, dialect: str, gold_state: State, agent_state: State
) -> list[str]:
    """Replace gold's views and triggers by the agent's; return those that cannot be created.

    Args:
        session: A session with a database that contains gold's change.
        dialect: The engine's SQL dialect.
        gold_state: The state after gold's change.
        agent_state: The state that the agent left.
    """
    for table in gold_state.values():
        for trigger in table.triggers:
            session.execute(trigger.removal)
    for name, table in _select_views(gold_state).items():
        kind = "MATERIALIZED VIEW" if "MATERIALIZED" in table.definition[:30] else "VIEW"
        # In PostgreSQL, DROP without CASCADE fails if another view reads the view.
        cascade_clause = " CASCADE" if dialect == "postgres" else ""
        session.execute(f"DROP {kind} {quote_name(name, dialect)}{cascade_clause}")
    pending_programs = [
        (name, table.definition) for name, table in _select_views(agent_state).items()
    ]
    pending_programs += [
        (name, _trigger_text(trigger_definition))
        for name, table in agent_state.items()
        for trigger_definition in table.triggers
    ]
    # A view can be created only after the views that it reads. Refused programs are tried again.
    while pending_programs:
        refused_programs = [
            program
            for program in pending_programs
            if session.execute(program[1]).failure is not None
        ]
        if len(refused_programs) == len(pending_programs):
            return [name for name, _ in refused_programs]
        pending_programs = refused_programs
    return []


def _state_differences(session: DatabaseSession, agent_session: DatabaseSession) -> dict[str, str]:
    gold_state = session.state()
    try:
        agent_state = agent_session.state()
    except OutputLimitError as error:
        return {name: str(error) for name in gold_state}
    return {
        name: f"{name} differs from gold's on a copy of the database"
        for name, table in gold_state.items()
        # A trigger of the agent may have removed the table.
        if name not in agent_state
        or not compare_states(
            {}, {name: _strip_programs(table)}, {name: _strip_programs(agent_state[name])}
        ).equal
    }


def _strip_programs(table: TableState) -> TableState:
    return replace(table, constraints=(), definition="", triggers=())


# -- probes ----------------------------------------------------------------------------------------


class TriggerProbes:
    """Statements that change a table, to reveal the effects of its triggers.

    Args:
        session: The session that reads the table.
        dialect: The engine's SQL dialect.
        texts: The definitions of the triggers.
    """

    def __init__(self, session: DatabaseSession, dialect: str, texts: Sequence[str]) -> None:
        self._session, self._dialect = session, dialect
        self._constants = dict.fromkeys(value for text in texts for value in _parse_constants(text))

    def all_statements(self, name: str) -> Iterator[str]:
        """Yield statements that change a table, with its values and the triggers' constants."""
        table = self._session.state()[name]
        keys = _key_columns(table)
        columns = [column for column, _ in table.columns]
        table_name = self._name(name)
        null_values = (None,) * len(columns)
        for round_, values in enumerate((*table.rows[:1], *table.rows[-1:], null_values)):
            yield self._insert(name, columns, _fresh_values(table, columns, keys, values, round_))
        for index, row in enumerate(table.rows[:2]):
            for column in columns:
                if column not in keys:
                    other_value = table.rows[-1 - index][columns.index(column)]
                    yield self._update(name, column, _literal(other_value), columns, row)
            yield self._update(name, columns[0], self._name(columns[0]), columns, row)
        for row in table.rows[:2]:
            yield f"DELETE FROM {table_name} WHERE {self._row_condition(columns, row)}"
            # The row is inserted again, and deleted again, because a trigger may have undone the
            # first delete.
            yield self._insert(name, columns, row)
            yield f"DELETE FROM {table_name} WHERE {self._row_condition(columns, row)}"
        yield from self.constants(name)
        yield f"DELETE FROM {table_name}"

    def constants(self, name: str) -> Iterator[str]:
        """Yield statements that store the constants of the triggers in a table."""
        table = self._session.state()[name]
        columns, keys = [column for column, _ in table.columns], _key_columns(table)
        row = table.rows[-1] if table.rows else (None,) * len(columns)
        constant_columns = islice(product(self._constants, columns), _MAX_CONSTANT_PAIRS)
        for probe_index, (constant, column) in enumerate(constant_columns):
            values = _fresh_values(table, columns, keys, row, 10 + probe_index)
            values[columns.index(column)] = constant
            yield self._insert(name, columns, values)
            if table.rows and column not in keys:
                yield self._update(name, column, _literal(constant), columns, row)

    def _name(self, name: str) -> str:
        return quote_name(name, self._dialect)

    def _insert(self, name: str, columns: Sequence[str], values: Sequence[Value]) -> str:
        names = ", ".join(map(self._name, columns))
        table_name = self._name(name)
        return f"INSERT INTO {table_name} ({names}) VALUES ({', '.join(map(_literal, values))})"

    def _update(
        self, name: str, column: str, value: str, columns: Sequence[str], row: Sequence[Value]
    ) -> str:
        row_condition = self._row_condition(columns, row)
        return f"UPDATE {self._name(name)} SET {self._name(column)} = {value} WHERE {row_condition}"

    def _row_condition(self, columns: Sequence[str], row: Sequence[Value]) -> str:
        return " AND ".join(
            f"{self._name(column)} IS NULL"
            if value is None
            else f"{self._name(column)} = {_literal(value)}"
            for column, value in zip(columns, row, strict=True)
        )


def quote_name(name: str, dialect: str) -> str:
    """Return a name, quoted for a dialect; in PostgreSQL the schema's name may precede it."""
    if dialect == "postgres":
        return ".".join(map(quote_identifier, name.split(".")))
    return quote_identifier(name, "`" if dialect == "mysql" else '"')


def _key_columns(table: TableState) -> set[str]:
    rules = (rule for rule in table.constraints if rule.kind in ("primary key", "unique"))
    return {column for rule in rules for column in rule.columns}


def _fresh_values(
    table: TableState,
    columns: Sequence[str],
    keys: set[str],
    row: Sequence[Value],
    probe_number: int,
) -> list[Value]:
    """Return a row's values, but with values in its key columns that the table does not contain."""
    values = list(row)
    for index, column in enumerate(columns):
        if column in keys:
            column_values = [table_row[index] for table_row in table.rows]
            is_whole = all(isinstance(value, int) for value in column_values)
            values[index] = (
                max(column_values, default=0) + 1 + probe_number
                if is_whole
                else f"probe {probe_number}"
            )
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
    return quote_identifier(str(value), "'")


def _parse_constants(text: str) -> Iterator[int | float | str]:
    """Yield the constants in an SQL text; after each number, also the number minus and plus 1."""
    for word in re.findall(r"'(?:[^']|'')*'|(?<![\w.])\d+(?:\.\d+)?", text):
        if word[0] == "'":
            yield word[1:-1].replace("''", "'")
        else:
            value = float(word) if "." in word else int(word)
            yield from (value, value - 1, value + 1)


# -- checks ----------------------------------------------------------------------------------------


def _check_conditions(table: TableState, dialect: str) -> list[str]:
    """List the conditions of a table's checks, as SQL texts."""
    reported_checks = [rule.text for rule in table.constraints if rule.kind == "check"]
    if reported_checks or table.kind == "view" or "check" not in table.definition.lower():
        return reported_checks
    try:
        tree: Any = sqlglot.parse_one(table.definition, read=DIALECTS.get(dialect, dialect))
    except (SqlglotError, RecursionError):
        return [table.definition]
    nodes = tree.find_all(exp.CheckColumnConstraint)
    return [node.this.sql(dialect=DIALECTS.get(dialect, dialect)) for node in nodes]


def _are_checks_alike(
    grader: SqlGrader,
    task: Task,
    source: DatabaseSource,
    table: TableState,
    texts: Sequence[Sequence[str]],
) -> bool:
    """Return whether two lists of checks refuse the same values, tried near their constants."""
    check_text = " ".join(text for check_texts in texts for text in check_texts)
    words = {word.lower() for word in re.findall(r"\w+", check_text)}
    used_columns = [(name, family(kind)) for name, kind in table.columns if name.lower() in words]
    values = [*dict.fromkeys(_parse_constants(check_text)), None, "", "x", 0, -1, 1]
    kinds = {"number": (int, float, type(None)), "text": (str, type(None))}
    fitting = [
        [v for v in values if isinstance(v, kinds.get(kind, object))] for _, kind in used_columns
    ]
    rows = list(islice(product(*fitting), _MAX_ASSIGNMENTS))
    if not used_columns:
        return False
    dialect = grader.databases.engine.dialect
    names = ", ".join(quote_name(name, dialect) for name, _ in used_columns)
    selected_rows = " UNION ALL SELECT ".join(", ".join(map(_literal, row)) for row in rows)
    check_conditions = [
        "".join(f" AND COALESCE({text}, 1 = 1)" for text in check_texts) for check_texts in texts
    ]
    columns = ", ".join(
        f"CASE WHEN 1 = 1{check_texts} THEN 1 ELSE 0 END" for check_texts in check_conditions
    )
    sql = f"WITH probe ({names}) AS (SELECT {selected_rows}) SELECT {columns} FROM probe"
    with closing(grader.databases.open(task, "grader", source)) as session:
        outcome = session.execute(sql, max_rows=_MAX_ASSIGNMENTS)
    if outcome.failure is not None or not outcome.results:
        return False
    return all(gold_value == agent_value for gold_value, agent_value in outcome.results[-1].rows)
