"""Tasks that ask for a change, on real SQLite."""

from __future__ import annotations

import pytest

from .sql_store import Store

MOVE = "UPDATE customer SET city = 'Köln' WHERE id = 3"
ADD = "INSERT INTO voucher VALUES ('X1', 0)"
MAKE = "CREATE TABLE note (id INTEGER, words TEXT)"
VIEW = "CREATE VIEW oslo AS SELECT name FROM customer WHERE city = 'Oslo'"


@pytest.mark.parametrize(
    ("gold", "action"),
    [
        (MOVE, "UPDATE customer SET city = 'Köln' WHERE name = 'Bo'"),
        (ADD, "INSERT INTO voucher (used, code) SELECT 0, 'X1'"),
        (MAKE, "CREATE TABLE Note (WORDS VARCHAR(20), id BIGINT)"),
        (VIEW, "CREATE VIEW oslo AS SELECT name FROM customer WHERE id IN (1, 4)"),
        ("DELETE FROM purchase", "DELETE FROM purchase WHERE id > 0"),
        ("DROP VIEW spent", "DROP VIEW IF EXISTS spent"),
        (f"{ADD}; {MOVE}", f"{MOVE}; {ADD}"),
        ("ALTER TABLE city ADD COLUMN size INTEGER", "ALTER TABLE city ADD COLUMN size INT"),
        ("WITH n(c) AS (SELECT 'X1') INSERT INTO voucher SELECT c, 0 FROM n", ADD),
    ],
)
def test_the_same_change_by_other_words(store: Store, gold: str, action: str) -> None:
    score = store.score(gold, action)
    assert (score.value, score.parts) == (1.0, {"tables": 1.0, "overlap": 1.0})


@pytest.mark.parametrize("gold", [MOVE, ADD, MAKE, VIEW, "DELETE FROM purchase"])
def test_doing_nothing_is_worth_nothing(store: Store, gold: str) -> None:
    for actions in [(), ("SELECT 1",), ("BEGIN", gold, "ROLLBACK")]:
        assert store.value(gold, *actions) == 0.0


def test_an_open_transaction_counts(store: Store) -> None:
    assert store.value(ADD, "BEGIN", ADD) == 1.0


@pytest.mark.parametrize(
    ("gold", "action", "value", "reason"),
    [
        (MOVE, "UPDATE customer SET city = 'Oslo' WHERE id = 3", 1 / 2, "customer is not as it"),
        (MOVE, f"{MOVE}; {ADD}", 4 / 5, "voucher is not as it should be"),
        (ADD, "INSERT INTO voucher VALUES ('X1', 1)", 0.0, "voucher is not as it should be"),
        (f"{ADD}; {MOVE}", ADD, 1 / 2, "customer is unchanged"),
        (MAKE, "CREATE TABLE note (id TEXT, words TEXT)", 0.0, "note is not as it should be"),
        (MAKE, "CREATE VIEW note AS SELECT 1 AS id, '' AS words", 0.0, "note is not as it should"),
        (MAKE, "CREATE TABLE notes (id INTEGER, words TEXT)", 0.0, "note is missing, notes is"),
        (MAKE, f"{MAKE}; CREATE TABLE more (id INTEGER)", 2 / 3, "more is extra"),
        ("DELETE FROM voucher; DROP VIEW spent", "DELETE FROM city", 0.0, "city is not as it"),
    ],
)
def test_a_part_of_the_change(
    store: Store, gold: str, action: str, value: float, reason: str
) -> None:
    score = store.score(gold, action)
    assert score.value == pytest.approx(value)
    assert score.detail["reason"].startswith(reason)


def test_a_change_of_what_a_view_shows(store: Store) -> None:
    gold = "UPDATE purchase SET amount = 1 WHERE id = 2"
    assert store.value(gold, gold) == 1.0
    # The row is wrong, and so is what the view sums up.
    score = store.score(gold, "UPDATE purchase SET amount = 2 WHERE id = 2")
    assert 0.0 < score.value < 1.0
    assert score.parts["tables"] == 0.0


def test_an_answer_does_not_replace_a_change_nor_the_reverse(store: Store) -> None:
    assert store.value(ADD, "SELECT 'X1', 0") == 0.0
    assert store.value("SELECT code FROM voucher", ADD) == 0.0
    either = store.task(ADD, "SELECT COUNT(*) FROM customer")
    assert store.value(either, ADD) == 1.0
    assert store.value(either, "SELECT COUNT(*) FROM customer") == 1.0
