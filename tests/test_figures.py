"""Figures of pages are those of benchmarks/results, and their sources have not changed since."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import chart
import figures
import measurements
from figures import Exceptions, MarkError
from measurements import TIMES, Figure, Measurement

ROWS = {
    "bash.reset": Figure("ms", 3.92, 2.96, 4.02),
    "bash.episodes": Figure("/s", 138, 128, 169),
    "bash.cpu": Figure("ms", None, 7.8, 10.9),
    "bash.size": Figure("B", 413),
    "bash.ratio": Figure(TIMES, 2.31),
}
NO_EXCEPTIONS = Exceptions({}, {})


def differences(text: str, exceptions: Exceptions = NO_EXCEPTIONS) -> list[str]:
    return figures.differences("page.md", text, ROWS, exceptions)


def test_all_pages_have_the_figures_of_their_rows() -> None:
    problems = figures.problems()
    assert not problems, "\n".join(problems)


def test_no_measurement_is_older_than_its_sources() -> None:
    sentences = measurements.list_stale(measurements.read())
    assert not sentences, "\n".join(sentences)


def test_the_chart_has_the_figures_of_its_rows() -> None:
    assert chart.CHART.read_text() == chart.draw(measurements.read())


@pytest.mark.parametrize("change", [{"machine": "16 cores"}, {"date": "2027-02-01"}])
def test_the_chart_compares_bars_of_one_machine_and_day(change: dict[str, str]) -> None:
    rows = dict(measurements.read())
    rows["bash"] = replace(rows["bash"], **change)
    with pytest.raises(ValueError, match="one machine and one day"):
        chart.draw(rows)


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [("10", 14.2, "14"), ("100", 149.0, "150"), ("8,300", 8412.0, "8,400"), ("3.9", 4.26, "4.3")],
)
def test_a_figure_keeps_two_digits(number: str, value: float, expected: str) -> None:
    assert figures.style(number, value) == expected


def test_all_rows_and_exceptions_have_a_use_and_a_reason() -> None:
    rows, exceptions = measurements.figures(measurements.read()), Exceptions.read()
    names = {
        mention.row
        for page in figures.pages()
        for mention in figures.mentions(
            page,
            (measurements.ROOT / page).read_text(),
            rows,
            exceptions.figures.get(page, {}),
        )
    }
    assert rows.keys() == (names - {""}) | chart.BARS.keys()
    assert {*exceptions.pages, *exceptions.figures} <= {*figures.pages()}
    assert all(exceptions.pages.values())


@pytest.mark.parametrize(
    "text",
    [
        "A reset takes 3.9 ms.\n\n<!-- figures: bash.reset -->\n",
        "It takes 0.0039 s, and plays 138 one-action\nepisodes a second.\n\n"
        "<!-- figures: bash.reset .episodes -->\n",
        "It plays 8,300 episodes a minute.\n\n<!-- figures: bash.episodes -->\n",
        f"- 8 to 11 ms\n- 410 bytes, {TIMES} 2.3 and 2.31 times\n\n"
        "<!-- figures: bash.cpu .size .ratio .ratio -->\n",
        "It takes less than 4 ms.\n\n<!-- figures: bash.reset -->\n",
        "| | One thread, episodes a second |\n|---|---|\n| Bash | 138 |\n\n"
        "<!-- figures: bash.episodes -->\n",
        "| | Bash |\n|---|---|\n| episodes a second | 138 |\n<!-- figures: bash.episodes -->\n",
        f"3.92 ms, 138 a second, 7.8 to 10.9 ms, 413 B, {TIMES} 2\n\n<!-- figures: bash.* -->\n",
        "Code: `3 s`, `<!-- figures: bash.reset -->`,\n\n```console\n$ sleep 3 s\n```\n",
        f"Nor has a plain number: 342 of 347 in 3 turns, version 1.2, 80 {TIMES} 24.\n",
    ],
)
def test_a_page_chooses_unit_and_precision(text: str) -> None:
    assert differences(text) == []
    assert figures.rewrite("page.md", text, ROWS, NO_EXCEPTIONS) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("First.\n\nA reset takes 3.9 ms.\n", "page.md:3: '3.9 ms' names no row"),
        ("4 ms\n\n<!-- figures: bash.gone -->\n", "no row bash.gone"),
        ("3.8 ms\n\n<!-- figures: bash.reset -->\n", "bash.reset is 3.9 ms"),
        ("8 to 12 ms\n\n<!-- figures: bash.cpu -->\n", "bash.cpu is 8 to 11 ms"),
        ("less than 3 ms\n\n<!-- figures: bash.reset -->\n", "bash.reset is 4 ms"),
        ("3.9 ms, 8 ms\n\n<!-- figures: bash.reset -->\n", "names 1 rows, and the block has 2"),
        ("3.9 MiB\n\n<!-- figures: bash.reset -->\n", "'3.9 MiB' does not fit bash.reset"),
        ("8 ms\n\n<!-- figures: bash.cpu -->\n", "'8 ms' does not fit bash.cpu"),
        ("| | Runs a minute |\n|-|-|\n| Bash | 8,300 |\n", "'8,300 a minute' names no row"),
    ],
)
def test_a_wrong_figure_is_named_with_its_line(text: str, problem: str) -> None:
    (message,) = differences(text)
    assert problem in message and message.startswith("page.md:")


def test_exceptions_need_no_row() -> None:
    text = "After 30 s the reset, of 3.9 ms, fails.\n\n<!-- figures: bash.reset -->\n"
    limit = Exceptions({}, {"page.md": {"30 s": "a limit"}})
    assert differences(text, limit) == []
    assert differences(text.replace("30 s", "a while"), limit) == [
        "page.md: the exception '30 s' is not on the page"
    ]
    notebook = Exceptions({"page.md": "a notebook of 2026"}, {})
    assert differences("It took 7 ms.\n", notebook) == []
    assert differences("3.8 ms\n\n<!-- figures: bash.reset -->\n", notebook)


def test_new_rows_are_written_into_a_page() -> None:
    text = (
        "A reset takes 3.9 ms, at 138 episodes\na second.\n\n"
        "<!-- figures: bash.reset .episodes -->\n\n"
        "| episodes a minute | 8,300 |\n|-|-|\n| CPU | 8 to 11 ms |\n\n"
        "<!-- figures: bash.episodes bash.cpu -->\n"
    )
    rows = {
        **ROWS,
        "bash.reset": Figure("s", 0.01234),
        "bash.episodes": Figure("/s", 209.6),
        "bash.cpu": Figure("ms", 9, 6.6, 12.3),
    }
    result = figures.rewrite("page.md", text, rows, NO_EXCEPTIONS)
    assert "takes 12.3 ms, at 210 episodes\na second" in result and "| 7 to 12 ms |" in result
    assert figures.differences("page.md", result, rows, NO_EXCEPTIONS) == []


@pytest.mark.parametrize(
    ("number", "value", "text"),
    [
        ("3.9", 3.92, "3.9"),
        ("0.90", 0.896, "0.90"),
        ("8,300", 8280, "8,300"),
        ("138", 1234, "1,230"),
        ("8", 7.8, "8"),
        ("5", 0.44, "0.4"),
        ("0.1", 0.004, "0.004"),
        ("40", 0, "0"),
    ],
)
def test_a_number_keeps_its_precision(number: str, value: float, text: str) -> None:
    assert figures.style(number, value) == text


@pytest.fixture
def measurement(tmp_path: Path) -> Measurement:
    """Return a measurement of a file, ``reset.c``, that `make bench` renews."""
    (tmp_path / "reset.c").write_text("int main;")
    return Measurement(
        description="A reset.",
        command="make bench",
        machine="two cores",
        commit="abc",
        date="2026-11-27",
        sources=measurements.digests(["*.c"], tmp_path),
        rows={
            "reset": Figure("ms", 3.9, bench="bash: reset"),
            "ratio": Figure(TIMES, 3.3, bench="bash: reset", floor="bash -c true"),
        },
    )


def test_changed_sources_are_confirmed(measurement: Measurement, tmp_path: Path) -> None:
    assert measurements.list_stale({"bash": measurement}, tmp_path) == []
    (tmp_path / "reset.c").write_text("int other;")
    (message,) = measurements.list_stale({"bash": measurement}, tmp_path)
    assert message.startswith("bash: *.c changed since 2026-11-27") and "--confirm bash" in message
    confirmation = measurement.confirm("2026-11-30", "a name only", tmp_path)
    assert measurements.list_stale({"bash": confirmation}, tmp_path) == []
    assert confirmation.confirmations == [
        {"date": "2026-11-30", "reason": "a name only", "sources": "*.c"}
    ]
    (tmp_path / "reset.c").write_text("int third;")
    assert "since 2026-11-30" in measurements.list_stale({"bash": confirmation}, tmp_path)[0]
    copy = replace(measurement, sources={"gone/*.c": "0"})
    with pytest.raises(FileNotFoundError, match="gone"):
        copy.changes(tmp_path)


def test_a_measurement_is_written_and_read(measurement: Measurement, tmp_path: Path) -> None:
    confirmation = measurement.confirm("2026-11-30", "a name only", tmp_path)
    measurements.write("bash", confirmation, tmp_path)
    (tmp_path / measurements.RUN).write_text("a run is no measurement")
    assert measurements.read(tmp_path) == {"bash": confirmation}
    assert measurements.figures({"bash": confirmation})["bash.reset"].value == 3.9


def test_a_run_renews_a_measurement_as_a_whole(measurement: Measurement, tmp_path: Path) -> None:
    entry = replace(measurement, origin="by hand", confirmations=[{"date": "2026-11-28"}])
    measurements.write("bash", entry, tmp_path)
    facts = {"machine": "Linux", "cpus": 2, "load": [0.5, 1, 1], "commit": "def"}
    reset: dict[str, Any] = {"name": "bash: reset", "unit": "ms", "figure": [4.0, 6.0, 5.0]}
    report = {"facts": {**facts, "time": "2026-12-01T10:00:00Z"}, "rows": [reset]}
    assert measurements.renew(report, tmp_path, tmp_path) == []  # without its floor
    report["rows"] = [reset, {"name": "bash -c true", "unit": "ms", "figure": [1.0, 2.0, 1.0]}]
    assert measurements.renew(report, tmp_path, tmp_path) == ["bash"]
    renewal = measurements.read(tmp_path)["bash"]
    assert (renewal.commit, renewal.date) == ("def", "2026-12-01") and "load 0.5" in renewal.machine
    assert not renewal.origin and not renewal.confirmations
    reset_row, ratio = renewal.rows["reset"], renewal.rows["ratio"]
    assert (reset_row.value, reset_row.low, reset_row.high) == (5.0, 4.0, 6.0)
    assert (ratio.value, ratio.low, ratio.high, ratio.unit) == (4.0, 3.0, 5.0, TIMES)


def test_measurements_of_one_comparison_are_renewed_together(
    measurement: Measurement, tmp_path: Path
) -> None:
    rows = {"reset": Figure("ms", 50.0, bench="release: reset")}
    entries = {
        "bash": replace(measurement, together=["release"]),
        "release": replace(measurement, rows=rows, together=["bash"]),
    }
    for name, entry in entries.items():
        measurements.write(name, entry, tmp_path)
    facts = {"machine": "Linux", "cpus": 2, "load": [0.5, 1, 1], "commit": "def"}
    names = ["bash: reset", "bash -c true", "release: reset"]
    report_rows: list[dict[str, Any]] = [
        {"name": name, "unit": "ms", "figure": 4.0} for name in names
    ]
    report = {"facts": {**facts, "time": "2026-12-01T10:00:00Z"}, "rows": report_rows[:2]}
    assert measurements.renew(report, tmp_path, tmp_path) == []
    assert measurements.read(tmp_path)["bash"].date == "2026-11-27"
    report["rows"] = report_rows
    assert measurements.renew(report, tmp_path, tmp_path) == ["bash", "release"]


def test_what_a_page_compares_belongs_together() -> None:
    entries = measurements.read()
    assert {*entries["bash"].together} >= {name.partition(".")[0] for name in chart.BARS} - {"bash"}
    for name, entry in entries.items():
        for other in entry.together:
            assert name in entries[other].together


def test_a_mark_counts_the_figures_of_its_own_block() -> None:
    text = "3.9 ms\n\n<!-- figures: bash.reset -->\n\n8 to 11 ms\n\n<!-- figures: bash.cpu -->\n"
    assert [mention.row for mention in figures.mentions("page.md", text, ROWS)] == [
        "bash.reset",
        "bash.cpu",
    ]
    with pytest.raises(MarkError, match=r"page.md:1: .* 2 rows, and the block has 1 figures"):
        figures.mentions("page.md", "3.9 ms\n\n<!-- figures: bash.reset .cpu -->\n", ROWS)
