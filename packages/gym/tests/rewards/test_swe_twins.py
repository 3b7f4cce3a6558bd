"""Twins of tests: which are made of a file's text."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from intercode.rewards.mutated_tests import FileEdit, apply_edits, locate_test, make_edits


def made(source: str, *names: str, seed: int = 0) -> list[FileEdit]:
    return make_edits(source.encode(), names or ("test_x",), random.Random(seed))


HELPERS = """\
import datetime
from datetime import date
from ours import Date

def check(found, wanted):
    assert sorted(found) == wanted, found

def loose(found, wanted):
    wanted = str(wanted)
    assert found == wanted
"""


def function(*lines: str) -> str:
    return "\n".join([HELPERS, "def test_x(self):", *(f"    {line}" for line in lines), ""])


TWINNED = [
    ["assert f() == 3"],
    ["assert 3 == f(), 'a message'"],
    ["assert f() is None"],
    ["assert f() is True and g() == 'x'"],
    ["assert f() == []"],
    ["assert f() == ''"],
    ["assert f() == {'a': [1, -2.5]}"],
    ["assert f() == {1, 2}"],
    ['assert f() == """a', 'b"""'],
    ["assert f() == ('a'", "    'b')"],
    ["self.assertEqual(f(), 'é 1')"],
    ["self.assertDictEqual({'a': 1}, f())"],
    ["with self.subTest(1):", "    assert f() == 3"],
    ["with open('x') as file:", "    assert file.read() == 'x'"],
    ["def double(x):", "    return 2 * x", "assert double(f()) == 3"],
    ["for x, y in [('a', 1), ('b', 2)]:", "    assert f(x) == y"],
    ["for x in (1, 2):", "    with self.subTest(x):", "        self.assertEqual(x, f())"],
    ["check(f(), 3)"],
    ["check(f(), wanted=3)"],
    ["assert f() == date(2021, 2, 28)"],
    ["assert f() == [datetime.date(2021, 2, 28)]"],
    ["assert 'expired' in f()"],
    ["self.assertIn('expired', f())"],
    ["with pytest.raises(ValueError):", "    f()"],
    ["with pytest.raises(ImportError) as caught:", "    f()"],
    ["with self.assertRaises(KeyError):", "    f()"],
    ["self.assertRaises(KeyError, f, 1)"],
    ["self.assertRaisesRegex(KeyError, 'x', f, 1)"],
]
NOT_TWINNED = [
    ["assert f() > 3"],
    ["assert f() != 3"],
    ["assert 3 in f()"],
    ["assert f() == g()"],
    ["assert 3 == 3"],
    ["assert f() == 3 or f() == 4"],
    ["assert not f() == 3"],
    ["assert f() == g() == 3"],
    ["assert f() == pytest.approx(3)"],
    ["self.assertAlmostEqual(f(), 3)"],
    ["self.assertIn(3, f())"],
    ["self.assertTrue(f())"],
    ["other.assertEqual(f(), 3)"],
    ["if g():", "    assert f() == 3"],
    ["for x in f():", "    assert x == 3"],
    ["try:", "    assert f() == 3", "except AssertionError:", "    pass"],
    ["if g():", "    return", "assert f() == 3"],
    ["with pytest.raises(Exception):", "    assert f() == 3"],
    ["with pytest.raises((KeyError, ValueError)):", "    f()"],
    ["with pytest.raises(OurError):", "    f()"],
    ["assert 'ab1' in f()"],
    ["assert 'expired' in 'is expired'"],
    ["assert 'expired' not in f()"],
    ["with contextlib.suppress(AssertionError):", "    assert f() == 3"],
    ["def inner():", "    assert f() == 3"],
    ["for x in (1, 2):", "    x = f()", "    assert f() == x"],
    ["for x in (1, 2):", "    assert f() == x", "    if g():", "        break"],
    ["for x in f():", "    assert x == 3"],
    ["loose(f(), 3)"],
    ["check(3, f())"],
    ["assert f() == Date(2021, 2, 28)"],
    ["assert f() == date(2021, 2, g())"],
]


@pytest.mark.parametrize("lines", TWINNED, ids="; ".join)
def test_what_is_twinned(lines: Sequence[str]) -> None:
    source = function(*lines)
    for seed in range(20):
        found = made(source, seed=seed)
        assert found
        for edit in found:
            text = apply_edits(source.encode(), [edit]).decode()
            assert text != source and text.count("\n") == source.count("\n")
            assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))
            assert text.startswith(HELPERS)  # other tests use them, too


@pytest.mark.parametrize("lines", NOT_TWINNED, ids="; ".join)
def test_what_is_not(lines: Sequence[str]) -> None:
    assert made(function(*lines)) == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(VALUES, st.integers())
def test_another_value_of_the_same_type(value: object, seed: int) -> None:
    source = f"def test_x():\n    assert f() == {value!r}\n"
    for edit in made(source, seed=seed):
        tree = ast.parse(apply_edits(source.encode(), [edit]))
        found = ast.literal_eval(tree.body[0].body[0].test.comparators[0])  # type: ignore[attr-defined]
        assert found != value
        assert type(found) is type(value) or value is None


@given(st.binary())
def test_any_file(source: bytes) -> None:
    assert make_edits(source, ["test_x"], random.Random(0)) == []


def test_where_tests_are() -> None:
    assert list(locate_test("t/test_a.py::A::test_x[a::b]", "pytest")) == [
        ("t/test_a.py", ("A", "test_x"))
    ]
    assert ("t/test_a.py", ("A", "test_x")) in locate_test("t.test_a.A.test_x", "unittest")
    source = "class A:\n    class B:\n        def test_x(self):\n            assert f() == 3\n"
    assert len(made(source, "A", "B", "test_x")) == 1
    assert made(source, "A", "test_x") == []


def test_edits_of_several_tests() -> None:
    source = b"def test_x():\n    assert f() == 10\ndef test_y():\n    assert f() == 'a'\n"
    draw = random.Random(1)
    both = [*make_edits(source, ["test_x"], draw), *make_edits(source, ["test_y"], draw)]
    lines = apply_edits(source, both).splitlines()
    assert lines[0::2] == source.splitlines()[0::2]
    assert len(lines[1]) == len("    assert f() == 10") and b"10" not in lines[1]
    assert lines[3] != b"    assert f() == 'a'"
