"""The default SQL reward, on real SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from intercode.databases import DatabaseSession, DatabaseSource
from intercode.databases.base import Role
from intercode.episode import Episode, Score, Turn
from intercode.errors import RewardError, TaskError
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql import SqlReward
from intercode.rewards.sql_run import last_answer
from intercode.task import Task

from .sql_store import Store

NAMES = "SELECT name FROM customer"
BY_AMOUNT = "SELECT id FROM purchase ORDER BY amount DESC"


def test_the_right_rows_in_any_order(store: Store) -> None:
    score = store.score(NAMES, "SELECT name FROM customer ORDER BY name DESC")
    assert score.value == 1.0
    assert score.parts == {"execution_accuracy": 1.0, "overlap": 1.0}


def test_some_of_the_rows(store: Store) -> None:
    score = store.score(NAMES, "SELECT name FROM customer WHERE city = 'Oslo'")
    assert score.value == pytest.approx(2 * 2 / (4 + 2))
    assert score.parts["execution_accuracy"] == 0.0
    assert score.detail["reason"] == "2 rows are missing"
    assert score.detail["gold_rows"] == [["Ann"], ["Zoë"], ["Bo"], ["李"]]
    assert score.detail["answer_rows"] == [["Ann"], ["李"]]


def test_the_order_counts_where_gold_orders(store: Store) -> None:
    gold = "SELECT name FROM customer ORDER BY id"
    assert store.value(gold, "SELECT name FROM customer ORDER BY +id") == 1.0
    score = store.score(gold, "SELECT name FROM customer ORDER BY id DESC")
    assert score.value == 0.99
    assert score.detail["reason"] == "the same rows in another order"
    inner = "SELECT name FROM (SELECT name FROM customer ORDER BY id)"
    assert store.value(inner, "SELECT name FROM customer ORDER BY id DESC") == 1.0


def test_ties_may_come_in_any_order_also_by_what_is_not_selected(store: Store) -> None:
    # 10.5: 1 and 3; then 3.25, 0.0, NULL.
    assert store.value(BY_AMOUNT, "VALUES (3), (1), (4), (5), (2)") == 1.0
    assert store.value(BY_AMOUNT, "VALUES (1), (3), (4), (5), (2)") == 1.0
    assert store.value(BY_AMOUNT, "VALUES (1), (4), (3), (5), (2)") < 1.0


def test_a_limit_may_cut_through_ties(store: Store) -> None:
    gold = "SELECT day FROM purchase ORDER BY amount DESC LIMIT 1"
    for tied in ("2024-01-31", "2024-02-29"):
        assert store.value(gold, f"SELECT '{tied}'") == 1.0
        assert store.value(f"{gold} OFFSET 1", f"SELECT '{tied}'") == 1.0
    for wrong in ("SELECT '2024-03-01'", "VALUES ('2024-01-31'), ('2024-02-29')"):
        assert store.value(gold, wrong) < 1.0


def test_columns_may_be_permuted_if_set(store: Store) -> None:
    gold, answer = "SELECT id, name FROM customer", "SELECT name, id FROM customer"
    assert store.value(gold, answer) == 0.0
    permuting = SqlReward(store.databases, permute_columns=True)
    assert store.score(gold, answer, reward=permuting).value == 1.0


def test_of_several_golds_the_best_counts(store: Store) -> None:
    task = store.task("SELECT 17", NAMES, "SELECT name FROM customer WHERE id < 3")
    assert store.value(task, NAMES) == 1.0
    assert store.value(task, f"{NAMES} WHERE id < 4") == pytest.approx(6 / 7)


def test_without_an_answer_it_is_worth_nothing(store: Store) -> None:
    for actions in [(), ("DELETE FROM voucher",), ("SELECT nothing",)]:
        score = store.score(NAMES, *actions)
        assert score.value == 0.0
        assert score.detail["reason"] == "no action gave a result set"


def test_the_answer_is_the_last_action_that_gave_a_result_set(store: Store) -> None:
    after = ("SELECT nothing FROM customer", "DELETE FROM voucher", "-- no more")
    assert store.value(NAMES, "SELECT 1", NAMES, *after) == 1.0
    assert store.value(NAMES, NAMES, "SELECT 1") == 0.0
    turns = [
        Turn("SELECT 1", "", info={"columns": 1}),
        Turn("SELECT 2", "", info={"columns": 1, "executed": False}),
        Turn("SELECT 3", "", ok=False, info={"columns": 1}),
        Turn("DELETE FROM t", "", info={"columns": 0}),
    ]
    assert last_answer(Episode("t", "?", "sql", turns=turns)) == "SELECT 1"


CHEATS: list[Sequence[str]] = [
    ("DELETE FROM customer", NAMES),
    ("UPDATE customer SET name = 'x'", NAMES),
    ("DROP TABLE customer", "CREATE TABLE customer (name)", NAMES),
    ("CREATE TEMP TABLE customer AS SELECT 'x' AS name", NAMES),
    ("ALTER TABLE customer RENAME TO c", "CREATE VIEW customer AS SELECT 'x' AS name", NAMES),
]


@pytest.mark.parametrize("actions", CHEATS, ids=lambda actions: actions[0])
def test_what_was_done_to_the_data_counts_for_nothing(store: Store, actions: Sequence[str]) -> None:
    """The answer runs on a fresh copy: right if it is right there, wrong if it is wrong there."""
    assert store.value(NAMES, *actions) == 1.0
    assert store.value(NAMES, *actions[:-1], "SELECT 'x' AS name") == 0.0


def test_an_answer_from_what_only_the_session_has(store: Store) -> None:
    made = "CREATE TEMP TABLE mine AS SELECT name FROM customer"
    score = store.score(NAMES, made, "SELECT name FROM mine")
    assert score.value == 0.0
    assert score.detail["reason"].startswith("on a fresh copy of the database: no such table")
    assert store.value(NAMES, f"{made}; SELECT name FROM mine") == 1.0


def test_an_answer_that_writes_harms_nothing(store: Store) -> None:
    assert store.value(NAMES, f"DELETE FROM purchase; {NAMES}") == 1.0
    assert store.value("SELECT id FROM purchase", "SELECT id FROM purchase") == 1.0


def test_an_answer_that_does_not_end_on_the_copy_is_not_right(store: Store) -> None:
    # On the agent's own database the recursion ends at once.
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
        "WHERE EXISTS (SELECT 1 FROM customer)) SELECT COUNT(*) FROM n"
    )
    assert store.value(NAMES, NAMES) == 1.0  # gold's result is kept: it needs no time any more

    def hasty(task: Task, *given: Any) -> Score:
        return store.reward(replace(task, timeout=0.5), *given)  # allow limit: it has no end

    empty = "DELETE FROM purchase; DELETE FROM customer"
    score = store.score(NAMES, empty, endless, reward=hasty)
    assert score.value == 0.0
    assert score.detail["reason"].startswith("on a fresh copy of the database: ")


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("SELECT nothing FROM customer", "gold failed: .*nothing"),
        ("SELECT (", "gold failed"),
        ("SET x = 1", "gold failed"),
        ("-- nothing at all", "gold gives no result set"),
        ("UPDATE nowhere SET a = 1", "gold failed"),
        ("UPDATE customer SET name = 'x' WHERE id = 99", "gold changes nothing"),
    ],
)
def test_a_gold_that_fails_is_an_error(store: Store, gold: str, reason: str) -> None:
    with pytest.raises(RewardError, match=f"task 't': {reason}"):
        store.score(gold, NAMES)


def test_a_task_without_gold_is_malformed(store: Store) -> None:
    with pytest.raises(TaskError, match="'gold' is missing"):
        store.score(Task("t", "?", db="store"), NAMES)


def test_the_setup_runs_on_every_copy(store: Store) -> None:
    setup = "INSERT INTO voucher VALUES ('new', 0), ('old', 1)"
    task = store.task("SELECT code FROM voucher", setup=setup)
    assert store.value(task, "SELECT code FROM voucher WHERE used >= 0") == 1.0
    assert store.value(task, "SELECT code FROM voucher WHERE used = 0") < 1.0


FREE = {"metadata": {"permute_columns": True}}


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("SELECT id, name FROM customer", "SELECT name, id FROM customer"),
        ("SELECT MIN(id), MAX(id) FROM customer", "SELECT MAX(id), MIN(id) FROM customer"),
        ("SELECT id, name, city FROM customer ORDER BY id DESC",
         "SELECT city, name, id FROM customer ORDER BY id DESC"),
    ],
)  # fmt: skip
def test_columns_in_another_order(store: Store, gold: str, answer: str) -> None:
    score = store.score(store.task(gold, **FREE), answer)
    assert (score.value, score.detail.get("columns")) == (1.0, "in another order")
    assert store.value(store.task(gold), answer) < 1.0
    assert "columns" not in store.score(store.task(gold, **FREE), gold).detail


def test_columns_of_one_type_are_exchanged_only_where_copies_tell_them_apart(store: Store) -> None:
    score = store.score(store.task("SELECT 3, 4", **FREE), "SELECT 4, 3")
    assert score.value < 1.0 and "no mutated copy tells them apart" in score.detail["reason"]
    # On the data it is the other order of the columns, and on the copies no order is right.
    gold = "SELECT MIN(id), MAX(id) FROM customer"
    assert store.value(store.task(gold, **FREE), "SELECT 4, MIN(id) FROM customer") < 1.0


EXPLAINED = {"metadata": {"permute_columns": True, "columns": "explained"}}
MANY = (
    "SELECT c.name FROM customer AS c JOIN purchase AS p ON p.customer_id = c.id "
    "GROUP BY c.id HAVING COUNT(*) > 1"
)
LAST = "SELECT name FROM customer ORDER BY id DESC LIMIT 1"
DEAR = "SELECT id FROM purchase WHERE amount > 5"
MOST = "SELECT MAX(id) FROM customer"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (MANY, MANY.replace("c.name", "c.name, COUNT(*)")),
        (MANY, MANY.replace("c.name", "COUNT(*) AS n, c.name").replace("COUNT(*) >", "n >")),
        (LAST, LAST.replace("name", "id, name")),
        (LAST, LAST.replace("name", "name, customer.ID")),
        (LAST, LAST.replace("name", "name, id AS n").replace("BY id", "BY n")),
        (LAST, LAST.replace("name", "name, id").replace("BY id", "BY 2")),
        (LAST, "SELECT name, id FROM customer WHERE id = (SELECT MAX(id) FROM customer)"),
        (DEAR, DEAR.replace("id", "amount, id")),
        (DEAR, DEAR.replace("id", "id, (amount)") + " AND id > 0"),
        ("SELECT COUNT(*) FROM customer GROUP BY city",
         "SELECT city, COUNT(*) FROM customer GROUP BY city"),
        ("SELECT id FROM customer WHERE name LIKE '%o%'",
         "SELECT id, name FROM customer WHERE name LIKE '%o%'"),
    ],
)  # fmt: skip
def test_a_column_that_explains_an_answer(store: Store, gold: str, answer: str) -> None:
    score = store.score(store.task(gold, **EXPLAINED), answer)
    assert (score.value, score.detail.get("explained")) == (1.0, True)
    assert store.value(store.task(gold, **FREE), answer) == 0.0
    assert "explained" not in store.score(store.task(gold, **EXPLAINED), gold).detail


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (DEAR, DEAR.replace("id", "id, day")),
        (DEAR, DEAR.replace("id", "id, amount, day")),
        (DEAR, DEAR.replace("id", "id, amount + 1")),
        (DEAR, "SELECT id, customer_id FROM purchase WHERE amount > 5 AND customer_id < 99"),
        (DEAR, "SELECT id, customer_id FROM purchase WHERE amount > 5 OR customer_id > 99"),
        (DEAR, "SELECT id, customer_id FROM purchase WHERE amount > 5 "
               "AND EXISTS (SELECT 1 FROM customer AS c WHERE c.id = customer_id)"),
        (DEAR, "SELECT p.id, c.id FROM purchase AS p JOIN customer AS c ON c.id = customer_id "
               "WHERE amount > 5"),
        (DEAR, "SELECT * FROM (SELECT id, amount FROM purchase) WHERE amount > 5"),
        (DEAR, "SELECT id, 7 FROM purchase WHERE amount > 5 ORDER BY 7"),
        (MOST, "SELECT MAX(id), MIN(id) FROM customer ORDER BY MIN(id)"),
        (MOST, "SELECT MAX(id), COUNT(*) FROM customer HAVING COUNT(*) > 0"),
        (MOST, "SELECT MAX(id), MIN(id) FROM customer GROUP BY NULL HAVING MIN(id) < 99"),
        (MOST, "SELECT 4, MIN(id) FROM customer WHERE id >= 1"),
        (LAST, "SELECT name, city FROM customer ORDER BY id DESC, city LIMIT 1"),
        ("SELECT name FROM customer", "SELECT name, city FROM customer GROUP BY name, city"),
        ("SELECT * FROM voucher", "SELECT code, used, code FROM voucher"),
    ],
)  # fmt: skip
def test_a_column_that_explains_nothing(store: Store, gold: str, answer: str) -> None:
    score = store.score(store.task(gold, **EXPLAINED), answer)
    assert score.value < 1.0, score.detail


def test_an_answer_that_reads_no_table_is_marked(store: Store) -> None:
    for answer, marked in [
        ("SELECT 'Ann' AS name, 1 AS id", True),
        ("VALUES ('Ann', 1)", True),
        ("WITH one AS (SELECT 'Ann', 1) SELECT * FROM one", True),
        ("SELECT name, id FROM customer WHERE id = 1", False),
    ]:
        score = store.score("SELECT name, id FROM customer WHERE name = 'Ann'", answer)
        assert (score.value, score.detail.get("hard_coded", False)) == (1.0, marked)


def test_the_detail_is_plain_json(store: Store) -> None:
    gold = "SELECT 1, 1.5, 9e999, NULL, 'x', x'ff', printf('%.*c', 999, 'y')"
    detail = store.score(gold, gold).detail
    row = json.loads(json.dumps(detail, allow_nan=False))["gold_rows"][0]
    assert row[:5] == [1, 1.5, "inf", None, "x"]
    assert len(row[6]) == 201


class Counting:
    """Counts how often the grader opens a database."""

    def __init__(self, store: Store) -> None:
        self.engine = store.databases.engine
        self.source = store.databases.source
        self.opened = 0
        self._store = store

    def open(
        self, task: Task, role: Role = "agent", source: DatabaseSource | None = None
    ) -> DatabaseSession:
        assert role == "grader"
        self.opened += 1
        return self._store.databases.open(task, role, source)


def test_gold_runs_once(store: Store) -> None:
    for size, fields, expected in [
        (16, {}, 3),  # gold once, the answer twice
        (0, {}, 4),
        (16, {"metadata": {"cache_gold": False}}, 4),
    ]:
        counting = Counting(store)
        reward = SqlReward(counting, GoldCache(size))
        for _ in range(2):
            task = store.task(NAMES, **fields)
            assert store.score(task, NAMES, reward=reward).value == 1.0
        assert counting.opened == expected


def test_gold_runs_again_where_the_engine_may_choose_otherwise(store: Store) -> None:
    task = store.task("SELECT name, id FROM customer LIMIT 1")
    counting = Counting(store)
    reward = SqlReward(counting, GoldCache())
    for answer, expected, opened in [("Ann", 1.0, 2), ("Bo", 0.0, 4), ("Ann", 1.0, 5)]:
        sql = f"SELECT name, id FROM customer WHERE name = '{answer}'"
        assert store.score(task, sql, reward=reward).value == expected
        assert counting.opened == opened
