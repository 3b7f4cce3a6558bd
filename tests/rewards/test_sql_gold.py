from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.rewards.sql_gold import read

QUERIES = [
    ("sqlite", "SELECT a FROM t"),
    ("mysql", "select `a` from t where b = \"INSERT INTO t\""),
    ("sqlite", "VALUES (1), (2)"),
    ("postgres", "TABLE t"),
    ("duckdb", "FROM t SELECT a"),
    ("sqlite", "(SELECT 1) UNION (SELECT 2)"),
    ("sqlite", "WITH a AS (SELECT REPLACE(x, 'a', 'b') FROM t) SELECT * FROM a"),
    ("sqlite", 'SELECT "update", "delete" FROM t'),
    ("mysql", "SHOW TABLES"),
    ("mysql", "DESCRIBE t"),
    ("mysql", "EXPLAIN DELETE FROM t"),
    ("sqlite", "PRAGMA table_info(t)"),
    ("mysql", "SET @a = 1; SELECT @a"),
    ("postgresql", "BEGIN; SELECT 1; COMMIT"),
    ("sqlite", "CREATE TEMP TABLE x AS SELECT 1; SELECT * FROM x"),
    ("sqlite", "-- DELETE FROM t\nSELECT 1 /* DROP TABLE t */;"),
    ("sqlite", "SELECT ("),
    ("sqlite", ""),
]  # fmt: skip
CHANGES = [
    ("sqlite", "INSERT INTO t VALUES (1)"),
    ("mysql", "REPLACE INTO t VALUES (1)"),
    ("sqlite", "UPDATE t SET a = 1"),
    ("sqlite", "delete from t"),
    ("mysql", "TRUNCATE TABLE t"),
    ("sqlite", "CREATE TABLE t (a)"),
    ("sqlite", "CREATE VIEW v AS SELECT 1"),
    ("sqlite", "CREATE TRIGGER x AFTER INSERT ON t BEGIN UPDATE t SET a = 1; SELECT 2; END"),
    ("sqlite", "ALTER TABLE t ADD COLUMN b"),
    ("sqlite", "DROP TABLE t"),
    ("postgres", "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE"),
    ("postgresql", "SELECT 1 AS a INTO t"),
    ("postgres", "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x"),
    ("sqlite", "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x"),
    ("mysql", "CALL p()"),
    ("mariadb", "SELECT 1; UPDATE t SET a = 1; SELECT 2"),
    ("sqlite", "BEGIN; UPDATE t SET a = 1; COMMIT"),
    ("sqlite", "INSERT INTO t VALUES ('it''s, ("),
]


@pytest.mark.parametrize(("dialect", "sql"), QUERIES)
def test_a_query_asks_for_an_answer(dialect: str, sql: str) -> None:
    assert not read(sql, dialect).changes


@pytest.mark.parametrize(("dialect", "sql"), CHANGES)
def test_a_change_is_one(dialect: str, sql: str) -> None:
    assert read(sql, dialect).changes


ORDERED = [
    ("sqlite", "SELECT a FROM t ORDER BY a"),
    ("mysql", "SELECT a FROM t ORDER BY a DESC LIMIT 3, 5;"),
    ("sqlite", "(SELECT a FROM t ORDER BY a)"),
    ("sqlite", "SELECT a FROM t UNION SELECT b FROM u ORDER BY 1"),
    ("sqlite", "WITH x AS (SELECT 1 AS a) SELECT a FROM x ORDER BY a"),
    ("sqlite", "VALUES (1), (2) ORDER BY 1"),
    ("mysql", "SET @a = 1; SELECT a FROM t ORDER BY a -- so"),
    ("sqlite", "SELECT a ) FROM ( t ORDER BY a"),
]
UNORDERED = [
    ("sqlite", "SELECT a FROM t"),
    ("sqlite", "SELECT a FROM (SELECT a FROM t ORDER BY a)"),
    ("sqlite", "SELECT a FROM t WHERE a IN (SELECT b FROM u ORDER BY c LIMIT 1)"),
    ("sqlite", "WITH x AS (SELECT a FROM t ORDER BY a) SELECT a FROM x"),
    ("mysql", "(SELECT a FROM t ORDER BY a LIMIT 1) UNION (SELECT b FROM u)"),
    ("sqlite", "SELECT ROW_NUMBER() OVER (ORDER BY a) FROM t"),
    ("postgres", "SELECT STRING_AGG(a, ',' ORDER BY a) FROM t"),
    ("sqlite", "SELECT a AS \"order by\", ' ORDER BY a' FROM t"),
    ("mysql", "SELECT a FROM t ORDER BY a; SELECT b FROM t"),
    ("mysql", "SHOW TABLES"),
    ("sqlite", "SELECT ( FROM t ORDER BY a"),
]


@pytest.mark.parametrize(("dialect", "sql"), ORDERED)
def test_the_outermost_query_orders(dialect: str, sql: str) -> None:
    assert read(sql, dialect).ordered


@pytest.mark.parametrize(("dialect", "sql"), UNORDERED)
def test_the_outermost_query_does_not_order(dialect: str, sql: str) -> None:
    assert not read(sql, dialect).ordered


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM t ORDER BY a LIMIT 3", False),
        ("SELECT a FROM t LIMIT 3", True),
        ("SELECT a FROM t WHERE a = (SELECT b FROM u ORDER BY c LIMIT 1)", True),
        ("SELECT a, COUNT(*) FROM t GROUP BY A", False),
        ("SELECT a, b FROM t GROUP BY a ORDER BY b", True),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u GROUP BY c)", True),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1 LIMIT 1", False),
        ("INSERT INTO t SELECT a FROM t LIMIT 1", False),
    ],
)
def test_a_query_that_leaves_a_choice_to_the_engine(sql: str, expected: bool) -> None:
    assert read(sql, "mysql").chooses is expected


@given(
    st.text("SELECT order by ()'\"`;-/*\n\0é", max_size=30), st.sampled_from(["mysql", "sqlite"])
)
def test_any_text_can_be_read(sql: str, dialect: str) -> None:
    read(sql, dialect)


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for dialect, sql in QUERIES + CHANGES:
            read.__wrapped__(sql, dialect)
    assert not caplog.records
