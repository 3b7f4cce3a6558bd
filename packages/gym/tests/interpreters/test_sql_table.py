"""Rows as text: aligned, and no two values that must be told apart look alike."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from intercode.interpreters.sql import MAX_CELL, has_long_text, render, render_records, render_value

TEXTS = st.text(max_size=30)
NUMBERS = st.integers() | st.floats(allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        ("NULL", "'NULL'"),
        ("null", "'null'"),
        ("", "''"),
        (" a", "' a'"),
        ("a ", "'a '"),
        ("Zoë", "Zoë"),
        ("it's", "it's"),
        ("'quoted'", "'''quoted'''"),
        ("two\nlines", "e'two\\nlines'"),
        ("back\\slash", "back\\slash"),
        (3, "3"),
        ("3", "'3'"),
        ("-1.5e3", "'-1.5e3'"),
        ("1 apple", "1 apple"),
        (0.1 + 0.2, "0.30000000000000004"),
        (Decimal("2.50"), "2.50"),
        (True, "true"),
        ("true", "'true'"),
        (b"\x00\xff", "x'00ff'"),
        ("x'00ff'", "'x''00ff'''"),
        (date(2020, 2, 29), "2020-02-29"),
        (datetime(2020, 2, 29, 1, 2, 3), "2020-02-29 01:02:03"),
        (time(1, 2), "01:02:00"),
        (timedelta(hours=30), "1 day, 6:00:00"),
        (["a", 1, None], "[a, 1, NULL]"),
        ({"a": "1"}, "{a: '1'}"),
    ],
)
def test_a_value_shows_its_type(value: object, text: str) -> None:
    assert render_value(value) == text


@given(TEXTS, TEXTS)
def test_two_texts_never_look_alike(one: str, other: str) -> None:
    assert (render_value(one) == render_value(other)) == (one == other)


@given(TEXTS, NUMBERS | st.none() | st.booleans() | st.binary(max_size=20))
def test_a_text_never_looks_like_anything_else(text: str, value: object) -> None:
    assert render_value(text) != render_value(value)


@given(st.lists(st.tuples(TEXTS, st.integers() | st.none()), max_size=8))
def test_one_line_for_each_row(rows: list[tuple[str, int | None]]) -> None:
    lines = render(("name", "count"), rows).split("\n")
    assert len(lines) == 2 + len(rows)


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    rows = [("Bo", 7), ("中文", None), ("Ann-Marie", 1234)]
    assert render(("name", "n"), rows).split("\n") == [
        "name      |    n",
        "----------+-----",
        "Bo        |    7",
        "中文      | NULL",
        "Ann-Marie | 1234",
    ]


def test_a_long_value_is_cut_and_says_so() -> None:
    assert render_value("x" * 5000) == "x" * MAX_CELL + "… (5,000 characters)"
    assert render_value(b"\x01" * 5000).endswith("(5,000 bytes)")


def test_no_rows_still_show_the_columns() -> None:
    assert render(("a", "b"), []) == "a | b\n--+--"


# Records


CREATE = 'CREATE TABLE "singer" (\n  "id" int,\n  "name" text\n)'


def test_a_text_of_several_lines_stands_as_it_is() -> None:
    assert has_long_text([("singer", CREATE)]) and has_long_text([(CREATE,)])
    assert render_records(("sql",), [(CREATE,), (None,), ("3",)]).split("\n---\n") == [
        "sql",
        CREATE,
        "NULL",
        "'3'",
    ]
    assert render_records(("name", "sql"), [("singer", CREATE), ("n", 3)]) == (
        f"-- row 1 --\nname: singer\nsql:\n{CREATE}\n-- row 2 --\nname: n\nsql: 3"
    )


def test_a_statement_and_an_only_value_are_not_cut_soon() -> None:
    statement = "CREATE TABLE t (" + ", ".join(f"column_{n} INTEGER" for n in range(40)) + ")"
    rows = [("t", statement), ("u", statement)]
    assert has_long_text(rows) and statement in render_records(("name", "sql"), rows)
    assert has_long_text([("x" * 201,)]) and not has_long_text([("x" * 201,)] * 2)
    assert render_records(("x",), [("x" * 5000,)]).endswith("x… (5,000 characters)")


@pytest.mark.parametrize("text", ["short", "two\twords", "\x1b[2J\nx", "a\r\nb", "x" * 100])
def test_other_texts_stand_in_a_table(text: str) -> None:
    assert not has_long_text([(text, 1), (text, 2)])
    assert render_value(text) in render_records(("a", "b"), [(text, 1)])


def test_a_rule_is_as_wide_as_a_terminal() -> None:
    lines = render(("a", "b"), [("x" * 150, "y" * 150)]).split("\n")
    assert lines[1] == "-" * 100 and lines[2].endswith("y")
