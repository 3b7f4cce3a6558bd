from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from intercode.databases.convert.schema import read_schema
from intercode.rewards.database_mutator import mutate
from intercode.rewards.sql_conditions import (
    ColumnCondition,
    ConstantComparison,
    QueryConditions,
    RowLookup,
    collect_conditions,
)
from intercode.rewards.sql_gold import read_facts

from .sql_store import SCRIPT

MORE = """
CREATE TABLE empty (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customer (id),
    day DATE, at DATETIME, word TEXT NOT NULL, share REAL CHECK (share < 100));
CREATE TABLE pair (one TEXT, two INTEGER, PRIMARY KEY (one, two)) WITHOUT ROWID;
CREATE TABLE squares (n INTEGER UNIQUE, square INTEGER AS (n * n) STORED);
CREATE TABLE deleted (id INTEGER);
CREATE TRIGGER log AFTER DELETE ON purchase BEGIN INSERT INTO deleted VALUES (OLD.id); END;
INSERT INTO pair VALUES ('a', 1), ('b', 2);
CREATE TABLE pupil (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);
INSERT INTO pupil VALUES (1, 'Kim', 9), (2, 'Kim', 9), (3, 'Lou', 8);
INSERT INTO squares (n) VALUES (1), (2), (3), (4), (5);
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("origin") / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCRIPT + MORE)
    return path


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


ASKED = QueryConditions(
    (ColumnCondition("customer", "city", ("Rome",)), ColumnCondition("", "amount", (7,))), 3
)


def test_the_same_seed_gives_the_same_copy(origin: Path, tmp_path: Path) -> None:
    before = content(origin)
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        mutate(origin, tmp_path / name, ASKED, seed)
    assert content(tmp_path / "a") == content(tmp_path / "b") != content(tmp_path / "c")
    assert content(origin) == before


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_is_sound(origin: Path, tmp_path: Path, seed: int) -> None:
    copy = tmp_path / "copy"
    mutate(origin, copy, ASKED, seed)
    assert query(copy, "PRAGMA integrity_check") == [("ok",)]
    assert query(copy, "PRAGMA foreign_key_check") == []
    for sql in ("SELECT COUNT(*) FROM purchase", "SELECT COUNT(*) FROM empty"):
        assert query(copy, sql) > [(0,)]
    assert query(copy, "SELECT COUNT(*) FROM squares WHERE square <> n * n") == [(0,)]
    ours, theirs = read_schema(origin), read_schema(copy)
    assert [view.sql for view in ours.views] == [view.sql for view in theirs.views]
    for one, other in zip(ours.tables, theirs.tables, strict=True):
        assert (one.name, one.primary_key, one.uniques) == (
            other.name,
            other.primary_key,
            other.uniques,
        )
        assert one.foreign_keys == other.foreign_keys
        if one.name != "empty":  # without rows, its types are those that were declared
            assert [c.type.kind for c in one.columns] == [c.type.kind for c in other.columns]


def test_triggers_stay_but_do_not_fire(origin: Path, tmp_path: Path) -> None:
    mutate(origin, tmp_path / "copy", QueryConditions(), 0)
    names = query(tmp_path / "copy", "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    assert names == [("log",)]


def test_what_is_asked_for_is_planted(origin: Path, tmp_path: Path) -> None:
    for seed in range(5):
        copy = tmp_path / str(seed)
        mutate(origin, copy, ASKED, seed)
        # The city is a key into another table, which gets it, too.
        there = "SELECT COUNT(*) FROM customer JOIN city ON city = city.name WHERE city = 'Rome'"
        assert query(copy, there) > [(0,)]
        assert query(copy, "SELECT COUNT(*) FROM purchase WHERE amount = 7") > [(0,)]


def test_as_many_rows_as_are_counted(origin: Path, tmp_path: Path) -> None:
    mutate(origin, tmp_path / "copy", QueryConditions(count=20), 0)
    most = "SELECT COUNT(*) FROM empty GROUP BY word ORDER BY 1 DESC LIMIT 1"
    assert query(tmp_path / "copy", most) > [(20,)]


CONDITIONS = [
    ("a = 1", ("", "a", (1,))),
    ("t.a = -1.5", ("t", "a", (-1.5,))),
    ("x.a = 'b'", ("t", "a", ("b",))),
    ('LOWER(a) = "b"', ("", "a", ("b",))),
    ("3 < a", ("", "a", (4, 3))),
    ("a >= 3", ("", "a", (3, 4))),
    ("a <= 3", ("", "a", (3, 2))),
    ("a != 3", ("", "a", (3,))),
    ("a > '2024-02-28'", ("", "a", ("2024-02-29", "2024-02-28"))),
    ("a < '2024-03-01 10:00:00'", ("", "a", ("2024-02-29 10:00:00", "2024-03-01 10:00:00"))),
    ("a > 'k'", ("", "a", ("kz", "k"))),
    ("a LIKE '%b_c%'", ("", "a", ("bac",))),
    ("a IN (1, 'b', NULL)", ("", "a", (1, "b"))),
    ("a BETWEEN 1 AND 9", ("", "a", (1, 9))),
    ("CAST(a AS REAL) = 2", ("", "a", (2,))),
    ("strftime('%Y', a) = '2024'", ("", "a", ("2024",))),
]


@pytest.mark.parametrize(("condition", "expected"), CONDITIONS)
def test_the_conditions_of_a_query(condition: str, expected: tuple[object, ...]) -> None:
    sql = f"SELECT * FROM t AS x, u WHERE {condition.replace('t.', 'x.')}"
    query = read_facts(sql, "sqlite").query
    assert query is not None
    found = collect_conditions(query)
    assert (found.conditions, found.count) == ((ColumnCondition(*expected),), 0)  # type: ignore[arg-type]


def test_the_lookups_of_a_query() -> None:
    sql = (
        "SELECT a FROM t JOIN u ON t.id = u.id AND u.c = 3 WHERE t.a = 'x' AND "
        "LOWER(t.b) LIKE 'y%' AND (t.d = 1 OR t.d = 2) AND YEAR(t.e) = 2024 AND 5 = u.f"
    )
    query = read_facts(sql, "mysql").query
    assert query is not None
    a, b = ConstantComparison("a", "=", "x"), ConstantComparison("b", "LIKE", "y%")
    c, f = ConstantComparison("c", "=", 3), ConstantComparison("f", "=", 5)
    assert set(collect_conditions(query).lookups) == {
        *(
            RowLookup("t", (one,))
            for one in (a, b, ConstantComparison("d", "=", 1), ConstantComparison("d", "=", 2))
        ),
        *(RowLookup("t", both) for both in ((a, b),)),
        *(RowLookup("u", both) for both in ((c,), (f,), (c, f))),
    }


def test_the_conditions_of_all_parts_of_a_query() -> None:
    sql = (
        "SELECT a FROM T WHERE b = 1 AND c = d AND e IS NULL GROUP BY a HAVING COUNT(*) > 5 "
        "UNION SELECT a FROM v AS t WHERE t.b IN (SELECT f FROM w WHERE t.g = 2 AND h = 3)"
    )
    query = read_facts(sql, "mysql").query
    assert query is not None
    found = collect_conditions(query)
    assert found.count == 5
    assert set(found.conditions) == {
        ColumnCondition("t", "b", (1,)),
        ColumnCondition("v", "g", (2,)),
        ColumnCondition("w", "h", (3,)),
    }


@pytest.mark.parametrize("seed", range(10))
def test_names_that_stand_once_go_on_doing_so(origin: Path, tmp_path: Path, seed: int) -> None:
    copy = tmp_path / "copy"
    asked = QueryConditions(
        (
            ColumnCondition("customer", "name", ("ann", "Eve")),
            ColumnCondition("pupil", "name", ("Lou", "Kim")),
        )
    )
    mutate(origin, copy, asked, seed, is_gentle=True)
    assert query(copy, "SELECT COUNT(*) - COUNT(DISTINCT name) FROM customer") == [(0,)]
    assert query(copy, "SELECT name FROM customer WHERE id = 1") == [("Ann",)]
    assert query(copy, "SELECT COUNT(*) FROM customer WHERE name = 'Eve'") in ([(0,)], [(1,)])
    assert query(copy, "SELECT id FROM pupil WHERE name = 'Lou'") == [(3,)]
    assert query(copy, "SELECT COUNT(*) FROM pupil WHERE name = 'Kim'") > [(2,)]
    assert content(copy) != content(origin)


SINGLES = [
    ("customer", (ConstantComparison("name", "=", "ann"),)),
    ("customer", (ConstantComparison("name", "LIKE", "Z%"),)),
    ("customer", (ConstantComparison("name", "=", "Eve"),)),
    ("pupil", (ConstantComparison("age", "=", 8),)),
    (
        "purchase",
        (ConstantComparison("customer_id", "=", 1), ConstantComparison("amount", "=", 10.5)),
    ),
]


@pytest.mark.parametrize("gentle", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_looked_up_stands_once_in_every_copy(
    origin: Path, tmp_path: Path, seed: int, gentle: bool
) -> None:
    lookups = [RowLookup(table, comparisons) for table, comparisons in SINGLES]
    conditions = [
        ColumnCondition(table, one.column, (str(one.value).replace("%", "oë"),))
        for table, comparisons in SINGLES
        for one in comparisons
    ]
    mutate(
        origin,
        tmp_path / "copy",
        QueryConditions((*conditions,), 0, (*lookups,)),
        seed,
        is_gentle=gentle,
    )
    for table, comparisons in SINGLES:
        where = " AND ".join(
            f"{c.column} {c.operator} '{c.value}' COLLATE NOCASE" for c in comparisons
        )
        found = query(tmp_path / "copy", f"SELECT COUNT(*) FROM {table} WHERE {where}")
        assert found in ([(0,)], [(1,)]), where


def test_a_rough_copy_moves_what_is_looked_up(origin: Path, tmp_path: Path) -> None:
    asked = QueryConditions(
        lookups=(RowLookup("pupil", (ConstantComparison("name", "=", "Lou"),)),)
    )
    found = set()
    for seed in range(20):
        mutate(origin, tmp_path / str(seed), asked, seed)
        rows = query(tmp_path / str(seed), "SELECT id FROM pupil WHERE name = 'Lou'")
        found.update(rows or [None])
    assert {None, (3,)} < found
