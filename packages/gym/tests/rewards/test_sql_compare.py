from __future__ import annotations

import datetime
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.databases.base import Row, StatementResult, TableState
from intercode.rewards import sql_compare
from intercode.rewards.sql_compare import (
    ResultComparison,
    TiedRows,
    compare,
    keys,
)
from intercode.rewards.sql_state_compare import DatabaseStateComparison, compare_states, family

NAN = float("nan")
DAY = datetime.date(2024, 2, 29)
MIDNIGHT = datetime.datetime(2024, 2, 29)


def result(rows: Sequence[Row], columns: int | None = None) -> StatementResult:
    width = columns if columns is not None else len(rows[0]) if rows else 1
    return StatementResult(tuple(f"c{number}" for number in range(width)), rows, len(rows))


def compared(gold: Sequence[Row], answer: Sequence[Row], **options: Any) -> ResultComparison:
    width = next((len(row) for row in (*gold, *answer)), 1)
    return compare(result(gold, width), result(answer, width), **options)


def equal(one: Any, other: Any) -> bool:
    return compared([(one,)], [(other,)]).equal


SAME = [
    (3, 3.0), (3, Decimal("3")), (3, Decimal("3.00")), (1, True), (0, False), (0.0, -0.0),
    (0.1 + 0.2, 0.3), (Decimal("0.1"), 0.1), (100.0, 100.00001), (2.5, 2.5 - 1e-7),
    (0.5, 0.5 + 1e-9), (0, 1e-10), (0.49999999, 0.5), (NAN, float("nan")), (Decimal("NaN"), NAN),
    (math.inf, math.inf), (math.inf, Decimal("Infinity")), (1e300, 1e300 * (1 + 1e-9)),
    (2**70, 2.0**70), (None, None), ("", ""), (b"\0", bytearray(b"\0")), (DAY, DAY),
    ([1, "a"], [1, "a"]), ({"a": [1]}, {"a": [1.0]}), ([NAN], [NAN]),
]  # fmt: skip
DIFFERENT = [
    (3, 4), (3, "3"), (3.5, "3.5"), (0, None), ("", None), (0, ""), ("NULL", None), (False, None),
    (2.5, 2.50001), (0, 1e-8), (1000000, 1000001), (1000000.0, 1000001), (2**60, 2**60 + 1),
    ("a", "A"), ("a", "a "), ("é", "e\u0301"), (b"a", "a"), (DAY, "2024-02-29"), (DAY, MIDNIGHT),
    (NAN, None), (NAN, 0.0), (math.inf, -math.inf), (math.inf, 1e308), (-math.inf, -1.5),
    (MIDNIGHT, MIDNIGHT.replace(tzinfo=datetime.UTC)), ([1, 2], [2, 1]), ([], {}),
    ("NaN", NAN), (10**400, 1.5), (datetime.timedelta(1), datetime.time(1)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_equal_values(one: Any, other: Any) -> None:
    assert equal(one, other)
    assert equal(other, one)
    assert compared([(one,)], [(other,)], ordered=True).equal


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=repr)
def test_different_values(one: Any, other: Any) -> None:
    assert not equal(one, other)
    assert not equal(other, one)
    assert compared([(one,)], [(other,)]).overlap == 0.0


def test_rows_are_kept_whole() -> None:
    assert compared([(1, "a"), (2, "b")], [(1, "b"), (2, "a")]).overlap == 0.0


def test_repeated_rows_count() -> None:
    assert not compared([("a",), ("a",)], [("a",)]).equal
    assert compared([("a",), ("a",)], [("a",), ("b",)]).overlap == 0.5
    assert compared([("a",)], [("a",), ("a",)]).reason == "1 row is extra"


def test_the_number_of_columns_must_agree() -> None:
    comparison = compare(result([(1, 2, 3)]), result([(1, 2)]))
    assert comparison == ResultComparison(False, 0.0, "2 columns, not 3")
    assert not compare(result([], 1), result([], 2)).equal
    assert compare(result([], 2), result([], 2)) == ResultComparison(True, 1.0)


def test_the_reason_says_how_many_rows_are_wrong() -> None:
    gold = [(number,) for number in range(5)]
    comparison = compared(gold, [(0,), (1,), (9,)])
    assert comparison.reason == "3 rows are missing, 1 row is extra"
    assert comparison.overlap == pytest.approx(4 / 8)


def test_order_counts_only_where_gold_orders() -> None:
    gold, answer = [(1,), (2,), (2,)], [(2,), (1,), (2,)]
    assert compared(gold, answer).equal
    ordered = compared(gold, answer, ordered=True)
    assert ordered == ResultComparison(False, 1.0, "the same rows in another order")


def test_ties_may_come_in_any_order() -> None:
    one, two, three = ("a", 1), ("b", 1), ("c", 2)
    groups = [TiedRows([one, two], 2), TiedRows([three], 1)]
    for answer, expected in [
        ([one, two, three], True),
        ([two, one, three], True),
        ([one, three, two], False),
        ([one, one, three], False),
        ([one, two], False),
    ]:
        found = compared([one, two, three], answer, ordered=True, groups=groups)
        assert found.equal is expected, answer


def test_a_limit_may_cut_through_ties() -> None:
    tied = [("a", 1), ("b", 1), ("c", 1)]
    groups = [TiedRows([("z", 0)], 1), TiedRows(tied, 1)]
    for row in tied:
        assert compared([("z", 0), tied[0]], [("z", 0), row], ordered=True, groups=groups).equal
    wrong = [[("z", 0), ("d", 1)], [tied[0], ("z", 0)], [("z", 0), tied[0], tied[1]]]
    for answer in wrong:
        assert not compared([("z", 0), tied[0]], answer, ordered=True, groups=groups).equal


def test_what_is_not_all_here_equals_nothing() -> None:
    whole = result([(1,), (2,)])
    for total in (3, None):
        cut = StatementResult(("c",), [(1,), (2,)], total)
        for comparison in (compare(whole, cut), compare(cut, whole), compare(cut, cut)):
            assert not comparison.equal
            assert comparison.overlap > 0
            assert comparison.reason == "a result is too large to be compared"


def test_columns_may_be_permuted_if_asked_for() -> None:
    gold, answer = [(1, "a", 1.5), (2, "b", 1.5)], [("a", 1.5, 1), ("b", 1.5, 2)]
    assert not compared(gold, answer).equal
    assert compared(gold, answer, permute_columns=True).equal
    crossed = [("b", 1.5, 1), ("a", 1.5, 2)]
    assert not compared(gold, crossed, permute_columns=True).equal
    assert not compared(gold, answer[::-1], permute_columns=True, ordered=True).equal


def test_many_equal_columns_are_permuted_in_no_time() -> None:
    gold, answer = [(1,) * 30 + (2, 3)] * 5, [(1,) * 30 + (3, 2)] * 5
    assert compared(gold, answer, permute_columns=True).equal
    assert not compared(gold, [(1,) * 30 + (3, 4)] * 5, permute_columns=True).equal


@pytest.mark.parametrize("candidate_orders", [None, [*permutations(range(5))]])
def test_results_of_other_lengths_are_compared_once(
    monkeypatch: pytest.MonkeyPatch, candidate_orders: Sequence[Any] | None
) -> None:
    """Of 200,000 rows that an agent makes up, 120 orders took two minutes."""
    tried: list[Any] = []
    real = sql_compare._compare
    monkeypatch.setattr(sql_compare, "_compare", lambda *a: tried.append(a) or real(*a))
    assert not compared(
        [], [(1, 2, 3, 4, 5)], permute_columns=True, candidate_orders=candidate_orders
    ).equal
    assert len(tried) == 1
    assert compared([], [], permute_columns=True).equal


def test_results_of_other_lengths_have_an_overlap_whatever_orders_remain() -> None:
    """On a mutated copy only the original's orders count, and an answer may have fewer rows."""
    comparison = compared(
        [(1, 2), (3, 4)], [(1, 2)], permute_columns=True, candidate_orders=[(1, 0)]
    )
    assert not comparison.equal and comparison.overlap == pytest.approx(2 / 3)


# Numbers that are either about equal or clearly not, so that "about equal" is one notion.
near = st.sampled_from([0.0, 1e-10, 0.5, 0.5 + 1e-8, 0.5 - 1e-8, 3, 3.0, 3 + 1e-7, Decimal("3")])
values = st.one_of(near, st.none(), st.sampled_from(["", "0", "3", "a", b"a", True, DAY, NAN]))
rows = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[values] * width), min_size=1, max_size=5)
)
pairs = st.integers(1, 3).flatmap(
    lambda width: st.tuples(*[st.lists(st.tuples(*[values] * width), max_size=5)] * 2)
)


def about(one: Any, other: Any) -> bool:
    numbers = (int, float, Decimal)
    if isinstance(one, numbers) and isinstance(other, numbers):
        a, b = float(one), float(other)
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return type(one) is type(other) and one == other


def most_pairs(gold: Sequence[Row], answer: Sequence[Row]) -> int:
    """The size of the largest matching, by trying all of them."""
    if len(gold) > len(answer):
        gold, answer = answer, gold
    return max(
        sum(all(map(about, one, other)) for one, other in zip(gold, order, strict=False))
        for order in permutations(answer, len(gold))
    )


@given(pairs)
def test_the_overlap_is_that_of_the_largest_matching(pair: tuple[list[Row], list[Row]]) -> None:
    gold, answer = pair
    comparison = compared(gold, answer)
    common = most_pairs(gold, answer)
    total = len(gold) + len(answer)
    assert comparison.overlap == (2 * common / total if total else 1.0)
    assert comparison.equal is (common == len(gold) == len(answer))
    assert comparison.equal is (comparison.reason == "")


@given(pairs)
def test_comparing_is_symmetrical(pair: tuple[list[Row], list[Row]]) -> None:
    one, other = compared(*pair), compared(*pair[::-1])
    assert (one.equal, one.overlap) == (other.equal, other.overlap)


@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(
    pair: tuple[list[Row], list[Row]], chance: random.Random
) -> None:
    gold, answer = pair
    mixed = chance.sample(answer, len(answer))
    assert compared(gold, answer) == compared(gold, mixed)


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_columns_changes_nothing_where_it_may(
    table: list[Row], chance: random.Random
) -> None:
    order = list(range(len(table[0])))
    chance.shuffle(order)
    answer = [tuple(row[index] for index in order) for row in table]
    assert compared(table, answer, permute_columns=True).equal
    assert compared(table, answer, permute_columns=True, ordered=True).equal


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_a_column_equals_itself(numbers: list[float]) -> None:
    column = [(number,) for number in numbers]
    assert compared(column, column, ordered=True).equal
    ours, theirs = keys(column, column[::-1])
    assert ours == theirs[::-1]


@pytest.mark.parametrize("size", [1_000, 10_000, 40_000])
def test_large_results(size: int) -> None:
    gold = [(n, f"name {n % 977}", n / 7, None if n % 5 else n) for n in range(size)]
    answer = [(n, name, share + 1e-12, maybe) for n, name, share, maybe in gold]
    random.Random(0).shuffle(answer)
    assert compared(gold, answer).equal
    answer[0] = (-1, "no", 0.5, None)
    assert compared(gold, answer).reason == "1 row is missing, 1 row is extra"


def table(*rows: Row, **columns: str) -> TableState:
    return TableState("table", tuple(columns.items()), rows)


BEFORE = {"t": table((1, "a"), (2, "b"), id="INTEGER", name="TEXT"), "u": table((1,), n="INT")}


def compared_states(
    gold: dict[str, TableState], agent: dict[str, TableState]
) -> DatabaseStateComparison:
    return compare_states(BEFORE, {**BEFORE, **gold}, {**BEFORE, **agent})


def test_columns_and_rows_may_stand_in_another_order() -> None:
    gold = {"t": table((1, "a"), (2, "c"), id="INTEGER", name="TEXT")}
    agent = {"t": table(("c", 2.0), ("a", 1), NAME="VARCHAR(9)", Id="bigint unsigned")}
    assert compared_states(gold, agent) == DatabaseStateComparison(True, 1.0, 1.0)


def test_names_that_differ_in_capitals_alone_are_two() -> None:
    gold = {"u": table((2,), n="INT")}
    assert compared_states(gold, {"u": table((2,), N="INT")}).equal
    assert not compared_states(gold, {"u": table((2, 2), n="INT", N="INT")}).equal
    assert not compared_states(gold, {**gold, "U": table((1,), n="INT")}).equal
    assert not compared_states(gold, {"u": BEFORE["u"], "U": gold["u"]}).equal


def test_numbers_are_compared_with_a_tolerance() -> None:
    gold = {"u": table((0.1 + 0.2,), n="REAL")}
    assert compared_states(gold, {"u": table((0.3,), n="DOUBLE")}).equal
    assert not compared_states(gold, {"u": table((0.31,), n="DOUBLE")}).equal


@pytest.mark.parametrize(
    "agent",
    [
        table((2, "c"), id="INTEGER", name="TEXT"),
        table((1, "a"), (1, "a"), (2, "c"), id="INTEGER", name="TEXT"),
        table((1, "a"), (2, "c"), id="INTEGER", title="TEXT"),
        table((1, "a"), (2, "c"), id="TEXT", name="TEXT"),
        table((1, "a", None), (2, "c", None), id="INTEGER", name="TEXT", more="TEXT"),
        TableState("view", (("id", "INTEGER"), ("name", "TEXT")), [(1, "a"), (2, "c")]),
        table(id="INTEGER", name="TEXT"),
    ],
)
def test_a_table_that_differs(agent: TableState) -> None:
    gold = {"t": table((1, "a"), (2, "c"), id="INTEGER", name="TEXT")}
    found = compared_states(gold, {"t": agent})
    assert not found.equal
    assert found.overlap < 1.0
    assert found.reason == "t differs from gold's"


def test_the_overlap_is_that_of_the_changes() -> None:
    gold = {"t": table((1, "a"), (2, "c"), (3, "d"), id="INTEGER", name="TEXT")}
    agent = {"t": table((1, "a"), (2, "b"), (3, "d"), id="INTEGER", name="TEXT")}
    # Gold: one row gone, two new. The agent: one of the new.
    assert compared_states(gold, agent).overlap == pytest.approx(2 * 1 / (3 + 1))


def test_a_view_s_types_are_its_engine_s_matter() -> None:
    gold = {"v": TableState("view", (("n", ""),), [(1,)])}
    assert compared_states(gold, {"v": TableState("view", (("n", "INT"),), [(1,)])}).equal


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("INTEGER", "int(11)", "DOUBLE PRECISION", "decimal(8,2)", "REAL", "numeric"), "number"),
        (("TEXT", "character varying(20)", "enum('a','b')", "longtext"), "text"),
        (("DATE", "datetime(6)", "timestamp without time zone", "year(4)", "time"), "moment"),
        (("BLOB", "bytea", "varbinary(3)"), "bytes"),
        (("boolean",), "boolean"),
        (("",), ""),
    ],
)
def test_families_of_types(names: tuple[str, ...], expected: str) -> None:
    assert {family(name) for name in names} == {expected}


some_rows = st.lists(
    st.tuples(st.sampled_from([1, 2, None]), st.sampled_from(["a", "b"])), max_size=4
)
tables = st.one_of(st.none(), some_rows.map(lambda made: table(*made, id="INT", name="TEXT")))
states = st.fixed_dictionaries({"t": tables, "u": tables})


def kept(state: dict[str, TableState | None]) -> dict[str, TableState]:
    return {name: made for name, made in state.items() if made is not None}


@given(states, states, states)
def test_any_states(before: Any, gold: Any, agent: Any) -> None:
    before, gold, agent = kept(before), kept(gold), kept(agent)
    found = compare_states(before, gold, agent)
    assert 0.0 <= found.overlap <= 1.0
    assert 0.0 <= found.tables <= 1.0
    assert found.equal is (found.reason == "")
    assert found.equal is (found.overlap == 1.0)
    assert compare_states(before, gold, gold) == DatabaseStateComparison(True, 1.0, 1.0)
    other = compare_states(before, agent, gold)
    assert (other.equal, other.overlap, other.tables) == (found.equal, found.overlap, found.tables)
    if not compare_states(before, gold, before).equal:
        assert compare_states(before, gold, before).overlap == 0.0
