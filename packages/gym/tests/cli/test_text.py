"""What is printed of untrusted output."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given, strategies as st

from intercode.cli.terminal import duration, one_line, safe, shorten, table
from intercode.report.text import escape_formula
from intercode.spec import positive, seconds, size


@given(st.text(st.characters(exclude_categories=())))
def test_safe_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = safe(text)
    assert all(c in "\n\t" or c.isprintable() for c in shown)
    shown.encode("utf-8")
    assert safe(shown) == shown


@given(st.binary())
def test_bytes_are_shown(data: bytes) -> None:
    assert (
        safe(data.decode("utf-8", "surrogateescape")).isprintable()
        or b"\n" in data
        or (b"\t" in data)
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字", "plain ünïcode 漢字"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\rb\b", "a\\rb\\b"),
        ("\x9b2J", "\\x9b2J"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), "\\xff\\xfe"),
        ("abc\u202egnp", "abc\\u202egnp"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_safe(text: str, shown: str) -> None:
    assert safe(text) == shown


@pytest.mark.defends("host leak")
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
@pytest.mark.parametrize("before", ["", " ", "\t", "\r\n ", "\u00a0"])
def test_no_cell_is_a_formula(before: str, sign: str) -> None:
    assert escape_formula(f"{before}{sign}SUM(A1)") == f"'{before}{sign}SUM(A1)"


@pytest.mark.parametrize("text", ["", "-5", "+1.25", "a=b", "'=b", "5-3", "x\n-rw-r--r--"])
def test_cells_that_are_no_formula(text: str) -> None:
    assert escape_formula(text) == text


@given(st.text(), st.integers(1, 40))
def test_one_line_fits(text: str, width: int) -> None:
    line = one_line(text, width)
    assert len(line) <= width and "\n" not in line


def test_shortened_keeps_head_and_tail() -> None:
    text = "".join(f"line {n}\n" for n in range(100))
    lines = shorten(text, 6).split("\n")
    assert lines == [
        "line 0",
        "line 1",
        "line 2",
        "line 3",
        "… 94 more lines …",
        "line 98",
        "line 99",
    ]
    assert shorten("a\nb\n", 2) == "a\nb"


def test_table_and_duration() -> None:
    assert (
        table(("", "n"), [("long name", "1"), ("b", "22")])
        == "            n\nlong name   1\nb          22"
    )
    assert [duration(s) for s in (0.0123, 1.25, 61, 3600)] == [
        "12 ms",
        "1.2 s",
        "1 min 01 s",
        "1 h 00 min",
    ]


def test_a_table_shows_markup_as_it_is_and_obeys_nothing() -> None:
    cells = ["[red]x[/red]", "[link=file:///etc/passwd]y[/]", ":smile:", "https://a.b 1.5"]
    for cell in cells:
        assert table(("",), [(cell,)]) == f"\n{cell}"
    hostile = "\x1b[2J\r\b\x9b31m"
    assert safe(hostile) in table(("",), [(safe(hostile),)])


def test_option_values() -> None:
    assert [size(t) for t in ("512M", "1G", "1GiB", "1.5k", "100")] == [
        512 << 20,
        1 << 30,
        1 << 30,
        1536,
        100,
    ]
    assert (positive("3"), seconds("2.5"), seconds("2s")) == (3, 2.5, 2.0)
    for parse, text in (
        (size, "x"),
        (size, "0"),
        (positive, "0"),
        (positive, "-1"),
        (seconds, "nan"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)
