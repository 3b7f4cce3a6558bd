"""Spider's test-suite accuracy, on a folder of real SQLite files."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from intercode.databases import DatabaseEngine, StatementResult
from intercode.databases.base import Row
from intercode.envs.sql import DatabaseStage
from intercode.episode import Episode, Score, Turn
from intercode.errors import UsageError
from intercode.rewards.spider_test_suite import SqlTestSuiteReward, equal, prepare
from intercode.task import Dataset, Task

from .sql_store import Store

GOLD = "SELECT name FROM pet WHERE age > 5"
SUITE = {
    "pets": [("Rex", 7), ("Tom", 3)],
    "pets_1": [("Rex", 5), ("Tom", 6)],
    "pets_2": [("Rex", 9), ("Rex", 9)],
}


def result(rows: list[Row]) -> StatementResult:
    return StatementResult(("c",) * (len(rows[0]) if rows else 1), rows, len(rows))


def are_equal(gold: list[Row], answer: list[Row], ordered: bool = False) -> bool:
    return equal(result(gold), result(answer), ordered)


def test_columns_may_be_permuted() -> None:
    assert are_equal([(1, "a"), (2, "b")], [("b", 2), ("a", 1)])
    assert are_equal([(1, "a"), (2, "b")], [("a", 1), ("b", 2)], ordered=True)
    assert not are_equal([(1, "a"), (2, "b")], [("b", 2), ("a", 1)], ordered=True)
    assert not are_equal([(1, 2), (2, 1)], [(1, 1), (2, 2)])


def test_rows_are_a_multiset() -> None:
    assert not are_equal([(1,), (1,), (2,)], [(1,), (2,), (2,)])
    assert not are_equal([(1,)], [(1,), (1,)])
    assert are_equal([], [])
    assert not are_equal([], [(1,)])
    assert not are_equal([(1,)], [(1, 1)])


def test_values_are_equal_as_python_has_it() -> None:
    assert are_equal([(1,)], [(1.0,)])
    assert not are_equal([(0.3,)], [(0.1 + 0.2,)])
    assert not are_equal([(1,)], [("1",)])


def test_many_columns_take_no_time() -> None:
    gold = [tuple(range(n, n + 12)) for n in range(50)]
    assert are_equal(gold, [row[::-1] for row in gold])
    assert not are_equal(gold, [(*row[:0:-1], -1) for row in gold])
    assert are_equal([(1,) * 40] * 9, [(1,) * 40] * 9)


tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 2)] * width), min_size=1, max_size=4)
)


@given(tables, tables, st.booleans())
def test_it_agrees_with_trying_all_orders(gold: list[Row], other: list[Row], ordered: bool) -> None:
    answer = [row[: len(gold[0])] for row in other]
    if len(answer[0]) < len(gold[0]):
        return
    orders = permutations(range(len(gold[0])))
    arranged = ([tuple(row[index] for index in order) for row in answer] for order in orders)
    expected = any(rows == gold if ordered else sorted(rows) == sorted(gold) for rows in arranged)
    assert are_equal(gold, answer, ordered) is expected


def test_how_statements_are_prepared() -> None:
    sql = "SELECT COUNT(DISTINCT a), 'distinct' FROM t WHERE b > = YEAR(CURDATE())-1 AND c ! = 2"
    assert (
        prepare(sql, "mysql") == "SELECT COUNT( a), 'distinct' FROM t WHERE b >= 2020-1 AND c != 2"
    )
    assert "DISTINCT" in prepare(sql, "mysql", keep_distinct=True)
    assert prepare("SELECT 'it", "sqlite") == "SELECT 'it"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the authors ship it: database/NAME/*.sqlite."""
    root = tmp_path_factory.mktemp("database")
    (root / "pets").mkdir()
    for name, rows in SUITE.items():
        with closing(sqlite3.connect(root / "pets" / f"{name}.sqlite")) as connection:
            connection.execute("CREATE TABLE pet (name TEXT, age INTEGER)")
            connection.executemany("INSERT INTO pet VALUES (?, ?)", rows)
            connection.commit()
    return root


def score(
    engine: DatabaseEngine, folder: Path, gold: str, answer: str | None, **options: bool
) -> Score:
    task = Task("t", "?", (gold,), db="pets")
    databases = DatabaseStage(engine, Dataset([task], databases=str(folder)))
    turns = [] if answer is None else [Turn(answer, "", info={"columns": 1})]
    episode = Episode("t", "?", "sql", turns=turns)
    with closing(databases.open(task)) as session:
        return SqlTestSuiteReward(databases, **options)(task, episode, session)


def test_it_must_agree_on_every_database(sqlite_engine: DatabaseEngine, folder: Path) -> None:
    assert score(sqlite_engine, folder, GOLD, "SELECT name FROM pet WHERE age >= 6").value == 1.0
    found = score(sqlite_engine, folder, GOLD, "SELECT name FROM pet WHERE name = 'Rex'")
    assert found.value == 0.0
    assert found.parts == {"databases": 2 / 3}
    assert found.detail == {"differing": ["pets_1.sqlite"]}
    assert score(sqlite_engine, folder, GOLD, None).parts == {"databases": 0.0}
    assert score(sqlite_engine, folder, GOLD, "SELECT nothing FROM pet").value == 0.0


def test_distinct_counts_only_if_kept(sqlite_engine: DatabaseEngine, folder: Path) -> None:
    answer = f"SELECT DISTINCT {GOLD.removeprefix('SELECT ')}"
    assert score(sqlite_engine, folder, GOLD, answer).value == 1.0
    assert score(sqlite_engine, folder, GOLD, answer, keep_distinct=True).value == 0.0


def test_order_counts_where_gold_orders(sqlite_engine: DatabaseEngine, folder: Path) -> None:
    gold, answer = "SELECT age FROM pet ORDER BY age", "SELECT age FROM pet ORDER BY age DESC"
    assert score(sqlite_engine, folder, gold, answer).value == 0.0
    assert score(sqlite_engine, folder, "SELECT age FROM pet", answer).value == 1.0


def test_without_a_suite_it_says_so(store: Store) -> None:
    with pytest.raises(UsageError, match="so it is not a test suite"):
        store.score("SELECT 1", "SELECT 1", reward=SqlTestSuiteReward(store.databases))
