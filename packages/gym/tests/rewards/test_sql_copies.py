"""Golds that can be guessed, on real SQLite."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from intercode.databases import StatementResult
from intercode.rewards.gold import GoldCache
from intercode.rewards.sql_mutated_copies import copies, is_guessable
from intercode.rewards.sql_run import SqlGrader

from .sql_store import Store

GUESSES = ("SELECT 1 WHERE 1 = 0", "SELECT 0", "SELECT 1", "SELECT NULL", "SELECT ''")

GOLDS = [
    "SELECT name FROM customer WHERE city = 'Rome'",
    "SELECT name FROM customer WHERE city IN ('Rome', 'Bergen') ORDER BY name",
    "SELECT COUNT(*) FROM voucher WHERE used = 1",
    "SELECT code FROM voucher",
    "SELECT MAX(amount) FROM purchase WHERE day LIKE '2025%'",
    "SELECT COUNT(*) FROM customer WHERE city IS NULL",
    "SELECT id FROM purchase WHERE strftime('%Y', day) = '2023'",
    "SELECT COUNT(*) = 4 FROM customer",
    "SELECT c.name FROM customer AS c JOIN purchase AS p ON p.customer_id = c.id "
    "GROUP BY c.id HAVING COUNT(*) > 5",
    "SELECT customer_id FROM purchase WHERE day = '2024-05-01' "
    "INTERSECT SELECT customer_id FROM purchase WHERE day = '2024-05-02'",
    "SELECT country FROM city WHERE name NOT IN (SELECT city FROM customer WHERE city > '')",
]


@pytest.mark.parametrize("gold", GOLDS)
def test_a_guess_is_no_success(store: Store, gold: str) -> None:
    task = store.task(gold)
    assert store.value(task, gold) == 1.0
    for guess in GUESSES:
        assert store.value(task, guess) < 1.0
    # Nor the right answer's shape without its content.
    assert store.value(task, f"SELECT * FROM ({gold}) WHERE 1 = 0") < 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (GOLDS[0], "SELECT name FROM customer WHERE city LIKE 'rome' AND city >= 'R'"),
        (GOLDS[2], "SELECT TOTAL(used = 1) FROM voucher"),
        (GOLDS[4], "SELECT MAX(amount) FROM purchase WHERE strftime('%Y', day) = '2025'"),
        (GOLDS[5], "SELECT COUNT(*) - COUNT(city) FROM customer"),
        (GOLDS[9], "SELECT DISTINCT p.customer_id FROM purchase AS p JOIN purchase AS q USING "
                   "(customer_id) WHERE p.day = '2024-05-01' AND q.day = '2024-05-02'"),
    ],
)  # fmt: skip
def test_the_right_answer_by_other_words(store: Store, gold: str, answer: str) -> None:
    assert store.value(gold, answer) == 1.0


LOOKED_UP = (
    "SELECT COUNT(*) FROM purchase AS p JOIN customer AS c ON p.customer_id = c.id "
    "WHERE c.name = 'Ann'"
)
FIRST = "SELECT customer_id FROM purchase ORDER BY day LIMIT 1"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (LOOKED_UP, "SELECT COUNT(*) FROM purchase WHERE customer_id = 1"),
        (LOOKED_UP, "SELECT COUNT(*) FROM purchase "
                    "WHERE customer_id = (SELECT id FROM customer WHERE name = 'Ann')"),
        ("SELECT COUNT(DISTINCT name) FROM customer", "SELECT COUNT(*) FROM customer"),
        (FIRST, "SELECT customer_id FROM purchase WHERE day = (SELECT MIN(day) FROM purchase)"),
    ],
)  # fmt: skip
def test_the_right_answer_by_what_the_data_show(store: Store, gold: str, answer: str) -> None:
    assert store.value(gold, answer) == 1.0
    number = store.score(gold, gold).detail["gold_rows"][0][0]
    assert store.value(gold, f"SELECT {number}") < 1.0


SINGLE = [
    "SELECT COUNT(*) FROM purchase AS p JOIN customer AS c ON p.customer_id = c.id "
    "WHERE c.name = '李' AND p.amount > 7",
    "SELECT COUNT(*) FROM customer WHERE city = 'Köln'",
    "SELECT COUNT(*) FROM purchase WHERE customer_id = 1 AND amount = 10.5",
]
SUBQUERIES = [
    "SELECT id FROM customer WHERE name = '李'",
    "SELECT id FROM customer WHERE city = 'Köln'",
    "SELECT id FROM purchase WHERE customer_id = 1 AND amount = 10.5",
]


@pytest.mark.parametrize(("gold", "subquery"), list(zip(SINGLE, SUBQUERIES, strict=True)))
def test_a_subquery_with_one_row_has_one_in_every_copy(
    store: Store, gold: str, subquery: str
) -> None:
    task = store.task(gold)
    grader = SqlGrader(store.databases, GoldCache())
    made = copies(grader, task, gold, store.databases.source(task))
    assert made
    for copy in made:
        result = grader.answer(task, subquery, copy).result
        assert result is not None
        assert len(result.rows) <= 1
    assert store.value(task, gold) == 1.0
    assert store.value(task, "SELECT 1") < 1.0


def test_a_guess_says_why(store: Store) -> None:
    score = store.score(GOLDS[0], "SELECT name FROM customer WHERE 1 = 0")
    assert score.value == 0.0
    assert score.detail["reason"].startswith("on a mutated copy of the database: ")
    assert score.detail["gold_rows"]


def test_where_no_copy_gives_something_else_it_says_so(store: Store) -> None:
    score = store.score("SELECT 1", "SELECT 1")
    assert score.value == 1.0
    assert "no mutated copy" in score.detail["note"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], True),
        ([(0,)], True),
        ([(1, None, "", 0.0, True)], True),
        ([(2,)], True),
        ([(Decimal("-99.0"),)], True),
        ([(100,)], False),
        ([(2.5,)], False),
        ([(Decimal("NaN"),)], False),
        ([(math.inf,)], False),
        ([("a",)], False),
        ([(0, 1)], True),
        ([(0, 2)], False),
        ([(0,), (0,)], False),
        ([(0, "a")], False),
    ],
)
def test_what_can_be_guessed(rows: list[tuple[object, ...]], expected: bool) -> None:
    columns = tuple("c" * len(rows[0])) if rows else ("c",)
    assert is_guessable(StatementResult(columns, rows, len(rows))) is expected
