"""A small database with real shape, and tasks over it, for the tests of the SQL environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intercode.task import Dataset, Task

if TYPE_CHECKING:
    from intercode.envs.sql import SqlEnv

SCRIPT = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE purchase (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customer (id),
    day TEXT NOT NULL,
    amount REAL
);
CREATE TABLE voucher (code TEXT PRIMARY KEY, used INTEGER NOT NULL);
INSERT INTO customer VALUES
    (1, 'Ann', 'Oslo'), (2, 'Zoë', 'Köln'), (3, 'Bo', NULL), (4, '李', 'Oslo');
INSERT INTO purchase VALUES
    (1, 1, '2024-01-31', 10.5), (2, 1, '2024-02-01', NULL), (3, 2, '2024-02-29', 10.5),
    (4, 2, '2024-03-01', 3.25), (5, 4, '2024-12-31', 0.0);
"""


def task(task_id: str, gold: str | tuple[str, ...], query: str = "?", **fields: object) -> Task:
    golds = (gold,) if isinstance(gold, str) else gold
    return Task(task_id, query, golds, db="store", **fields)  # type: ignore[arg-type]


TASKS = (
    task("names", "SELECT name FROM customer", "The customers' names, in any order."),
    task("ranked", "SELECT name FROM customer ORDER BY name", "The names, in order."),
    task("rich", "SELECT customer_id, SUM(amount) FROM purchase GROUP BY customer_id"),
    task("unsold", "SELECT name FROM customer WHERE city = 'Rome'", "Who lives in Rome?"),
    task("any", "SELECT COUNT(*) FROM voucher WHERE used = 1", "How many vouchers are used?"),
    task("some", "SELECT EXISTS (SELECT 1 FROM customer WHERE city = 'Rome')", "Anybody in Rome?"),
    task("move", "UPDATE customer SET city = 'Bergen' WHERE id = 3", "Bo moves to Bergen."),
    task("add", "INSERT INTO voucher VALUES ('X1', 0)", "Add the unused voucher X1."),
    task("table", "CREATE TABLE note (id INTEGER, words TEXT)", "Make a table note (id, words)."),
)


def dataset(folder: Path) -> Dataset:
    """The tasks, with their database in this folder."""
    (folder / "store.sql").write_text(SCRIPT, encoding="utf-8")
    return Dataset(TASKS, "store", databases=str(folder))


def attempt(env: SqlEnv, task_id: str, *actions: str) -> float:
    """The reward of taking these actions and submitting."""
    env.reset(options={"task_id": task_id})
    for action in actions:
        env.step(action)
    return float(env.step("submit")[1])
