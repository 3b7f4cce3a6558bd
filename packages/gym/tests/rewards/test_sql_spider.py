"""The default reward on Spider's tasks of 2023: gold is right, and no guess is."""

from __future__ import annotations

from contextlib import closing

import pytest

from intercode.databases import DatabaseEngine
from intercode.datasets import spider
from intercode.envs.sql import DatabaseStage
from intercode.episode import Episode, Turn
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql import SqlReward
from intercode.task import Task
from sources import ROOT

UPSTREAM = ROOT.parent / "shared" / "upstream"
DATA = UPSTREAM / "data" / "sql" / "spider" / "ic_spider_dev.json"
GUESSES = ("SELECT 1 FROM (SELECT 1) AS x WHERE 1 = 0", "SELECT 0", "SELECT 1", "SELECT NULL")

pytestmark = pytest.mark.skipif(not DATA.is_file(), reason=f"no recorded runs in {UPSTREAM}")


def test_gold_is_right_and_no_guess_is(sqlite_engine: DatabaseEngine) -> None:
    tasks = spider.load(UPSTREAM)
    databases = DatabaseStage(sqlite_engine, tasks)
    reward = SqlReward(databases, GoldCache())

    def value(task: Task, action: str) -> float:
        turns = [Turn(action, "", info={"columns": 1})]
        with closing(databases.open(task)) as session:
            return reward(task, Episode(task.task_id, "?", "sql", turns=turns), session).value

    chosen = tasks[::5]
    assert [task.task_id for task in chosen if value(task, task.gold[0]) != 1.0] == []
    guessed = [(t.task_id, guess) for t in chosen for guess in GUESSES if value(t, guess) == 1.0]
    assert guessed == []
