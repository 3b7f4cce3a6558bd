from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from intercode.databases.base import Row
from intercode.rewards.sql_compare import Group
from intercode.rewards.sql_gold import groups, read, with_keys

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


def found(connection: sqlite3.Connection, sql: str) -> list[Group] | None:
    query = read(sql, "sqlite").query
    assert query is not None
    keyed = with_keys(query, "sqlite")
    return None if keyed is None else groups(keyed, connection.execute(keyed.sql).fetchall())


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
