"""The first screen, the comparison of runs, empty lists, and what is sent to others."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from intercode import records
from intercode.cli.main import main
from intercode.report.live_runs import ViewerRuns
from intercode.report.server import RunViewerServer
from report.test_browser import Reader, browser, episode, folder, page, pytestmark, read
from report.test_view import append, begun
from waiting import PATIENCE

# Fixtures, and the mark of tests that need Chromium.
__all__ = ["browser", "folder", "page", "pytestmark", "read"]


def run_folder(folder: Path, agent: str, env: str, model: str, *, every: int) -> str:
    """Record a run of 12 tasks, of which the agent solves each whose number `every` divides."""
    run = begun(folder)
    manifest = json.loads((run / records.MANIFEST).read_text())
    manifest["env"]["env"] = env
    manifest["agent"].update(name=agent, language_model={"model": model})
    manifest["sessions"][0]["started"] = "2026-11-27T17:35:00Z"
    (run / records.MANIFEST).write_text(json.dumps(manifest))
    append(run, *(episode(number, good=number % every == 0) for number in range(12)))
    return str(run)


def two_environments(folder: Path) -> Path:
    """Write a page of three agents in two environments. The last agent solves all tasks."""
    folders = [
        run_folder(folder / f"{env}-{agent}", agent, env, "m-1", every=every)
        for env in ("bash", "sql")
        for agent, every in (("low", 12), ("middle", 6), ("high", 1))
    ]
    path = folder / "page.html"
    assert main(["report", *folders, "--html", str(path), "--json"]) == 0
    return path


def test_results_charts_decisions_and_failures(read: Callable[..., Reader], tmp_path: Path) -> None:
    reader = read(two_environments(tmp_path).as_uri())
    tab = reader.tab
    results = tab.get_by_role("group", name="success by agent and environment")
    assert results.locator("tbody th strong").all_inner_texts() == ["low", "middle", "high"]
    cell = results.get_by_role("row", name="high").get_by_role("link").first
    assert re.sub(r"\s+", " ", cell.inner_text()) == "100.0 % 12 of 12"
    figures = tab.locator("figure svg").evaluate_all(
        "(all) => all.map((one) => one.ariaLabel.replace(/ · fake/, ''))"
    )
    assert figures == [
        *("bash: success by turns", "sql: success by turns"),
        *("bash: success by cost", "sql: success by cost"),
    ]
    # One line for each pair of agents: decided pairs first, the better agent first.
    lines = tab.get_by_role("group", name="differences").locator("tbody th").all_inner_texts()
    assert lines == [
        "high is better than low in bash · fake and sql · fake",
        "middle and low: no difference is shown in bash · fake and sql · fake",
    ]
    reader.sees("Why 42 episodes were not solved")
    tab.get_by_role("link", name="not-solved").click()
    assert reader.rows(42)


def test_a_comparison_names_environment_agent_model_and_date(
    read: Callable[..., Reader], tmp_path: Path
) -> None:
    reader = read(two_environments(tmp_path).as_uri() + "#compare")
    pairs = reader.tab.get_by_role("navigation", name="comparisons")
    assert pairs.get_by_role("heading").all_inner_texts() == ["bash · fake", "sql · fake"]
    assert pairs.get_by_role("link").count() == 6
    link = pairs.get_by_role("link", name="high against low").last
    assert "m-1 · 27 Nov 2026" in link.inner_text()
    link.click()
    runs = reader.tab.get_by_role("region", name="the two runs")
    runs.get_by_text("sql-high").wait_for()
    assert "+91.7" in runs.inner_text()
    assert reader.tab.url.endswith("#compare?first=sql-low&second=sql-high")
    flips = reader.tab.get_by_role("group", name="tasks that flipped")
    assert flips.locator("tbody tr").count() == 11 and "Do **1**" in flips.inner_text()


def test_what_is_empty_says_so(read: Callable[..., Reader], page: Path) -> None:
    reader = read()
    reader.go("#episodes?q=nowhere+to+be+found&run=A")
    reader.sees("None of these episodes matches")
    reader.click("button", "show all")
    assert len(reader.rows(41)) > 5
    reader.go("#compare?first=none")
    reader.heading("Compare runs")


def test_a_live_view_is_sent_as_a_file(read: Callable[..., Reader], tmp_path: Path) -> None:
    run = begun(tmp_path / "runs" / "one", tasks=4)
    append(run, *(episode(number, good=number > 0) for number in range(3)))
    viewer = RunViewerServer(ViewerRuns([tmp_path / "runs"]))
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    try:
        reader = read(viewer.url)
        reader.sees("2 of 3")
        reader.click("button", "share")
        dialog = reader.tab.get_by_role("dialog")
        assert socket.gethostname() in dialog.inner_text() and viewer.url in dialog.inner_text()
        with reader.tab.expect_download() as download:
            reader.click("button", "save the page")
        path = tmp_path / "sent.html"
        download.value.save_as(path)
        reader.tab.close()
    finally:
        viewer.close()
        thread.join(PATIENCE)
    assert viewer.token not in path.read_text()
    colleague = read(f"{path.as_uri()}#episode?run=one&id=task-01%230", offline=True)
    colleague.sees("for f in *; do echo")
    colleague.click("link", "Results")
    colleague.sees("2 of 3")
    colleague.click("button", "share")
    dialog = colleague.tab.get_by_role("dialog")
    assert "sent.html" in dialog.inner_text() and "127.0.0.1" not in dialog.inner_text()


def test_the_colours_can_be_chosen(read: Callable[..., Reader]) -> None:
    reader = read(color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = reader.tab.evaluate(colour)
    reader.click("button", "◐ system")
    reader.click("button", "◐ light")
    reader.tab.get_by_role("button", name="◐ dark").wait_for()
    assert reader.tab.evaluate(colour) != light
    reader.click("button", "◐ dark")
    assert reader.tab.evaluate(colour) == light
