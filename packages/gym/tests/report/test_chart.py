"""The chart of text: never wider than asked, and it says what the numbers say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from intercode.errors import UsageError
from intercode.evaluate.statistics import IntervalEstimate
from intercode.report.text import MARKS, MIN_WIDTH, ROWS, chart

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=60)
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)


def points(rates: list[float]) -> list[IntervalEstimate]:
    return [IntervalEstimate(rate, max(0.0, rate - 0.1), min(1.0, rate + 0.1)) for rate in rates]


def body(text: str) -> list[str]:
    """The lines above the axis, without the levels."""
    lines = text.split("\n")[:ROWS]
    assert all(line[6] in "┤│" for line in lines)
    return [line[7:] for line in lines]


def rows_of(lines: list[str], mark: str) -> list[int]:
    """In which row each of the marks is, from left to right."""
    found = sorted(
        (column, row)
        for row, line in enumerate(lines)
        for column, char in enumerate(line)
        if char == mark
    )
    assert len({column for column, _ in found}) == len(found)
    return [row for _, row in found]


def test_what_it_looks_like() -> None:
    text = chart(
        {"oracle": points([1.0]), "one": points([0.2, 0.2, 0.7]), "none": points([0.0, 0.0])},
        width=60,
    )
    assert text == (
        "100 % ┤●───────●───────●\n"
        "      │\n"
        " 80 % ┤\n"
        "      │                ▲\n"
        " 60 % ┤                │\n"
        "      │                │\n"
        " 40 % ┤                │\n"
        "      │                │\n"
        " 20 % ┤▲───────▲───────╯\n"
        "      │\n"
        "  0 % ┤■───────■───────■\n"
        "      ┼┬───────┬───────┬\n"
        "       1       2       3 turns\n"
        "       ● oracle                    100.0 %  90.0 - 100.0 %\n"
        "       ▲ one                        70.0 %  60.0 - 80.0 %\n"
        "       ■ none                        0.0 %  0.0 - 10.0 %\n"
    )


def test_what_falls_falls() -> None:
    lines = body(chart({"down": points([0.9, 0.4])}))
    assert lines[1].startswith("●") and "╮" in lines[1] and lines[6].strip() == "●"


def test_the_first_of_those_on_each_other_is_seen() -> None:
    text = chart({"a": points([0.5]), "b": points([0.5])})
    assert MARKS[0] in body(text)[5] and MARKS[1] not in "".join(body(text))
    assert f"{MARKS[1]} b" in text


def test_nothing_to_draw() -> None:
    assert chart({}) == chart({"nobody": []}) == ""


def test_too_narrow() -> None:
    with pytest.raises(UsageError, match="at least 40 columns"):
        chart({"a": points([0.5])}, width=MIN_WIDTH - 1)


@given(st.dictionaries(NAMES, RATES, max_size=12), st.integers(MIN_WIDTH, 200), st.booleans())
def test_no_line_is_too_wide(series: dict[str, list[float]], width: int, ascii_only: bool) -> None:
    drawn = {name: points(rates) for name, rates in series.items()}
    text = chart(drawn, width=width, ascii_only=ascii_only)
    assert all(len(line) <= width for line in text.split("\n"))
    assert text.isascii() or not ascii_only
    assert bool(text) == bool(series)


@settings(max_examples=50)
@given(RATES, st.integers(MIN_WIDTH, 200))
def test_what_rises_rises(rates: list[float], width: int) -> None:
    rows = rows_of(body(chart({"a": points(sorted(rates))}, width=width)), MARKS[0])
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == round((1 - min(rates)) * (ROWS - 1))
    assert rows[-1] == round((1 - max(rates)) * (ROWS - 1))
    assert len(rows) == min(len(rates), max(1, width - 7))
