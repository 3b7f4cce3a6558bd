"""A small database with real shape, and what the tests of the SQL rewards do with it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from intercode.databases import DatabaseEngine
from intercode.envs.sql import DatabaseStage
from intercode.episode import Episode, Score, Turn
from intercode.interpreters.sql import SqlInterpreter
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql import SqlReward
from intercode.task import Dataset, Task

SCRIPT = """
CREATE TABLE city (name TEXT PRIMARY KEY, country TEXT NOT NULL);
CREATE TABLE customer (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    city TEXT REFERENCES city (name)
);
CREATE TABLE purchase (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customer (id),
    day DATE NOT NULL,
    amount REAL
);
CREATE TABLE voucher (code TEXT PRIMARY KEY, used INTEGER NOT NULL);
CREATE VIEW spent AS SELECT customer_id, SUM(amount) AS total FROM purchase GROUP BY customer_id;
INSERT INTO city VALUES ('Oslo', 'Norway'), ('Köln', 'Germany');
INSERT INTO customer VALUES
    (1, 'Ann', 'Oslo'), (2, 'Zoë', 'Köln'), (3, 'Bo', NULL), (4, '李', 'Oslo');
INSERT INTO purchase VALUES
    (1, 1, '2024-01-31', 10.5), (2, 1, '2024-02-01', NULL), (3, 2, '2024-02-29', 10.5),
    (4, 2, '2024-03-01', 3.25), (5, 4, '2024-12-31', 0.0);
"""


class Store:
    """Scores attempts at tasks over the small database, as the environment would."""

    def __init__(self, engine: DatabaseEngine, folder: Path) -> None:
        (folder / "store.sql").write_text(SCRIPT, encoding="utf-8")
        self.databases = DatabaseStage(engine, Dataset([], databases=str(folder)))
        self.reward = SqlReward(self.databases, GoldCache())

    def task(self, *golds: str, **fields: Any) -> Task:
        return Task("t", "?", golds, db="store", **fields)

    def score(self, gold: str | Task, *actions: str, reward: Any = None) -> Score:
        """The score of an episode of these actions."""
        task = self.task(gold) if isinstance(gold, str) else gold
        episode = Episode(task.task_id, task.query, "sql")
        with closing(self.databases.open(task)) as session:
            interpreter = SqlInterpreter(session)
            for action in actions:
                done = interpreter.execute(action)
                turn = Turn(action, done.observation, ok=done.ok, info=done.info)
                episode.turns.append(turn)
            episode.status = "submitted"
            score: Score = (reward or self.reward)(task, episode, session)
        return score

    def value(self, gold: str | Task, *actions: str) -> float:
        return self.score(gold, *actions).value
