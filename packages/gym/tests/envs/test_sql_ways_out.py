"""An agent that fails cannot make an error of it: that would be tried again, and left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from intercode.databases import DatabaseEngine
from intercode.envs.sql import SqlEnv
from intercode_sandbox.base import Limits

from .conftest import MakeSql
from .sql_tasks import attempt

_NO_END = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
_TRIGGER = (
    "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN PERFORM pg_sleep(1000); RETURN NULL; END'; "
    "CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON customer DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION wait()"
)
_WIDE = ", ".join(f"v{{0}} AS {letter}" for letter in "abcdef")
_DEEP_VIEWS = [
    "CREATE VIEW v0 AS SELECT 1 AS x",
    *(f"CREATE VIEW v{i} AS SELECT a.x FROM {_WIDE.format(i - 1)}" for i in range(1, 7)),
]
WAYS_OUT = {
    "sqlite": {
        "a view without end": [f"CREATE VIEW v AS {_NO_END}"],
        "all tables dropped": ["DROP TABLE purchase; DROP TABLE customer; DROP TABLE voucher"],
    },
    "duckdb": {
        "a view without end": ["CREATE VIEW v AS SELECT count(*) FROM range(1000000000000)"],
        "deep lists": ["SELECT " + "[" * 480 + "1" + "]" * 480],
        "a table of deep lists": ["CREATE TABLE a AS SELECT " + "[" * 200 + "1" + "]" * 200],
        "the database detached": ["ATTACH ':memory:' AS m; USE m; DETACH store"],
    },
    "mysql": {
        "the database dropped": ["DROP DATABASE store"],
        "and the connection ended": ["DROP DATABASE store", "KILL CONNECTION_ID()"],
        "another password": ["SET PASSWORD = PASSWORD('x')", "KILL CONNECTION_ID()"],
        "a view that ends the connection": [
            "CREATE FUNCTION f() RETURNS INT BEGIN KILL CONNECTION_ID(); RETURN 1; END",
            "CREATE VIEW v AS SELECT f()",
        ],
        "views without end": [
            "CREATE FUNCTION f() RETURNS INT BEGIN SET max_statement_time = 0; RETURN 1; END",
            "CREATE VIEW a AS SELECT f()",
            "CREATE VIEW b AS SELECT SLEEP(1000)",
        ],
        "a view too large to open": _DEEP_VIEWS,
        "a hidden column": ["CREATE TABLE h (a INT, b INT INVISIBLE)", "INSERT INTO h VALUES (1)"],
        "numbers in another character set": [
            "SET character_set_results = utf32; SELECT 1.5, 1, NOW()"
        ],
        "a prepared transaction": [
            "XA START 'x'; UPDATE customer SET city = 'Rome'; XA END 'x'; XA PREPARE 'x'"
        ],
    },
    "postgresql": {
        "the door closed": ["ALTER DATABASE store CONNECTION LIMIT 0"],
        "and the connection ended": [
            "ALTER DATABASE store CONNECTION LIMIT 0",
            "SELECT pg_terminate_backend(pg_backend_pid())",
        ],
        "the door broken": ["ALTER ROLE CURRENT_USER SET local_preload_libraries = 'nothing'"],
        "the door of the database broken": [
            "ALTER DATABASE store SET local_preload_libraries = 'nothing'"
        ],
        "a view that ends the connection": [
            "CREATE VIEW v AS SELECT pg_terminate_backend(pg_backend_pid())"
        ],
        "views without end": [
            "CREATE VIEW a AS SELECT set_config('statement_timeout', '0', false)",
            "CREATE VIEW b AS SELECT pg_sleep(1000)",
        ],
        "a COMMIT without end": [
            _TRIGGER,
            "SET statement_timeout = 0; BEGIN; UPDATE customer SET city = 'Rome'",
        ],
        "deep JSON": ["SELECT (repeat('[', 3000) || repeat(']', 3000))::json"],
        "no columns": ["SELECT FROM customer", "CREATE TABLE t ()", "INSERT INTO t DEFAULT VALUES"],
        "nothing left": ["DROP SCHEMA public CASCADE"],
    },
}


@contextmanager
def haste(env: SqlEnv) -> Iterator[None]:
    """What is opened while the block runs has little time: what breaks things often takes all."""
    env.stage._limits = Limits(timeout=1)  # type: ignore  # allow limit: late or broken, it is lost
    try:
        yield
    finally:
        env.stage._limits = None  # type: ignore[attr-defined]


@pytest.mark.parametrize("task_id", ["names", "move"])
def test_what_an_agent_breaks_is_its_own_loss(
    sql_engine: DatabaseEngine, make_sql: MakeSql, task_id: str
) -> None:
    env = make_sql()
    gold = env.dataset[task_id].gold[0]
    assert attempt(env, task_id, gold) == 1.0  # gold's result is kept: no haste changes it
    for way, actions in WAYS_OUT[sql_engine.name].items():
        with haste(env):
            assert attempt(env, task_id, *actions) < 1.0, way
        assert env.episode.status == "submitted", way
        assert attempt(env, task_id, gold) == 1.0, f"after {way}"


def test_what_breaks_the_graders_session_is_no_answer(
    sql_engine: DatabaseEngine, make_sql: MakeSql
) -> None:
    env = make_sql()
    gold = env.dataset["names"].gold[0]
    assert attempt(env, "names", gold) == 1.0
    with haste(env):
        for way, actions in WAYS_OUT[sql_engine.name].items():
            action = f"{'; '.join(actions)}; SELECT 1"
            assert attempt(env, "names", action) < 1.0, way
    assert attempt(env, "names", gold) == 1.0
