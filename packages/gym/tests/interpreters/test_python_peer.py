"""What travels between a submission and its tests."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intercode.interpreters.inside.grader import alike, refresh
from intercode.interpreters.inside.object_proxy import ProxyEndpoint


def moments(strategy: Any) -> Any:
    # ISO 8601 has no word for the second of two equal times on the night when clocks go back.
    return strategy.map(lambda moment: moment.replace(fold=0))


ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary()
    | st.text(st.characters(codec=None, exclude_categories=())) | st.decimals(allow_nan=False)
    | st.fractions() | st.dates() | moments(st.datetimes()) | moments(st.times()) | st.timedeltas()
    | st.complex_numbers(allow_nan=False) | st.just(...) | st.integers(-9, 9).map(range)
)  # fmt: skip
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.lists(inner).map(deque)
    | st.dictionaries(ATOMS, inner) | st.dictionaries(ATOMS, inner).map(OrderedDict)
    | st.sets(ATOMS) | st.frozensets(ATOMS) | st.binary().map(bytearray) | st.slices(9),
    max_leaves=20,
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


class Side(ProxyEndpoint):
    """One that gives no objects away."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]

    def stand_in(self, number: int, kind: str, name: str, data: Any) -> Any:
        return (number, kind, name, data)

    def object_number(self, value: object) -> int | None:
        return None


@given(VALUES)
def test_data_comes_as_it_went(value: Any) -> None:
    sent = json.loads(json.dumps(Side().encode(value)))
    came = Side().decode(sent)
    assert came == value
    assert repr(came) == repr(value) or isinstance(
        value, (set, frozenset, dict, list, tuple, deque)
    )
    assert type(came) is type(value)


def test_special_numbers() -> None:
    for value in (math.inf, -math.inf, 2**63, -(2**63), 10**5000, Counter("aab")):
        assert Side().decode(Side().encode(value)) == value
    assert math.isnan(Side().decode(Side().encode(math.nan)))


@given(JSON)
def test_nonsense_is_refused_or_is_data(tree: Any) -> None:
    try:
        value = Side().decode(tree)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return
    plain = (
        bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, deque,
        complex, date, datetime, time, timedelta, Decimal, Fraction, type(None), type(...), slice,
    )  # fmt: skip
    assert isinstance(value, plain) or tree[0] == "builtin"


def test_objects_do_not_travel() -> None:
    class Mine:
        pass

    side, mine = Side(), Mine()
    assert side.encode(mine) == side.encode(mine) == ["ref", 0, "object", "Mine"]
    assert side.encode([Mine])[1] == [["ref", 1, "class", "Mine"]]
    assert side.decode(["yours", 0]) is mine
    assert side.encode(len) == ["builtin", "len"]


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "same"),
    [
        ((1, (2,)), [1, [2]], 0, True),
        ([1], [1, 2], 0, False),
        ({"a": (1,)}, {"a": [1]}, 0, True),
        ({"a": 1}, {"b": 1}, 0, False),
        (1, True, 0, False),
        (1.0, 1, 0, True),
        (0.1 + 0.2, 0.3, 0, False),
        (0.1 + 0.2, 0.3, 1e-9, True),
        ([0.1 + 0.2], [0.3], 1e-9, True),
        ("ab", ["a", "b"], 0, False),
        ({1}, [1], 0, False),
    ],
)
def test_alike(one: Any, other: Any, tolerance: float, same: bool) -> None:
    assert alike(one, other, tolerance) is same


def test_refresh_keeps_what_has_stayed() -> None:
    inner, row = {"a": [1]}, [1, 2]
    outer = [inner, row, 3]
    deep = inner["a"]
    refresh(outer, [{"a": [1, 2], "b": 0}, (1,), 3, 4])
    assert outer == [{"a": [1, 2], "b": 0}, (1,), 3, 4]
    assert (outer[0] is inner, inner["a"] is deep, row) == (True, True, [1, 2])
