"""When two outputs of a program are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intercode.rewards.python_run import same_output

SAME = [
    ("6\n", "6"),
    (" 6 \r\n\n", "6"),
    ("1  2\n\n3", "1 2\n3\n"),
    ("0.3333333333", "0.33333333"),
    ("3", "3.0"),
    ("1e3", "1000.0"),
    ("", "\n"),
]
DIFFERENT = [
    ("1 2 3", "1\n2\n3"),
    ("2 1", "1 2"),
    ("100000001", "100000000"),
    ("YES", "Yes"),
    ("0.34", "0.33"),
    ("6 6", "6"),
    ("", "6"),
    ("nan", "nan.0"),
    ("1e999", "2e999"),
    ("٣.0", "3"),
]


@pytest.mark.parametrize(("printed", "expected"), SAME)
def test_the_same(printed: str, expected: str) -> None:
    assert same_output(printed, expected)


@pytest.mark.parametrize(("printed", "expected"), DIFFERENT)
def test_different(printed: str, expected: str) -> None:
    assert not same_output(printed, expected)


@given(st.text(), st.text())
def test_any_text_is_itself_and_comparison_never_fails(one: str, other: str) -> None:
    assert same_output(one, one)
    assert same_output(f" {one}\n", one)
    assert same_output(one, other) in (True, False)


@given(st.integers(), st.integers())
def test_whole_numbers_are_exact(one: int, other: int) -> None:
    assert same_output(str(one), str(other)) == (one == other)
