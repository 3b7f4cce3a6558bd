"""Spider, BIRD and WikiSQL as their authors lay them out, on small folders of the same layout."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databases.upstream import SPIDER, UPSTREAM, needs_upstream
from intercode.databases import find
from intercode.databases.convert.build import as_sqlite
from intercode.databases.source import names
from intercode.datasets import bird, load, spider, wikisql
from intercode.datasets.spider import compute_difficulty
from intercode.errors import TaskError
from intercode.rewards.spider_test_suite import sibling_databases
from intercode.task import Dataset

from . import layouts


def results(dataset: Dataset) -> list[list[tuple[Any, ...]]]:
    """What every gold gives, on the database that the dataset names."""
    found = []
    for task in dataset:
        assert dataset.databases is not None
        with closing(sqlite3.connect(as_sqlite(find(dataset.databases, task.db)))) as connection:
            found.append(connection.execute(task.gold[0]).fetchall())
    return found


def test_spider(tmp_path: Path) -> None:
    dataset = spider.load(layouts.spider(tmp_path / "spider_data").parent)
    assert [task.task_id for task in dataset] == ["0", "1", "2"]
    assert [task.tags for task in dataset] == [("easy",), ("extra",), ("medium",)]
    assert dataset[0].query == "How many items are there?"
    metadata = {"hardness": "easy", "dialect": "sqlite", "db_tables": layouts.TABLES_OF_SHOP}
    assert dataset[0].metadata == {**metadata, "permute_columns": True}
    assert [len(rows) for rows in results(dataset)] == [1, 2, 3]


def test_spider_splits(tmp_path: Path) -> None:
    root = layouts.spider(tmp_path)
    train = spider.load(root, "train")
    assert (train.name, [task.task_id for task in train]) == ("spider-train", ["0", "1", "2"])
    test = spider.load(root, "test")
    assert test.databases == str(root / "test_database")
    with pytest.raises(TaskError, match="no split 'evil'"):
        spider.load(root, "evil")


def test_spider_test_suite(tmp_path: Path) -> None:
    root = layouts.spider(tmp_path / "spider")
    folder = tmp_path / "suite" / "database"
    for name in ("shop", "shop_1", "a_shop"):
        layouts.database(folder / "shop" / f"{name}.sqlite")
    dataset = spider.load(root, databases=folder)
    assert dataset.databases == str(folder)
    suite = sibling_databases(dataset[0], find(folder, "shop"))
    assert {source.path.stem for source in suite} == {"shop", "shop_1", "a_shop"}


def test_bird(tmp_path: Path) -> None:
    root = layouts.bird(tmp_path / "dev_20240627").parent
    dataset = bird.load(root)
    assert [task.tags for task in dataset] == [("simple",), ("moderate",), ("challenging",)]
    assert dataset[1].query == "What sold?\nExternal knowledge: sold refers to table sale"
    assert dataset[0].query == "How many items are there?"
    assert dataset[1].metadata == {
        "question_id": 101,
        "evidence": "sold refers to table sale",
        "hardness": "moderate",
        "dialect": "sqlite",
        "db_tables": layouts.TABLES_OF_SHOP,
    }
    assert bird.load(root, evidence=False)[1].query == "What sold?"
    assert [len(rows) for rows in results(dataset)] == [1, 2, 3]
    with pytest.raises(TaskError, match=r"mini_dev_sqlite\.json and dev_databases"):
        bird.load(root, "mini_dev")


def test_bird_mini_dev(tmp_path: Path) -> None:
    layouts.bird(tmp_path / "minidev" / "MINIDEV", "mini_dev_sqlite.json")
    dataset = load("bird-mini-dev", root=tmp_path)
    assert (dataset.name, len(dataset)) == ("bird-mini-dev", 3)


def test_wikisql(tmp_path: Path) -> None:
    dataset = wikisql.load(layouts.wikisql(tmp_path / "data").parent)
    assert [task.gold[0] for task in dataset] == [
        "SELECT col1 FROM table_1_10_2 WHERE col0 = 'ann o''hara'",
        "SELECT COUNT(col0) FROM table_1_10_2 WHERE col1 > 1005.5 AND col2 = 'duke'",
        "SELECT MAX(col1) FROM table_1_10_2",
        "SELECT col0 FROM table_1_10_2 WHERE col1 < 8",
    ]
    assert results(dataset) == [[(7.0,)], [(1,)], [(2000.0,)], [("ann o'hara",)]]
    assert dataset[0].query == (
        "Which numbers? (Use table table_1_10_2, in which col0 is 'Player', col1 is 'No.', "
        "col2 is 'School/Club Team')"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table_id": "2-2-2"}, "there is no table '2-2-2'"),
        ({"sql": {"sel": 9, "agg": 0, "conds": []}}, "field 'sql' is not a query"),
        ({"sql": {"sel": 0, "agg": 0, "conds": [[0, 3, "x"]]}}, "field 'sql' is not a query"),
        ({"sql": {"sel": 0}}, "field 'agg' is missing"),
    ],
)
def test_wikisql_malformed(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    root = layouts.wikisql(tmp_path)
    row = {"question": "q", "table_id": "1-10-2", "sql": {"sel": 0, "agg": 0, "conds": []}}
    layouts.write_lines(root / "dev.jsonl", [{**row, **change}])
    with pytest.raises(TaskError, match=message) as caught:
        wikisql.load(root)
    assert "dev.jsonl: row 1" in str(caught.value)


@pytest.mark.parametrize("name", ["spider", "bird", "bird-mini-dev", "wikisql"])
def test_what_is_not_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERCODE_CACHE", str(tmp_path))
    with pytest.raises(TaskError, match=f"intercode datasets fetch {name}$") as caught:
        load(name)
    assert str(tmp_path / "datasets" / name) in str(caught.value)
    assert "looked for" in str(caught.value)


def test_malformed_rows_are_named(tmp_path: Path) -> None:
    root = layouts.spider(tmp_path)
    layouts.write(root / "dev.json", [{"db_id": "shop", "question": "q"}])
    with pytest.raises(TaskError, match=r"dev\.json: row 1: field 'query' is missing"):
        spider.load(root)
    layouts.write(root / "tables.json", [{"db_id": "shop"}])
    with pytest.raises(TaskError, match=r"tables\.json: row 1"):
        spider.load(root)


@pytest.mark.parametrize(
    ("sql", "level"),
    [
        ("SELECT a FROM t", "easy"),
        ("SELECT a, b FROM t", "medium"),
        ("SELECT a FROM t WHERE x = 1 AND y = 2 OR z = 3", "medium"),
        ("SELECT a FROM t WHERE x LIKE 'y'", "medium"),
        ("SELECT a FROM t EXCEPT SELECT a FROM u", "hard"),
        ("SELECT a, count(*), max(b) FROM t WHERE x = 1 AND y = 1 GROUP BY a, c", "hard"),
        ("SELECT a, b FROM t WHERE x = 1 GROUP BY a, b", "extra"),
        ("SELECT a, b FROM t WHERE x IN (SELECT x FROM u)", "extra"),
        ("not sql", None),
        ("DELETE FROM t", None),
    ],
)
def test_hardness(sql: str, level: str | None) -> None:
    assert compute_difficulty(sql) == level


@needs_upstream
def test_release_of_2023() -> None:
    dataset = spider.load(UPSTREAM)
    assert len(dataset) == 1034
    assert dataset.databases is not None
    assert Path(dataset.databases).samefile(SPIDER)
    assert {task.metadata["dialect"] for task in dataset} == {"mysql"}
    assert {task.db for task in dataset} == set(names(SPIDER))
    levels = Counter(task.tags[0] for task in dataset)
    assert levels == {"easy": 248, "medium": 446, "hard": 174, "extra": 166}
    computed = [compute_difficulty(task.gold[0], "mysql") for task in dataset]
    assert computed == [task.metadata["hardness"] for task in dataset]
    assert spider.load(SPIDER.parent) == dataset

    stored = bird.load(UPSTREAM, evidence=False)
    assert (len(stored), stored.databases) == (338, None)
    assert "External knowledge" not in "".join(task.query for task in stored)
    assert bird.load(UPSTREAM, databases="here").databases == "here"


@needs_upstream
def test_wikisql_of_2023_is_repaired() -> None:
    repaired, published = wikisql.load(UPSTREAM), wikisql.load(UPSTREAM, repair=False)
    assert len(repaired) == len(published) == 196
    assert repaired[1].metadata["gold_as_published"] == published[1].gold[0]
    path = as_sqlite(find(repaired.databases or "", "dev"))
    rows = results(repaired)  # all of them run
    assert sum(not found for found in rows) == 11
    same = [_rows(path, old.gold[0]) for old in published]
    # What is valid as published means the same, or nothing: 2-13 is no record, but -11.
    assert sum(found is not None for found in same) == 196 - 174
    assert sum(found == [] for found in same) == 7
    assert all(not found or found == new for found, new in zip(same, rows, strict=True))


def _rows(path: Path, sql: str) -> list[tuple[Any, ...]] | None:
    with closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.Error:
            return None
