"""BIRD's scores: worked by hand from their definition, and through real episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from intercode.databases.base import Row
from intercode.errors import RewardError
from intercode.rewards.bird import (
    ExReward,
    RVesReward,
    SoftF1Reward,
    execution_accuracy,
    r_ves,
    soft_f1,
    time_ratio,
    ves_reward,
)

from .sql_store import Store

NAMES = "SELECT id, name FROM customer"


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ([(1,), (2,)], [(2,), (1,)], 1.0),
        ([(1,), (2,)], [(2,), (1,), (1,)], 1.0),
        ([(1,)], [(1.0,)], 1.0),
        ([(1,)], [("1",)], 0.0),
        ([(0.3,)], [(0.1 + 0.2,)], 0.0),
        ([(1, 2)], [(2, 1)], 0.0),
        ([], [], 1.0),
        ([], [(None,)], 0.0),
        ([([1],)], [([1],)], 1.0),
    ],
)
def test_ex(gold: list[Row], answer: list[Row], expected: float) -> None:
    assert execution_accuracy(gold, answer) == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ([], [], 1.0),
        ([], [(1,)], 0.0),
        ([(1,)], [], 0.0),
        ([(1, "a")], [("a", 1)], 1.0),
        ([(1,), (2,)], [(1,), (1,), (2,)], 1.0),
        # In the first row one cell of two agrees: matched 1.5, spurious 0.5, missed 0.5.
        ([(1, "a"), (2, "b")], [(1, "x"), (2, "b")], 2 * 0.75 * 0.75 / 1.5),
        # One cell more than gold: matched 1, spurious 1/2.
        ([(1, "a")], [(1, "a", "b")], 2 * (1 / 1.5) / (1 / 1.5 + 1)),
        # One cell less: matched 1/2, missed 1/2.
        ([(1, "a")], [(1,)], 2 * 0.5 / 1.5),
        # Rows are taken in their order, though EX takes them in any.
        ([(1,), (2,)], [(2,), (1,)], 0.0),
        # A row too many, a row too few.
        ([(1,)], [(1,), (2,)], 2 * 0.5 / 1.5),
        ([(1,), (2,)], [(1,)], 2 * 0.5 / 1.5),
        # A repeated value of the answer matches each time.
        ([(1, 2)], [(1, 1)], 2 * 1.0 * (1 / 1.5) / (1 + 1 / 1.5)),
    ],
)
def test_soft_f1(gold: list[Row], answer: list[Row], expected: float) -> None:
    assert soft_f1(gold, answer) == pytest.approx(expected)


tables = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=5)


@given(tables, tables)
def test_soft_f1_is_a_share(gold: Sequence[Row], answer: Sequence[Row]) -> None:
    assert 0.0 <= soft_f1(gold, answer) <= 1.0
    assert soft_f1(gold, gold) == 1.0


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0, 0), (0.1, 0.25), (0.25, 0.5), (0.49, 0.5), (0.5, 0.75), (1, 1), (1.99, 1), (2, 1.25)],
)
def test_the_reward_of_a_ratio(ratio: float, expected: float) -> None:
    assert ves_reward(ratio) == expected


def test_outliers_are_left_out() -> None:
    assert time_ratio([1.0] * 50 + [1.2] * 50) == pytest.approx(1.1)
    assert time_ratio([1.0, 1.2] * 50 + [900.0]) == pytest.approx(1.1)
    assert time_ratio([2.0] * 10) == 2.0


def test_r_ves_of_a_dataset() -> None:
    assert r_ves([1.0, 0.25, 0.0, 1.25]) == pytest.approx(100 * (1 + 0.5 + math.sqrt(1.25)) / 4)
    assert r_ves([]) == 0.0


def test_ex_of_an_episode(store: Store) -> None:
    reward = ExReward(store.databases)
    assert store.score(NAMES, f"{NAMES} UNION ALL {NAMES}", reward=reward).value == 1.0
    assert store.score(NAMES, f"{NAMES} WHERE id > 1", reward=reward).parts == {"ex": 0.0}
    assert store.score(NAMES, reward=reward).value == 0.0
    several = store.task("SELECT 17", NAMES)
    assert store.score(several, NAMES, reward=reward).value == 1.0


def test_soft_f1_of_an_episode(store: Store) -> None:
    reward = SoftF1Reward(store.databases)
    score = store.score(NAMES, "SELECT id FROM customer", reward=reward)
    assert score.parts == {"soft_f1": pytest.approx(2 / 3)}
    assert store.score(NAMES, "DELETE FROM customer", NAMES, reward=reward).value == 1.0
    gone = ("CREATE TEMP TABLE x AS SELECT 1 AS a", "SELECT a FROM x")
    assert store.score(NAMES, *gone, reward=reward).value == 0.0


def test_r_ves_of_an_episode(store: Store) -> None:
    reward = RVesReward(store.databases, iterations=3)
    score = store.score(NAMES, NAMES, reward=reward)
    assert score.parts["time_ratio"] > 0
    assert score.parts["reward"] == ves_reward(score.parts["time_ratio"])
    assert score.value == min(score.parts["reward"], 1.0)
    assert store.score(NAMES, "SELECT 1, 'x'", reward=reward).parts["reward"] == 0.0


def test_a_gold_that_fails_is_an_error(store: Store) -> None:
    with pytest.raises(RewardError):
        store.score("SELECT nothing", NAMES, reward=ExReward(store.databases))
