"""The three versions of the 2023 SQL reward."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from intercode_paper.sql_env import rewards, score

rows = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None])), max_size=12)


@pytest.mark.parametrize(
    ("answer", "gold", "released", "early", "first"),
    [
        ([(1,)], [(1,)], 1.0, 1.0, 1.0),
        ([], [], 1.0, 1.0, 1.0),
        ([(1,)], [], 0.0, 0.0, 0.0),
        ([], [(1,)], 0.0, 0.0, 0.0),
        # Compared as text: 1 is not 1.0, and None is "(None,)".
        ([(1,)], [(1.0,)], 0.0, 0.0, 0.0),
        ([(None,)], [(None,)], 1.0, 1.0, 1.0),
        # τ scales where more than one row is common.
        ([(1,), (2,)], [(2,), (1,)], -1.0, 1.0, 1.0),
        ([(1,), (2,)], [(1,), (2,), (3,)], 0.67, 2 / 3, 2 / 3),
        # One common row, or equal rows alone: τ is not a number, and nothing is rounded.
        ([(1,), (9,)], [(1,), (7,)], 1 / 3, 1 / 3, 1 / 3),
        ([(1,), (1,)], [(1,), (1,), (1,)], 2 / 3, 2 / 3, 2 / 3),
        # The first of repeated rows are those that are compared.
        ([(1,), (2,), (1,)], [(2,), (1,)], -0.67, 2 / 3, 2 / 3),
        # What is no list of rows is worth nothing, also if gold is none either.
        (None, [], 0.0, 0.0, 0.0),
        ("Error executing query: x", "Error executing query: x", 0.0, 0.0, 0.0),
        # A gold that fails counts as an empty one; in the first version as any.
        ([], "Error executing query: x", 1.0, 1.0, 1.0),
        ([(1,)], "Error executing query: x", 0.0, 0.0, 1.0),
        ([], None, 1.0, 1.0, 1.0),
    ],
)
def test_cases(answer, gold, released, early, first):
    found = rewards(answer, gold)
    assert (found.released_rewards, found.early_rewards, found.first) == (released, early, first)


def test_rounding_is_numpys():
    # τ = -1, overlap = 3/8: 0.375 is rounded to even.
    assert rewards([(3,), (2,), (1,)], [(n,) for n in range(1, 9)]).released_rewards == -0.38


def test_the_detail_is_the_info_of_2023():
    found = score([(1,)], "Error executing query: x")
    assert found.detail == {
        "agent_obs": "[(1,)]",
        "eval_obs": "[]",
        "corrupt_gold": True,
        "reward": 0.0,
    }
    assert score([(1,)], "Error executing query: x", "first").value == 1.0


@given(rows, rows)
def test_overlap_is_symmetric_and_blind_to_order(one, two):
    overlap = rewards(one, two).early_rewards
    assert (
        overlap
        == rewards(two, one).early_rewards
        == rewards(one[::-1], sorted(two, key=str)).early_rewards
    )
    assert 0.0 <= overlap <= 1.0
    assert (overlap == 1.0) == (Counter(map(str, one)) == Counter(map(str, two)))


@given(rows, rows)
def test_the_released_reward_scales_the_early_one(one, two):
    found = rewards(one, two)
    assert abs(found.released_rewards) <= found.early_rewards + 0.005
    assert rewards(one, one).released_rewards == 1.0


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=30), st.randoms())
def test_tau_is_scipys(values, random):
    kendalltau = pytest.importorskip("scipy.stats").kendalltau
    other = list(values)
    random.shuffle(other)
    texts = [[str((value,)) for value in side] for side in (values, other)]
    ranks = [[sorted(texts[0]).index(text) for text in side] for side in texts]
    tau = kendalltau(*ranks).statistic
    expected = 1.0 if math.isnan(tau) else tau
    found = rewards([(v,) for v in values], [(v,) for v in other]).released_rewards
    assert found == pytest.approx(expected, abs=0.00501)


def test_ten_thousand_rows():
    many = [(f"{n:05}", "x") for n in range(10_000)]
    assert rewards(many, many).released_rewards == 1.0
    assert rewards(many[::-1], many).released_rewards == -1.0
