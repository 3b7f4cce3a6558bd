"""The SQL environment, through its public interface, on every engine."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import intercode
from intercode.envs.sql import SqlEnv
from intercode.errors import TaskError, UsageError
from intercode.task import Dataset, Task
from intercode_sandbox.base import Limits

from .conftest import MakeSql
from .sql_tasks import TASKS, attempt

SESSIONS = int(os.environ.get("INTERCODE_SOAK_SESSIONS", "16"))
"""How many are open at once."""


def test_an_observation_is_a_table(make_sql: MakeSql) -> None:
    env = make_sql()
    query, _ = env.reset(options={"task_id": "names"})
    assert query == "The customers' names, in any order."
    observation, reward, terminated, truncated, info = env.step(
        "SELECT id, name, city FROM customer ORDER BY id"
    )
    assert observation.split("\n") == [
        "id | name | city",
        "---+------+-----",
        " 1 | Ann  | Oslo",
        " 2 | Zoë  | Köln",
        " 3 | Bo   | NULL",
        " 4 | 李   | Oslo",
        "(4 rows)",
    ]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"task_id": "names", "turn": 1, "turns_left": 9, "ok": True}


def test_an_error_is_an_observation(make_sql: MakeSql) -> None:
    env = make_sql()
    env.reset(options={"task_id": "names"})
    observation, *_, info = env.step("SELECT nothing FROM customer")
    assert observation.startswith("Error")
    assert "nothing" in observation
    assert not info["ok"]
    observation, *_, info = env.step("SELECT COUNT(*) FROM customer")
    assert "4" in observation
    assert info["ok"]


def test_long_results_are_cut_and_say_so(make_sql: MakeSql) -> None:
    env = make_sql(max_rows=2)
    env.reset(options={"task_id": "names"})
    observation, *_, info = env.step("SELECT id FROM customer ORDER BY id")
    assert observation.endswith("(the first 2 of 4 rows)")
    assert info["truncated"]
    # What is not shown counts all the same.
    assert env.step("SELECT name FROM customer")[4]["truncated"]
    assert env.step("submit")[1] == 1.0


def test_gold_solves_and_doing_nothing_does_not(make_sql: MakeSql) -> None:
    env = make_sql()
    for task in TASKS:
        assert attempt(env, task.task_id, task.gold[0]) == 1.0, task.task_id
        assert attempt(env, task.task_id) == 0.0, task.task_id
        assert attempt(env, task.task_id, task.gold[0]) == 1.0, task.task_id


CHANGES = (
    "DELETE FROM purchase",
    "UPDATE customer SET name = 'nobody'",
    "INSERT INTO voucher VALUES ('A', 1), ('B', 0)",
    "DROP TABLE purchase",
    "CREATE TABLE extra (id INTEGER)",
    "CREATE VIEW everybody AS SELECT * FROM customer",
    "ALTER TABLE customer ADD COLUMN age INTEGER",
)


def test_the_next_episode_knows_nothing_of_a_change(make_sql: MakeSql) -> None:
    env = make_sql()
    # All of them before gold has run for the first time, whose results are kept; then each.
    for number, change in enumerate((*CHANGES, *CHANGES)):
        env.reset(options={"task_id": "names"})
        assert env.step(change)[4]["ok"], change
        if number >= len(CHANGES):
            for task_id in ("names", "rich", "add", "table"):
                assert attempt(env, task_id, env.dataset[task_id].gold[0]) == 1.0, change


def test_parallel_episodes_never_see_each_other(make_sql: MakeSql) -> None:
    """All are played at once, half of them writing."""
    # One of many that are busy may have to wait for its turn.
    envs = [make_sql(limits=Limits(timeout=60)) for _ in range(SESSIONS)]

    def episode(number: int) -> None:
        env = envs[number]
        env.reset(options={"task_id": "names"})
        if number % 2:
            env.step(f"INSERT INTO voucher VALUES ('mine', {number})")
            env.step("DELETE FROM purchase")
            env.step(f"CREATE TABLE t{number} (id INTEGER)")
            seen = env.step("SELECT used FROM voucher")[0]
            assert str(number) in seen
            assert "(1 row)" in seen
            assert (
                "(no rows)" in env.step("SELECT * FROM purchase")[0]
                or "(0 rows)" in seen
                or ("(0 rows)" in env.step("SELECT * FROM purchase")[0])
            )
        else:
            assert "(0 rows)" in env.step("SELECT used FROM voucher")[0]
            assert "(5 rows)" in env.step("SELECT * FROM purchase")[0]

    with ThreadPoolExecutor(SESSIONS) as pool:
        for _ in range(2):
            list(pool.map(episode, range(SESSIONS)))
    with ThreadPoolExecutor(SESSIONS) as pool:
        rewards = pool.map(lambda env: attempt(env, "rich", env.dataset["rich"].gold[0]), envs)
        assert list(rewards) == [1.0] * SESSIONS


def test_a_vector_environment(sql_tasks: Dataset) -> None:
    envs = gymnasium.make_vec("intercode-sql-v0", num_envs=3, data=sql_tasks)
    envs.reset(seed=1, options={"task_id": "names"})
    envs.step(("SELECT name FROM customer", "SELECT city FROM customer", "SELECT 1"))
    _, rewards, terminated, *_ = envs.step(("submit",) * 3)
    assert list(rewards) == [1.0, 0.0, 0.0]
    assert terminated.all()
    envs.close()


def test_setup_runs_before_the_agent_and_before_gold(make_sql: MakeSql, sql_tasks: Dataset) -> None:
    prepared = Task(
        "prepared", "Which codes?", ("SELECT code FROM voucher",), db="store",
        setup="INSERT INTO voucher VALUES ('from setup', 1)",
    )  # fmt: skip
    env = make_sql(Dataset([prepared], databases=sql_tasks.databases))
    env.reset()
    assert "from setup" in env.step("SELECT * FROM voucher")[0]
    env.step("SELECT 'from setup' AS code")
    assert env.step("submit")[1] == 1.0


def refused(sql_tasks: Dataset, **fields: Any) -> str:
    given = {"task_id": "t", "query": "?", "gold": ("SELECT 1",), "db": "store", **fields}
    with pytest.raises(TaskError) as caught:
        SqlEnv(Dataset([Task(**given)], databases=sql_tasks.databases))
    return str(caught.value)


def test_what_cannot_be_tried_is_refused_before_anything_starts(sql_tasks: Dataset) -> None:
    assert "no database 'elsewhere'" in refused(sql_tasks, db="elsewhere")
    assert "field 'gold' is missing" in refused(sql_tasks, gold=())
    assert "field 'verification'" in refused(sql_tasks, verification="true")
    assert "field 'files'" in refused(sql_tasks, files={"a": "b"})
    with pytest.raises(UsageError, match="max_rows"):
        SqlEnv(sql_tasks, max_rows=0)
    with pytest.raises(UsageError, match="no engine 'oracle'"):
        SqlEnv(sql_tasks, engine="oracle")


def test_a_setup_that_fails_is_the_task_s_fault(make_sql: MakeSql, sql_tasks: Dataset) -> None:
    broken = Task("broken", "?", ("SELECT 1",), setup="INSERT INTO nowhere VALUES (1)", db="store")
    env = make_sql(Dataset([broken], databases=sql_tasks.databases))
    with pytest.raises(TaskError, match=r"task 'broken': setup failed: .*nowhere"):
        env.reset()


def test_make_by_the_short_name(sql_tasks: Dataset) -> None:
    env = intercode.make("sql", data=sql_tasks, engine="sqlite")
    assert isinstance(env, SqlEnv)
    env.close()


# The last one takes time: how much of 1.0 a right answer is worth is for the machine to say.
@pytest.mark.parametrize(
    ("name", "least"), [("bird-ex", 1.0), ("bird-soft-f1", 1.0), ("bird-r-ves", 0.25)]
)
def test_other_rewards_by_name(sql_tasks: Dataset, name: str, least: float) -> None:
    with closing(SqlEnv(sql_tasks, reward=name)) as env:
        assert least <= attempt(env, "ranked", "SELECT name FROM customer ORDER BY 1") <= 1.0
        assert attempt(env, "ranked", "SELECT id FROM customer") == 0.0
        assert attempt(env, "ranked") == 0.0


def test_a_reward_that_there_is_not(sql_tasks: Dataset) -> None:
    with pytest.raises(UsageError, match="no reward 'sql:best'"):
        SqlEnv(sql_tasks, reward="best")


def test_whether_columns_may_be_permuted_is_an_option(sql_tasks: Dataset) -> None:
    answer = "SELECT SUM(amount), customer_id FROM purchase GROUP BY customer_id"
    for permute, worth in ((True, 1.0), (False, 0.0)):
        with closing(SqlEnv(sql_tasks, permute_columns=permute)) as env:
            assert attempt(env, "rich", answer) == worth
    with pytest.raises(UsageError, match="its own"):
        SqlEnv(sql_tasks, permute_columns=True, reward="bird-ex")


def test_one_file_is_the_database_of_its_name_alone(tmp_path: Path) -> None:
    """A folder's databases are told apart by their names; a single file has one, too."""
    for name in ("shop.sql", "more.stock.sql"):
        (tmp_path / name).write_text("CREATE TABLE item (id INTEGER); INSERT INTO item VALUES (7);")
    for file, db, other in (
        ("shop.sql", "shop", "other"),
        ("more.stock.sql", "more.stock", "more"),
    ):
        place = tmp_path / file
        for named in (db, None):
            task = Task("one", "The item.", gold=("SELECT id FROM item",), db=named)
            with closing(SqlEnv(Dataset([task]), databases=place)) as env:
                assert attempt(env, "one", "SELECT id FROM item") == 1.0
        for wrong in (other, db.upper(), file):
            task = Task("one", "The item.", gold=("SELECT id FROM item",), db=wrong)
            with pytest.raises(TaskError, match=f"'one': .*: no database '{wrong}', but '{db}'"):
                SqlEnv(Dataset([task]), databases=place)
