"""Many SQL episodes in one process leave nothing behind: no descriptor, process, mount, file."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from envs.haste import haste
from intercode.databases import get_engine
from intercode.envs.sql import SqlEnv
from intercode_sandbox.base import Limits
from open_resources import held, held_once
from waiting import PATIENCE

EPISODES = int(os.environ.get("INTERCODE_SOAK_EPISODES", "20"))
ENDLESS = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r"


def episode(env: SqlEnv, number: int) -> None:
    """A busy one: some write, some drop what they find, some do not end."""
    task = env.dataset[number % len(env.dataset)]
    env.reset(options={"task_id": task.task_id})
    env.step(task.gold[0])
    if number % 3 == 0:
        env.step(f"CREATE TABLE extra_{number} (a INTEGER)")
        env.step("BEGIN")
    if number % 40 == 0:
        with haste(env):
            env.step(ENDLESS)
    env.step("submit")


@pytest.mark.timeout(1800 + EPISODES)
@pytest.mark.parametrize("name", ["sqlite", "mysql", "postgresql"])
def test_nothing_grows(name: str) -> None:
    with closing(get_engine(name)) as engine, closing(SqlEnv(engine=engine)) as env:
        episode(env, 1)  # what a process has once, such as its claim on the cache
    before = held()
    with (
        closing(get_engine(name)) as engine,
        closing(SqlEnv(engine=engine, limits=Limits(timeout=PATIENCE))) as env,
    ):
        for number in range(len(env.dataset)):  # every task's database is in the pools
            episode(env, number)
        full = held()
        for number in range(EPISODES):
            episode(env, number)

        def as_full(found: dict[str, int]) -> bool:
            # What is ready ahead may be a few more or fewer at the moment of looking.
            return all(found[what] <= full[what] + 12 for what in full)

        after = held_once(as_full)
    assert as_full(after), (full, after)

    def as_before(found: dict[str, int]) -> bool:
        return all(found[what] <= before[what] for what in ("descriptors", "processes", "mounts"))

    left = held_once(as_before)
    assert as_before(left), (before, left)
