"""Small folders, laid out as the benchmarks' authors lay out theirs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

SHOP = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL);
INSERT INTO item VALUES (1, 'pen', 1.5), (2, 'ink', 8.0), (3, 'Pen', 1.5), (4, NULL, NULL);
CREATE TABLE sale (item INTEGER REFERENCES item (id), day TEXT, amount INTEGER);
INSERT INTO sale VALUES (1, '2020-01-01', 3), (2, '2020-01-02', 1), (1, '2020-01-02', 2);
"""
TABLES = [
    {
        "db_id": "shop",
        "table_names_original": ["item", "sale"],
        "column_names_original": [
            *([-1, "*"], [0, "id"], [0, "name"], [0, "price"]),
            *([1, "item"], [1, "day"], [1, "amount"]),
        ],
    }
]
TABLES_OF_SHOP = {"item": ["id", "name", "price"], "sale": ["item", "day", "amount"]}
QUESTIONS = [
    ("How many items are there?", "SELECT count(*) FROM item"),
    ("What sold?", 'SELECT name FROM item WHERE id IN (SELECT item FROM sale) AND name != "x"'),
    (
        "Names and days, latest first?",
        "SELECT T1.name, T2.day FROM item AS T1 JOIN sale AS T2 ON T1.id = T2.item "
        "ORDER BY T2.day DESC, T1.name",
    ),
]


def database(path: Path, script: str = SHOP) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def spider(folder: Path) -> Path:
    """Spider's, with its three splits."""
    rows = [{"db_id": "shop", "question": q, "query": sql} for q, sql in QUESTIONS]
    write(folder / "dev.json", rows)
    write(folder / "train_spider.json", rows[:2])
    write(folder / "train_others.json", rows[2:])
    write(folder / "test.json", rows[:1])
    write(folder / "tables.json", TABLES)
    write(folder / "test_tables.json", TABLES)
    database(folder / "database" / "shop" / "shop.sqlite")
    database(folder / "test_database" / "shop" / "shop.sqlite")
    return folder


def bird(folder: Path, name: str = "dev.json") -> Path:
    """BIRD's."""
    levels = ["simple", "moderate", "challenging"]
    rows = [
        {
            "question_id": 100 + number,
            "db_id": "shop",
            "question": question,
            "evidence": "sold refers to table sale" if number == 1 else "",
            "SQL": sql,
            "difficulty": levels[number],
        }
        for number, (question, sql) in enumerate(QUESTIONS)
    ]
    write(folder / name, rows)
    write(folder / "dev_tables.json", TABLES)
    database(folder / "dev_databases" / "shop" / "shop.sqlite")
    return folder


def wikisql(folder: Path) -> Path:
    """WikiSQL's: one table, in a database that holds it in lower case."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(
        folder / "dev.tables.jsonl",
        [
            {
                "id": "1-10-2",
                "header": ["Player", "No.", "School/Club Team"],
                "types": ["text", "real", "text"],
                "rows": [],
            }
        ],
    )
    queries = [
        ("Which numbers?", {"sel": 1, "agg": 0, "conds": [[0, 0, "Ann O'Hara"]]}),
        ("How many?", {"sel": 0, "agg": 3, "conds": [[1, 1, "1,005.5"], [2, 0, "Duke"]]}),
        ("The most?", {"sel": 1, "agg": 1, "conds": []}),
        ("Who wears 7?", {"sel": 0, "agg": 0, "conds": [[1, 2, 8]]}),
    ]
    rows = [{"question": q, "table_id": "1-10-2", "sql": sql} for q, sql in queries]
    write_lines(folder / "dev.jsonl", rows)
    database(
        folder / "dev.db",
        "CREATE TABLE table_1_10_2 (col0 text, col1 real, col2 text);"
        "INSERT INTO table_1_10_2 VALUES ('ann o''hara', 7, 'duke'), ('bo', 2000, 'duke');",
    )
    return folder
