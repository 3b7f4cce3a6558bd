"""What scored 1.0 in 2023 without solving anything, and its kin, under the default protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import cycle

import pytest

from intercode.databases import DatabaseEngine
from intercode.envs.sql import SqlEnv
from intercode.task import Dataset

from .conftest import MakeSql
from .sql_tasks import attempt

EMPTY = "SELECT name FROM customer WHERE 1 = 0"
POISON = {
    "another database": ("USE information_schema", "SELECT * FROM ENGINES WHERE 1 = 0"),
    "another schema": ("SET search_path TO pg_catalog", "SELECT 1 WHERE 1 = 0"),
    "an empty select": (EMPTY,),
    "zero": ("SELECT 0",),
    "one": ("SELECT 1",),
    "null": ("SELECT NULL",),
    "data deleted": ("DELETE FROM purchase", "DELETE FROM customer", EMPTY),
    "data changed": (
        "UPDATE purchase SET amount = 0",
        "UPDATE customer SET name = 'x'",
        "SELECT 'x' FROM customer",
    ),
    "tables replaced": (
        "DROP TABLE purchase",
        "DROP TABLE customer",
        "CREATE TABLE customer (id INTEGER, name TEXT, city TEXT)",
        EMPTY,
    ),
    "a view over a table": (
        "ALTER TABLE customer RENAME TO hidden",
        "CREATE VIEW customer AS SELECT 1 AS id, 'x' AS name, 'y' AS city",
        "SELECT 'x' AS name",
    ),
    "a temporary table": (
        "CREATE TEMPORARY TABLE customer AS SELECT 1 AS id, 'x' AS name, 'y' AS city",
        "SELECT 'x' AS name",
    ),
    "sql_mode": ("SET sql_mode = ''", "SET SESSION sql_select_limit = 0", "SELECT 1"),
    "a transaction left open": ("BEGIN", "DELETE FROM customer", EMPTY),
}
QUERIES = ("names", "ranked", "rich", "unsold", "any", "some")


@pytest.fixture(scope="module")
def any_env(sql_engine: DatabaseEngine, sql_tasks: Dataset) -> Iterator[SqlEnv]:
    """One for all cheats: the answers of gold are found once."""
    with closing(SqlEnv(sql_tasks, engine=sql_engine)) as env:
        yield env


@pytest.mark.parametrize("task_id", QUERIES)
@pytest.mark.parametrize("cheat", sorted(POISON))
def test_a_cheat_is_no_success(any_env: SqlEnv, cheat: str, task_id: str) -> None:
    assert attempt(any_env, task_id, *POISON[cheat]) < 1.0


def test_a_cheat_harms_no_later_episode(make_sql: MakeSql) -> None:
    env = make_sql()
    # All of them before gold has run for the first time, whose results are kept; then each.
    for actions in POISON.values():
        attempt(env, "rich", *actions)
    for (cheat, actions), task_id in zip(POISON.items(), cycle(QUERIES)):
        attempt(env, "rich", *actions)
        assert attempt(env, task_id, env.dataset[task_id].gold[0]) == 1.0, cheat
    for task_id in QUERIES:
        assert attempt(env, task_id, env.dataset[task_id].gold[0]) == 1.0


def test_to_tell_a_copy_from_the_original_is_no_answer(make_sql: MakeSql) -> None:
    env = make_sql()
    for rows in ("(SELECT count(*) FROM customer) <> 4", "(SELECT count(*) FROM purchase) <> 5"):
        assert attempt(env, "some", f"SELECT {rows}") < 1.0
        assert attempt(env, "any", f"SELECT CASE WHEN {rows} THEN 1 ELSE 0 END") < 1.0


@pytest.mark.parametrize("task_id", ["move", "add", "table"])
def test_a_change_that_was_not_made_is_no_success(
    sql_engine: DatabaseEngine, make_sql: MakeSql, task_id: str
) -> None:
    env = make_sql()
    assert attempt(env, task_id, "SELECT 1") == 0.0
    undone = attempt(env, task_id, "BEGIN", env.dataset[task_id].gold[0], "ROLLBACK")
    # MySQL commits what comes before a CREATE TABLE, and the table itself.
    assert undone == 1.0 if (sql_engine.name, task_id) == ("mysql", "table") else undone < 1.0
    everything = "DELETE FROM voucher; DELETE FROM purchase; DELETE FROM customer"
    assert attempt(env, task_id, everything) < 1.0


def test_gold_is_nowhere_in_the_database(sql_engine: DatabaseEngine, make_sql: MakeSql) -> None:
    """The servers' own views of what runs show nothing of gold."""
    env = make_sql()
    views = {
        "mysql": ("SHOW PROCESSLIST", "SELECT * FROM information_schema.processlist"),
        "postgresql": ("SELECT query FROM pg_stat_activity",),
    }.get(sql_engine.name, ("SELECT * FROM sqlite_master",))
    gold = env.dataset["rich"].gold[0]
    assert attempt(env, "rich", gold) == 1.0  # now gold has run
    env.reset(options={"task_id": "rich"})
    for view in views:
        assert "SUM(amount)" not in env.step(view)[0]
