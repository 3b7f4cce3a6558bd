"""The page of an episode in a real browser: terminal, answer beside gold, task, errors, keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import intercode
from intercode import records
from intercode.cli.main import main
from intercode.episode import Episode, Score, Turn
from report.test_browser import EVIL, Reader, browser, pytestmark, read
from report.test_view import append, begun

__all__ = ["browser", "pytestmark", "read"]  # fixtures, and the mark of tests that need Chromium

TERMINAL = {
    "lines": ("one\r\ntwo\r\n", "one\ntwo\n", 0),
    "progress": ("10 %\r50 %\r100 %\ndone\n", "100 %\ndone\n", 3),
    "a line cleared": ("wait …\r\x1b[Kready", "ready", 5),
    "a typing error": ("abd\b\x1b[Kc", "abc", 1),
    "lines above": ("a: 0\nb: 0\n\x1b[2A\x1b[4Ga\x1b[B\x1b[4Gb", "a: a\nb: b\n", 2),
    "columns": ("a\x1b[5Gb\x1b[2Dx", "a  xb", 0),
    "a cleared screen": ("secret\n\x1b[2J\x1b[Hnew", "new\n", 6),
    "an absolute place": ("\x1b[3;3Hx", "\n\n  x", 0),
    "a title and a link": (
        "\x1b]0;hidden\x07a\x1b]8;;http://x\x1b\\b\x1b]8;;\x1b\\",
        "ab",
        8 + 11 + 3,
    ),
    "modes": ("\x1b[?25l\x1b(B\x1b[?2004hshown\x1b[?25h", "shown", 0),
    "far away": ("\x1b[999999999B\x1b[999999999Cx", " " * 1000 + "x", 0),
    "half a sequence": ("end\x1b[3", "end\\x1b[3", 0),
    "the beginning of a line cleared": ("abcd\x1b[2D\x1b[1K", "   d", 3),
    "a colour": ("\x1b[1;38;2;255;255;255mwhite", "white", 0),
    "a text in short sequences": ("a\x1bs\x1be\x1b(c\x1b7b\x1b8", "ab", 4),
    "a text in a sequence": ("a\x1b[!!!!!!!!!!!x", "a", 14),
}
"""What a program prints → what a terminal shows, and the number of characters that it hides."""
TRACEBACK = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in act\n    go()\nOops: <b>\n'
)
ENDLESS = ("x" * 100 + "\x1b[1K" * 2000, "\n" * 1000 + "\x1b[2J" * 1000, "\n\x1b[999Cx" * 1000)
"""Texts that make a terminal erase or add far more cells than they have characters."""
RAW = "This is the raw text: its control sequences change too much for a terminal's view."
CHAIN, MANY = 6_000, 3_000
"""Numbers of a search's states: each below the one before, and all below the first."""
TASK = {
    "task_id": "diff",
    "query": "Count.",
    "gold": "def f(x):\n    return x + 1\n",
    "setup": f"echo {EVIL}",
    "files": {f"/data/{EVIL[:20]}": EVIL},
    "tests": ["assert f(1) == 2"],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a task in a data file, whose episodes differ in what happened."""
    folder = tmp_path_factory.mktemp("episodes")
    data, run, path = folder / "tasks.json", begun(folder / "run"), folder / "page.html"
    data.write_text(json.dumps([TASK]))
    manifest = json.loads((run / records.MANIFEST).read_text())
    manifest["dataset"]["digest"] = intercode.load_dataset(data).digest
    manifest["sessions"][0]["options"] = {"env": "python", "data": str(data)}
    (run / records.MANIFEST).write_text(json.dumps(manifest))
    shown = Episode("terminal", "q", "bash", status="submitted", score=Score(1.0))
    shown.turns = [
        Turn("cat", printed, ok=number != 4)
        for number, (printed, _, _) in enumerate(TERMINAL.values())
    ]
    failed = Episode("diff", "Count.", "python", status="submitted")
    failed.turns = [Turn("def f(x):\n    return x\n", "")]
    detail = {"output": "1\nsame\nsum 2\n", "gold_output": "1\nsame\nsum 3\n4\n"}
    failed.score = Score(0.0, {"output": 0.0, "tests": 0.5}, detail)
    messages = [
        {"role": "system", "content": "THE PROMPT"},
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "I count."},
    ]
    calls = [{"turn": 0, "sent": [0, 1], "reply": 2}]
    failed.metadata = {"model": {"messages": messages, "calls": calls}}
    crashed = Episode("crash", "q", "bash", status="error", error="AgentError: Oops")
    crashed.metadata = {"traceback": TRACEBACK, "error_type": "AgentError"}
    append(run, shown, failed, crashed, *hostile())
    assert main(["report", str(run), "--html", str(path), "--trust", "--json"]) == 0
    return path


def hostile() -> Iterator[Episode]:
    """Records that a terminal, a tree or a date cannot show in full."""
    numbers = "".join(f"{number}\n" for number in range(2101))
    details = {
        "endless": {"output": "same", "gold_output": "same"},
        "chain": {"output": numbers, "gold_output": f"{numbers}last\n".removeprefix("0\n")},
        "wide": {},
        "undated": {},
    }
    parents = {"endless": [], "chain": range(CHAIN), "wide": [0] * MANY, "undated": []}
    for task, detail in details.items():
        made = Episode(task, "q", "bash", status="submitted")
        made.score = Score(0.0, {"output": 0.0}, detail)
        made.started = 1e300 if task == "undated" else 0.0
        made.turns = [Turn("cat", text) for text in ENDLESS if task == "endless"]
        nodes = [{"parent": None}, *({"parent": at, "action": "act"} for at in parents[task])]
        if parents[task]:
            made.metadata = {"search": {"agent": "tree", "chosen": 1, "nodes": nodes}}
        yield made


def opened(read: Callable[..., Reader], task: str, **options: object) -> Reader:
    reader = read(**options)
    reader.go(f"#episode?run=run&id={task}%230")
    reader.heading(task)
    return reader


def test_output_is_shown_as_a_terminal_shows_it(read: Callable[..., Reader]) -> None:
    reader = opened(read, "terminal")
    turns = reader.tab.locator(".turn[aria-label^='turn']")
    shown, notes = [], []
    for turn in turns.all():
        shown.append(turn.locator(".observation").evaluate("(pre) => pre.textContent"))
        note = turn.locator(".hidden-note")
        notes.append(int(note.inner_text().split()[0]) if note.count() else 0)
    assert dict(zip(TERMINAL, shown, strict=True)) == {k: v[1] for k, v in TERMINAL.items()}
    assert dict(zip(TERMINAL, notes, strict=True)) == {k: v[2] for k, v in TERMINAL.items()}
    # Nothing that was printed is lost to a reader.
    reader.click("button", "raw texts")
    reader.sees("secret")


def test_answer_and_gold_stand_side_by_side(read: Callable[..., Reader]) -> None:
    reader = opened(read, "diff")
    pair = reader.tab.get_by_role("group", name="output: answer and gold")
    rows = [
        [cell.evaluate("(cell) => cell.textContent") for cell in row.locator("td").all()]
        for row in pair.locator("tbody tr").all()
    ]
    assert rows == [[" 1", " 1"], [" same", " same"], ["\N{MINUS SIGN}sum 2", "+sum 3"], ["", "+4"]]
    assert pair.locator(".differs").all_inner_texts() == ["2", "3"]
    reader.sees("output: 2 lines differ")
    removed, added = (
        pair.locator(".removed").last.bounding_box(),
        pair.locator(".added").first.bounding_box(),
    )
    assert removed["y"] == added["y"] and removed["x"] < added["x"]
    # On a phone they stand one below the other, and equal lines once.
    phone = opened(read, "diff", viewport={"width": 390, "height": 800}, has_touch=True)
    pair = phone.tab.get_by_role("group", name="output: answer and gold")
    removed, added = (
        pair.locator(".removed").last.bounding_box(),
        pair.locator(".added").first.bounding_box(),
    )
    assert removed["y"] < added["y"] and removed["x"] == added["x"]
    assert pair.locator("td:visible", has_text="same").count() == 1
    # The ways to the result are compared behind a click.
    code = reader.tab.get_by_role("group", name="code: answer and gold")
    assert not code.is_visible()
    reader.tab.get_by_text("code: 1 line differs").click()
    assert code.locator(".added .differs").inner_text().strip() == "+ 1"


def test_the_task_as_the_agent_had_it_and_behind_a_click_what_it_had_not(
    read: Callable[..., Reader],
) -> None:
    reader = opened(read, "diff")
    panel = reader.tab.get_by_role("group", name="task", exact=True)
    for title, text in (
        ("prompt (2 messages)", "THE PROMPT"),
        ("setup", "window.evil"),
        ("gold (the reference solution)", "return x + 1"),
        ("tests", "assert f(1)"),
        (re.compile("^file /data"), "window.evil"),
    ):
        summary = panel.locator("summary", has_text=title)
        content = summary.locator("xpath=..").locator("pre, .message").filter(has_text=text).first
        assert not content.is_visible(), title
        summary.click()
        content.wait_for()
    assert reader.tab.locator("main img, main script, main a:not([href^='#'])").count() == 0
    assert reader.tab.evaluate("window.evil") is None
    # A task that the page does not have: the page says why.
    other = opened(read, "crash")
    other.sees("no task has the id 'crash'")


def test_a_traceback_is_a_text_of_lines_in_sight(read: Callable[..., Reader]) -> None:
    reader = opened(read, "crash")
    reader.sees("Why there is no score")
    trace = reader.tab.locator("pre.traceback")
    assert trace.inner_text() == TRACEBACK.rstrip("\n")
    assert trace.is_visible() and trace.locator(".bad").inner_text() == "Oops: <b>"
    reader.sees("The agent took no action.")


def test_a_time_without_a_date_leaves_the_list_and_the_episode_readable(
    read: Callable[..., Reader],
) -> None:
    reader = opened(read, "undated")
    assert "UTC" not in reader.tab.locator("p.note").first.inner_text()
    reader.go("#episodes")
    reader.heading("Episodes")
    reader.tab.get_by_role("link", name="undated").wait_for()


def test_a_text_that_costs_a_terminal_too_much_is_shown_raw(read: Callable[..., Reader]) -> None:
    reader = opened(read, "endless")
    assert reader.tab.locator(".turn .hidden-note").all_inner_texts() == [RAW] * len(ENDLESS)
    shown = reader.tab.locator(".observation").evaluate_all(
        "(all) => all.map((p) => p.textContent)"
    )
    assert shown == [text.replace("\x1b", "\\x1b") for text in ENDLESS]


def test_equal_texts_in_the_record_of_an_unsolved_task_are_not_called_equal(
    read: Callable[..., Reader],
) -> None:
    reader = opened(read, "endless")
    reader.sees("output: no difference in what the record has")
    assert not reader.tab.get_by_text("output: equal").count()


def test_texts_too_long_for_an_alignment_are_said_to_be_so(read: Callable[..., Reader]) -> None:
    opened(read, "chain").sees("output: 2,101 lines differ (not aligned: too long)")


@pytest.mark.parametrize(("task", "number", "drawn"), [("chain", CHAIN, 100), ("wide", MANY, 2000)])
def test_a_large_search_is_drawn_in_part(
    read: Callable[..., Reader], task: str, number: int, drawn: int
) -> None:
    reader = opened(read, task)
    tree = reader.tab.get_by_role("region", name="search", exact=True)
    assert f"Only {drawn:,} of {number:,} are shown." in tree.inner_text()
    assert tree.locator("li").count() == drawn


def test_keys_lead_through_the_turns(read: Callable[..., Reader]) -> None:
    reader = opened(read, "terminal")
    keys, meant = reader.tab.keyboard, reader.tab.locator(".turn.meant")
    for key, turn in (("n", 1), ("n", 2), ("p", 1), ("e", 5)):
        keys.press(key)
        reader.tab.locator(f".turn.meant[aria-label='turn {turn}']").wait_for()
    assert reader.tab.url.endswith("&turn=5") and "failed" in meant.get_attribute("class")
    reader.tab.get_by_role("navigation", name="turns").get_by_role("link", name="7").click()
    reader.tab.locator(".turn.meant[aria-label='turn 7']").wait_for()
    keys.press("j")
    reader.heading("diff")


def test_without_gold_the_page_says_so(
    read: Callable[..., Reader], page: Path, tmp_path: Path
) -> None:
    path = tmp_path / "hidden.html"
    assert (
        main(["report", str(page.parent / "run"), "--html", str(path), "--hide-gold", "--json"])
        == 0
    )
    reader = read(f"{path.as_uri()}#episode?run=run&id=diff%230")
    reader.sees("Texts that may quote gold are hidden.")
    reader.sees("Files, setup and gold are hidden")
    assert reader.tab.locator(".pair").count() == 0
