"""The bundled SQL tasks: gold solves them on every engine; nothing and tempting mistakes do not."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

import intercode
from intercode import datasets
from intercode.databases import DatabaseEngine, find
from intercode.databases.source import names
from intercode.envs.sql import SqlEnv
from intercode.task import Task

from .sql_tasks import attempt

TASKS = datasets.load("sql")
PLACE = Path(str(TASKS.databases))
WRONG: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("wrong_sql.json").read_text(encoding="utf-8")
)
LEVELS = ("easy", "medium", "hard", "extra")
CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Create)
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
every_database = pytest.mark.parametrize("name", names(PLACE))


def statements(task: Task) -> list[exp.Expression]:
    parsed = sqlglot.parse(task.gold[0], read=task.metadata["dialect"])
    return [statement for statement in parsed if statement is not None]


def changes(task: Task) -> bool:
    return any(isinstance(statement, CHANGES) for statement in statements(task))


def points(statement: exp.Expression) -> int:
    """The table in the README beside the tasks."""

    def count(*kinds: type[exp.Expression]) -> int:
        return len(list(statement.find_all(*kinds)))

    first = 0 if isinstance(statement, (exp.Update, exp.Delete)) else 1
    return (
        count(exp.Join, exp.Group, exp.Having)
        + (count(exp.Case) > 0)
        + isinstance(statement, CHANGES)
        + 2 * max(0, count(exp.Select) - first)
        + 2 * count(exp.Window)
        + 2 * any(clause.args.get("recursive") for clause in statement.find_all(exp.With))
    )


def hardness(task: Task) -> str:
    total = sum(map(points, statements(task)))
    return LEVELS[(total > 1) + (total > 3) + (total > 6)]


@pytest.fixture(scope="module")
def env() -> Iterator[SqlEnv]:
    env = intercode.make("sql")
    assert isinstance(env, SqlEnv)
    yield env
    env.close()


@pytest.fixture(scope="module")
def any_env(sql_engine: DatabaseEngine) -> Iterator[SqlEnv]:
    env = SqlEnv(TASKS, engine=sql_engine)
    yield env
    env.close()


@every_task
def test_gold_solves_it_on_every_engine(any_env: SqlEnv, task: Task) -> None:
    assert attempt(any_env, task.task_id, task.gold[0]) == 1.0, any_env.episode.score


@every_task
def test_doing_nothing_does_not(env: SqlEnv, task: Task) -> None:
    assert attempt(env, task.task_id) == 0.0
    assert attempt(env, task.task_id, "SELECT 1 WHERE 1 = 0") < 1.0


@every_task
def test_tempting_mistakes_do_not(env: SqlEnv, task: Task) -> None:
    for mistake in WRONG[task.task_id]:
        assert attempt(env, task.task_id, mistake) < 1.0, mistake
        # A mistake that does not even run would tempt nobody.
        assert env.episode.turns[0].ok, env.episode.turns[0].observation


def plain(value: Any) -> Any:
    """A value as SQLite would have it, and a number as far as all engines agree on it."""
    if value is None or isinstance(value, str):
        return value
    return str(value) if hasattr(value, "isoformat") else round(float(value), 4)


def agreed(rows: Any, ordered: bool = False) -> list[tuple[Any, ...]]:
    found = [tuple(map(plain, row)) for row in rows]
    return found if ordered else sorted(found, key=repr)


@every_task
def test_gold_means_the_same_on_every_engine(sql_engine: DatabaseEngine, task: Task) -> None:
    ordered = bool(statements(task)[-1].args.get("order"))
    with closing(database(str(task.db))) as connection:
        if changes(task):
            connection.executescript(task.gold[0])
            expected = tables(connection)
        else:
            rows = connection.execute(task.gold[0]).fetchall()
    with closing(sql_engine.open(find(PLACE, task.db))) as session:
        outcome = session.execute(task.gold[0])
        assert outcome.failure is None
        if changes(task):
            state = session.state()
            assert {name: agreed(table.rows) for name, table in state.items()} == expected
        else:
            assert agreed(outcome.results[-1].rows, ordered) == agreed(rows, ordered)


def tables(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    return {
        name: agreed(connection.execute(f"SELECT * FROM {name}")) for (name,) in names.fetchall()
    }


def database(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript(find(PLACE, name).path.read_text(encoding="utf-8"))
    return connection


@every_database
def test_a_database_is_sound_and_small(name: str) -> None:
    assert find(PLACE, name).path.stat().st_size < 60_000
    with closing(database(name)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        made = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        counts = [connection.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for (t,) in made]
    assert 100 <= sum(counts) <= 2000
    assert min(counts) > 0


@every_task
def test_its_hardness_follows_from_gold(task: Task) -> None:
    assert task.metadata["hardness"] == task.tags[0] == hardness(task)


def test_there_are_enough_and_of_all_kinds() -> None:
    assert len(TASKS) >= 44
    assert len({task.db for task in TASKS}) >= 4
    assert min(Counter(map(hardness, TASKS))[level] for level in LEVELS) >= 8
    assert sum(map(changes, TASKS)) >= 6
    assert sum("engines" in task.metadata for task in TASKS) <= 3
    assert len({task.query for task in TASKS}) == len(TASKS)


def test_there_are_guessable_golds() -> None:
    """Nothing, or one 0 or 1: what only a changed copy of the database tells from a guess."""
    guessable = []
    for task in TASKS:
        if not changes(task):
            with closing(database(str(task.db))) as connection:
                rows = connection.execute(task.gold[0]).fetchall()
            if not rows or rows in ([(0,)], [(1,)]):
                guessable.append(task.task_id)
    assert len(guessable) >= 3
    assert all(len(WRONG[task_id]) >= 2 for task_id in guessable)


def test_every_task_has_a_mistake_to_make() -> None:
    assert set(WRONG) == {task.task_id for task in TASKS}
    assert all(WRONG.values())
