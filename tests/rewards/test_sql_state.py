from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.databases.base import Row, Table
from intercode.rewards.sql_compare import Change, compare_states, family


def table(*rows: Row, **columns: str) -> Table:
    return Table("table", tuple(columns.items()), rows)


BEFORE = {"t": table((1, "a"), (2, "b"), id="INTEGER", name="TEXT"), "u": table((1,), n="INT")}


def compared(gold: dict[str, Table], agent: dict[str, Table]) -> Change:
    return compare_states(BEFORE, {**BEFORE, **gold}, {**BEFORE, **agent})


def test_columns_and_rows_may_stand_in_another_order() -> None:
    gold = {"t": table((1, "a"), (2, "c"), id="INTEGER", name="TEXT")}
    agent = {"t": table(("c", 2.0), ("a", 1), NAME="VARCHAR(9)", Id="bigint unsigned")}
    assert compared(gold, agent) == Change(True, 1.0, 1.0)


def test_names_that_differ_in_capitals_alone_are_two() -> None:
    gold = {"u": table((2,), n="INT")}
    assert compared(gold, {"u": table((2,), N="INT")}).equal
    assert not compared(gold, {"u": table((2, 2), n="INT", N="INT")}).equal
    assert not compared(gold, {**gold, "U": table((1,), n="INT")}).equal
    assert not compared(gold, {"u": BEFORE["u"], "U": gold["u"]}).equal


def test_numbers_are_compared_with_a_tolerance() -> None:
    gold = {"u": table((0.1 + 0.2,), n="REAL")}
    assert compared(gold, {"u": table((0.3,), n="DOUBLE")}).equal
    assert not compared(gold, {"u": table((0.31,), n="DOUBLE")}).equal


@pytest.mark.parametrize(
    "agent",
    [
        table((2, "c"), id="INTEGER", name="TEXT"),
        table((1, "a"), (1, "a"), (2, "c"), id="INTEGER", name="TEXT"),
        table((1, "a"), (2, "c"), id="INTEGER", title="TEXT"),
        table((1, "a"), (2, "c"), id="TEXT", name="TEXT"),
        table((1, "a", None), (2, "c", None), id="INTEGER", name="TEXT", more="TEXT"),
        Table("view", (("id", "INTEGER"), ("name", "TEXT")), [(1, "a"), (2, "c")]),
        table(id="INTEGER", name="TEXT"),
    ],
)
def test_a_table_that_differs(agent: Table) -> None:
    gold = {"t": table((1, "a"), (2, "c"), id="INTEGER", name="TEXT")}
    found = compared(gold, {"t": agent})
    assert not found.equal
    assert found.overlap < 1.0
    assert found.reason == "t is not as it should be"


def test_the_overlap_is_that_of_the_changes() -> None:
    gold = {"t": table((1, "a"), (2, "c"), (3, "d"), id="INTEGER", name="TEXT")}
    agent = {"t": table((1, "a"), (2, "b"), (3, "d"), id="INTEGER", name="TEXT")}
    # Gold: one row gone, two new. The agent: one of the new.
    assert compared(gold, agent).overlap == pytest.approx(2 * 1 / (3 + 1))


def test_a_view_s_types_are_its_engine_s_matter() -> None:
    gold = {"v": Table("view", (("n", ""),), [(1,)])}
    assert compared(gold, {"v": Table("view", (("n", "INT"),), [(1,)])}).equal


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


rows = st.lists(st.tuples(st.sampled_from([1, 2, None]), st.sampled_from(["a", "b"])), max_size=4)
tables = st.one_of(st.none(), rows.map(lambda made: table(*made, id="INT", name="TEXT")))
states = st.fixed_dictionaries({"t": tables, "u": tables})


def kept(state: dict[str, Table | None]) -> dict[str, Table]:
    return {name: made for name, made in state.items() if made is not None}


@given(states, states, states)
def test_any_states(before: Any, gold: Any, agent: Any) -> None:
    before, gold, agent = kept(before), kept(gold), kept(agent)
    found = compare_states(before, gold, agent)
    assert 0.0 <= found.overlap <= 1.0
    assert 0.0 <= found.tables <= 1.0
    assert found.equal is (found.reason == "")
    assert found.equal is (found.overlap == 1.0)
    assert compare_states(before, gold, gold) == Change(True, 1.0, 1.0)
    other = compare_states(before, agent, gold)
    assert (other.equal, other.overlap, other.tables) == (found.equal, found.overlap, found.tables)
    if not compare_states(before, gold, before).equal:
        assert compare_states(before, gold, before).overlap == 0.0
