from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from intercode.databases.base import Row
from intercode.rewards.sql_compare import TiedRows
from intercode.rewards.sql_gold import add_order_keys, group_rows, read_facts

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
    assert not read_facts(sql, dialect).changes


@pytest.mark.parametrize(("dialect", "sql"), CHANGES)
def test_a_change_is_one(dialect: str, sql: str) -> None:
    assert read_facts(sql, dialect).changes


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
    assert read_facts(sql, dialect).ordered


@pytest.mark.parametrize(("dialect", "sql"), UNORDERED)
def test_the_outermost_query_does_not_order(dialect: str, sql: str) -> None:
    assert not read_facts(sql, dialect).ordered


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
    assert read_facts(sql, "mysql").leaves_choice is expected


@given(
    st.text("SELECT order by ()'\"`;-/*\n\0é", max_size=30), st.sampled_from(["mysql", "sqlite"])
)
def test_any_text_can_be_read(sql: str, dialect: str) -> None:
    read_facts(sql, dialect)


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for dialect, sql in QUERIES + CHANGES:
            read_facts.__wrapped__(sql, dialect)
    assert not caplog.records


SCRIPT = """
CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, score REAL, team TEXT);
INSERT INTO t VALUES
    (1, 'a', 2.0, 'x'), (2, 'b', 1.0, 'x'), (3, 'c', 2.0, 'y'), (4, 'd', NULL, 'y'),
    (5, 'e', 1.0000000001, 'z'), (6, 'f', 2.0, 'Y');
"""


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(SCRIPT)
        yield made


def found(connection: sqlite3.Connection, sql: str) -> list[TiedRows] | None:
    query = read_facts(sql, "sqlite").query
    assert query is not None
    keyed = add_order_keys(query, "sqlite")
    return None if keyed is None else group_rows(keyed, connection.execute(keyed.sql).fetchall())


def places(connection: sqlite3.Connection, sql: str) -> list[tuple[set[Row], int]] | None:
    made = found(connection, sql)
    return None if made is None else [(set(map(tuple, group.rows)), group.take) for group in made]


def rows(*ids: int) -> set[Row]:
    return {(number,) for number in ids}


CASES = [
    ("SELECT id FROM t ORDER BY id LIMIT 2", [(rows(1), 1), (rows(2), 1)]),
    ("SELECT id FROM t ORDER BY score", [(rows(4), 1), (rows(2, 5), 2), (rows(1, 3, 6), 3)]),
    ("SELECT id FROM t ORDER BY score DESC LIMIT 1", [(rows(1, 3, 6), 1)]),
    ("SELECT id FROM t ORDER BY score DESC LIMIT 3 OFFSET 2",
     [(rows(1, 3, 6), 1), (rows(2, 5), 2)]),
    ("SELECT id FROM t ORDER BY score DESC LIMIT 0", []),
    ("SELECT id FROM t ORDER BY score DESC LIMIT 9 OFFSET 5", [(rows(4), 1)]),
    ("SELECT id FROM t WHERE id = 9 ORDER BY score", []),
    ("SELECT id FROM t WHERE id < 4 ORDER BY score, name DESC",
     [(rows(2), 1), (rows(3), 1), (rows(1), 1)]),
    ("(SELECT id FROM t WHERE id < 4 ORDER BY 1)", [(rows(1), 1), (rows(2), 1), (rows(3), 1)]),
    ("SELECT team, COUNT(*) AS n FROM t GROUP BY team ORDER BY n DESC",
     [({("x", 2), ("y", 2)}, 2), ({("z", 1), ("Y", 1)}, 2)]),
    ("SELECT team FROM t GROUP BY team ORDER BY COUNT(*) DESC LIMIT 1", [({("x",), ("y",)}, 1)]),
    ("SELECT team FROM t WHERE team <> 'x' UNION SELECT name FROM t WHERE id = 1 ORDER BY 1",
     [({("Y",)}, 1), ({("a",)}, 1), ({("y",)}, 1), ({("z",)}, 1)]),
    ("SELECT DISTINCT score FROM t WHERE id < 4 ORDER BY score", [({(1.0,)}, 1), ({(2.0,)}, 1)]),
    ("SELECT id FROM t ORDER BY LENGTH(name)", [(rows(1, 2, 3, 4, 5, 6), 6)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), CASES)
def test_the_places_of_rows(
    connection: sqlite3.Connection, sql: str, expected: list[tuple[set[Row], int]]
) -> None:
    assert places(connection, sql) == expected


def test_a_star_before_the_keys(connection: sqlite3.Connection) -> None:
    for sql in (
        "SELECT *, score AS s FROM t WHERE id IN (1, 3) ORDER BY s",
        "SELECT * FROM t WHERE id IN (1, 3) ORDER BY score",
        "SELECT t.*, team FROM t WHERE id IN (1, 3) ORDER BY score, LENGTH(name)",
    ):
        made = found(connection, sql)
        assert made is not None
        assert [len(group.rows) for group in made] == [2]
        width = len(connection.execute(sql).description)
        assert all(len(row) == width for row in made[0].rows)


UNKNOWN = [
    "SELECT DISTINCT team FROM t ORDER BY score",
    "SELECT id FROM t ORDER BY name COLLATE NOCASE",
    "SELECT id FROM t ORDER BY score LIMIT (SELECT 2)",
    "SELECT id FROM t ORDER BY score LIMIT 2 OFFSET 1 + 1",
]


@pytest.mark.parametrize("sql", UNKNOWN)
def test_where_it_cannot_be_known(connection: sqlite3.Connection, sql: str) -> None:
    connection.execute(sql)  # it is a query that works
    assert places(connection, sql) is None


def test_texts_that_differ_in_case_are_one_key(connection: sqlite3.Connection) -> None:
    sql = "SELECT id FROM t WHERE id IN (3, 6) ORDER BY team"
    assert places(connection, sql) == [(rows(3, 6), 2)]
